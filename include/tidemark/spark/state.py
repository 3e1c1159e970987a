"""The state plane on Spark: a tail folded into a state by one Delta commit (`tidemark.ports.state`).

The steps of a publish: fold the tail at its pinned version of the log; write tombstones; compare it with the
state's rows in one scan (`spark.changes`), which finds what loses and what changes nothing, and says where
the rows lie that go; make one commit, by the cheapest means that does it (`spark.commit`). The commit carries
the digest of the whole state after it, carried forward from the hashes of the rows that go and come.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tidemark.config import PipelineConfig
from tidemark.core.checksum import Digest
from tidemark.core.errors import Determinate, Indeterminate, InvariantViolation
from tidemark.core.ids import ShardId, WriterToken
from tidemark.core.publish import (
    VERSION_NONE,
    Published,
    StateCommit,
    StateStanding,
    carried_forward,
    published_txn,
)
from tidemark.ports.state import Tail
from tidemark.spark.changes import Changes, changes_of, digest_of_rows
from tidemark.spark.commit import Stamp, confs_set, merge, replace_keys, widened, write
from tidemark.spark.failures import cause_in, rows_of
from tidemark.spark.fresh import Pins, filled, fresh, is_small, tail_at
from tidemark.spark.publisher import sole_publisher
from tidemark.spark.session import INTERPRETED
from tidemark.spark.shared_server import persisted
from tidemark.spark.spec import StateSpec, StateSpecs, specs_of
from tidemark.spark.standing import app_id, encoded, guard_of, guard_version, read_standing
from tidemark.spark.tables import read_version
from tidemark.spark.tail import folded_tail
from tidemark.spark.tombstones import bury
from tidemark.spark.transaction import StateTransaction, classic_jvm

_PLANNED_ONCE = {"spark.sql.adaptive.enabled": "false"}
"""A publish has a few small joins whose sizes are known. Planned again after every stage, each of them
would be three jobs instead of one."""


class SparkStatePlane:
    """Publishes and rebuilds the states of one pipeline's shards."""

    def __init__(
        self,
        spark: SparkSession,
        config: PipelineConfig | StateSpecs,
        *,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        self._spark = spark
        specs = config if isinstance(config, StateSpecs) else specs_of(config)
        self._options = dict(storage_options or {})
        known = {name: replace(spec, storage_options=self._options) for name, spec in specs.shards.items()}
        self._specs = StateSpecs(specs.pipeline, known)

    def sole_publisher(self, shard: ShardId) -> AbstractContextManager[None]:
        return sole_publisher(self._spark, self._specs.of(shard).uri)

    def standing(self, shard: ShardId, since: Published | None) -> StateStanding:
        spec = self._specs.of(shard)
        app = app_id(self._specs.pipeline, shard)
        return read_standing(spec.state, app=app, since=since, storage_options=self._options)

    def digest(self, shard: ShardId, version: int) -> Digest:
        spec = self._specs.of(shard)
        with rows_of(shard):
            return digest_of_rows(filled(read_version(self._spark, spec, spec.state, version), spec), spec)

    def publish(
        self, shard: ShardId, tail: Tail, *, base: Published | None, token: WriterToken
    ) -> tuple[int, StateCommit]:
        spec, spark = self._specs.of(shard), self._spark
        pins = Pins(base, tail.log_version, tail.upper)
        if pins.lower != tail.lower:
            raise InvariantViolation(
                f"a tail from {tail.lower} on does not follow the publish {pins.lower - 1}"
            )
        app, before = app_id(self._specs.pipeline, shard), published_txn(base)
        confs = _PLANNED_ONCE | (INTERPRETED if is_small(spec, pins) else {})
        with rows_of(shard), confs_set(spark, confs), _tail(spark, spec, pins) as folded:
            old = base.commit.tombstones if base is not None else VERSION_NONE
            tombs = bury(folded, spec, base=old, watermark=tail.watermark)
            # Looked at once, before the changes are worked out: a table that comes into being after that
            # is another publisher's, and the commit that makes ours must fail.
            there = widened(spark, spec)
            opened = self._opened(spec, Stamp(app, tail.txn, "", base=before)) if there else None
            if there and base is None and opened is None:
                self._check_unpublished(shard)
            with changes_of(folded, tail, spec, base, opened) as changes:
                # A transaction counts while it writes; every other way has to say before what it will write.
                added = changes.put(opened) if opened is not None else digest_of_rows(changes.upserts, spec)
                digest = base.commit.digest if base is not None else Digest()
                digest = carried_forward(digest, removed=changes.removed, added=added)
                commit = StateCommit(tail.txn, token, digest, tombs)
                stamp = Stamp(app, tail.txn, encoded(commit), base=before)
                with _unknown(shard, tail.txn):
                    self._commit(changes, spec, stamp, opened, there)
        return self._version_of(shard, commit, since=base), commit

    def _opened(self, spec: StateSpec, stamp: Stamp) -> StateTransaction | None:
        """A transaction on the state, where there is a JVM to open one with."""
        if not spec.deletion_vectors or classic_jvm(self._spark) is None:
            return None
        opened = StateTransaction(self._spark, spec)
        opened.check_base(stamp)
        return opened

    def _check_unpublished(self, shard: ShardId) -> None:
        """Refuse a table that a publisher, which died before its record, has made since we looked: the commit
        that makes a table carries no base for ours to meet."""
        found = self.standing(shard, None)
        if found.newest is not None:
            raise Determinate(
                f"the state of {shard} stands at transaction {found.txn}, and the changes were worked out"
                " against none",
                hint="publish again: a commit of a publisher that died has landed meanwhile",
            )

    def _commit(
        self,
        changes: Changes,
        spec: StateSpec,
        stamp: Stamp,
        opened: StateTransaction | None,
        there: bool,
    ) -> None:
        """One commit, by the cheapest means that does it; also when nothing changes, so that the table
        tells how far it is."""
        if opened is not None:
            opened.commit(stamp)
        elif not there:
            write(changes.upserts, spec, stamp, mode="error")
        elif changes.removed.count == 0:
            write(changes.upserts, spec, stamp.guarded, mode="append")
        elif changes.deletes == 0:
            replace_keys(changes.upserts, spec, stamp.guarded)
        else:
            merge(self._spark, changes.rows, spec, stamp.guarded)

    def rebuild(
        self, shard: ShardId, tail: Tail, *, base: Published | None, token: WriterToken
    ) -> tuple[int, StateCommit]:
        spec, spark = self._specs.of(shard), self._spark
        pins = Pins(base, tail.log_version, tail.upper)
        folded = folded_tail(spark, spec, lower=tail.lower, upper=tail.upper, version=tail.log_version)
        with rows_of(shard), persisted(fresh(spark, spec, pins)) as rows:
            old = base.commit.tombstones if base is not None else VERSION_NONE
            tombs = bury(folded, spec, base=old, watermark=None, afresh=base is None)
            commit = StateCommit(tail.txn, token, digest_of_rows(rows, spec), tombs)
            with _unknown(shard, tail.txn):
                widened(spark, spec)
                write(rows, spec, self._rebuild_stamp(shard, commit), mode="overwrite")
        return self._version_of(shard, commit, since=base), commit

    def _rebuild_stamp(self, shard: ShardId, commit: StateCommit) -> Stamp:
        """What a rebuild counts as.

        Delta would skip a number that the table has, and the rows with it; without any number it would skip
        a commit that replaces nothing by nothing. So a rebuild that moves nothing is counted apart. One that
        does move closes, over Connect, every base below it to commits that count by their base."""
        spec, app = self._specs.of(shard), app_id(self._specs.pipeline, shard)
        standing = self.standing(shard, None)
        if commit.txn <= standing.txn:
            return Stamp(f"{app}/rebuild", standing.version + 1, encoded(commit))
        connect = classic_jvm(self._spark) is None
        if connect and commit.txn > guard_version(spec.state, app, self._options):
            return Stamp(guard_of(app), commit.txn, encoded(commit))
        return Stamp(app, commit.txn, encoded(commit))

    def _version_of(self, shard: ShardId, commit: StateCommit, *, since: Published | None) -> int:
        """Read the commit back: the version it made, and that it is there at all."""
        standing = self.standing(shard, since)
        if standing.newest != commit:
            raise Indeterminate(
                f"the state of {shard} shows {standing.newest} where {commit} was just written",
                hint="publish again: it compares the table with its record first",
            )
        return standing.newest_version


@contextmanager
def _unknown(shard: ShardId, txn: int) -> Iterator[None]:
    """A commit that failed may still have happened; who publishes next reads back (Invariant 5)."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise Indeterminate(
            f"the commit of transaction {txn} to the state of {shard} failed: {cause_in(str(error))}",
            hint="publish again: it compares the table with its record first",
        ) from error


@contextmanager
def _tail(spark: SparkSession, spec: StateSpec, pins: Pins) -> Iterator[DataFrame]:
    """The tail that is folded in; kept where it is more than the log's rows, since all look at it twice."""
    tail = tail_at(spark, spec, pins)
    if tail is None:
        raise InvariantViolation("a publish needs a tail")
    if spec.rule.keys and (pins.upper - pins.lower > 1 or spec.rule.sequence_by is not None):
        with persisted(tail) as own:
            yield own
    else:
        yield tail
