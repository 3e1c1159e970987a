"""The state plane on Spark: folds a log's tail into a state by one Delta commit (`tidemark.ports.planes`).

A publish folds the tail at its pinned version of the log; finds the state's rows of its keys, by the key
index (`publish.ShardIndex`, without Spark) or, where that does not apply, by one scan
(`publish.changes_of`); writes tombstones; writes the new rows; and makes one commit (`delta.state`). The
commit has the digest of the whole state after it, carried forward from the hashes of the removed and added
rows.

Spark only reads and writes files, so a classic session, Spark Connect and a cluster behave alike. A commit
applies to the head that its changes were computed for, or fails: if another publisher has moved the state
on meanwhile, the result is a `Conflict`, and the caller decides again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from tidemark.config import PipelineConfig
from tidemark.core.checksum import Digest
from tidemark.core.errors import InvariantViolation
from tidemark.core.ids import TXN_NONE, ShardId, WriterToken
from tidemark.core.ledger import CommitOutcome, Conflict
from tidemark.core.publish import (
    VERSION_NONE,
    Published,
    StateCommit,
    StateStatus,
    carried_forward,
    published_txn,
)
from tidemark.delta.head import LiveFile
from tidemark.delta.state import StateTable
from tidemark.delta.state_files import RowKeys, Unsuited, keys_of
from tidemark.delta.state_maintenance import tidy
from tidemark.delta.state_status import app_id, encoded, read_state_status
from tidemark.delta.store import housekeeping
from tidemark.ports.planes import Tail
from tidemark.spark.columns import quoted
from tidemark.spark.failures import shard_job_errors
from tidemark.spark.fold import WRITE_CONFS
from tidemark.spark.publish import ShardIndex, changes_in_state, digest_of_rows
from tidemark.spark.read import parts_for
from tidemark.spark.session import INTERPRETED, confs_set, cores_of, persisted
from tidemark.spark.state_table import (
    NextVersion,
    StateSpec,
    StateSpecs,
    description,
    specs_of,
    state_properties,
)
from tidemark.spark.tables import log_files, may_correct, parquet_rows, read_version
from tidemark.spark.tail import ROW, folded_tail
from tidemark.spark.tombstones import write_tombstones
from tidemark.spark.views import Pins, fresh, is_small, tail_at, with_declared_columns

_PLANNED_ONCE = {"spark.sql.adaptive.enabled": "false"}
"""A publish has a few small joins of known sizes. With adaptive execution, each would be three jobs instead
of one."""


class SparkStatePlane:
    """Publishes and rebuilds the states of one pipeline's shards."""

    def __init__(
        self,
        spark: SparkSession | Callable[[], SparkSession],
        config: PipelineConfig | StateSpecs,
        *,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        self._session = spark
        specs = config if isinstance(config, StateSpecs) else specs_of(config)
        self._options = dict(storage_options or {})
        known = {name: replace(spec, storage_options=self._options) for name, spec in specs.shards.items()}
        self._specs = StateSpecs(specs.pipeline, known)
        self._tables: dict[ShardId, StateTable] = {}
        self._indexes: dict[ShardId, ShardIndex] = {}
        self._statuses: dict[ShardId, tuple[Published | None, StateStatus]] = {}

    @property
    def _spark(self) -> SparkSession:
        """The session; the first use starts it."""
        if callable(self._session):
            self._session = self._session()
        return self._session

    def _table(self, shard: ShardId) -> StateTable:
        """The handle of a state's table, which is cached with its known head."""
        if shard not in self._tables:
            uri = self._specs.of(shard).state
            self._tables[shard] = StateTable(uri, storage_options=self._options)
        return self._tables[shard]

    def _next(self, shard: ShardId) -> NextVersion:
        """The version after the newest one."""
        table = self._table(shard)
        return NextVersion(table.store.uri, self._options, table=table)

    def _index(self, shard: ShardId) -> ShardIndex:
        spec = self._specs.of(shard)
        if shard not in self._indexes:
            self._indexes[shard] = ShardIndex(spec, engine=lambda file: self._keys_of(spec, file))
        return self._indexes[shard]

    def _keys_of(self, spec: StateSpec, file: LiveFile) -> RowKeys:
        """The keys and digests of a file that another writer has written."""
        rows = parquet_rows(self._spark, spec.declared, [f"{spec.state}/{file.location}"])
        named = [F.col(quoted(name)) for name in filter(None, [spec.rule.sequence_by])]
        placed = rows.select(*spec.beside, *named, F.col("_metadata.row_index").alias(ROW)).orderBy(ROW)
        return keys_of(placed.toArrow(), sequence=spec.rule.sequence_by)

    def state_status(self, shard: ShardId, since: Published | None) -> StateStatus:
        spec = self._specs.of(shard)
        app = app_id(self._specs.pipeline, shard)
        found = read_state_status(
            spec.state, app=app, since=since, storage_options=self._options, known=self._table(shard).known
        )
        self._statuses[shard] = since, found
        return found

    def digest(self, shard: ShardId, version: int) -> Digest:
        spec = self._specs.of(shard)
        with shard_job_errors(shard):
            return digest_of_rows(
                with_declared_columns(read_version(self._spark, spec, spec.state, version), spec), spec
            )

    def repeated(self, shard: ShardId, version: int) -> int:
        spec = self._specs.of(shard)
        if not spec.rule.keys:
            return 0
        with shard_job_errors(shard):
            rows = with_declared_columns(read_version(self._spark, spec, spec.state, version), spec)
            return rows.groupBy(*map(quoted, spec.rule.keys)).count().where("count > 1").count()

    def publish(
        self, shard: ShardId, tail: Tail, *, base: Published | None, token: WriterToken
    ) -> tuple[int, StateCommit] | Conflict:
        pins = Pins(base, tail.log_version, tail.upper)
        if pins.lower != tail.lower and not tail.afresh:
            raise InvariantViolation(
                f"a tail from transaction {tail.lower} on does not follow the publish {pins.lower - 1}"
            )
        version = self._next(shard)
        if not self._stands_at(shard, base, version.head.version):
            # The cached table may be so old that the log entries after it were removed.
            del self._tables[shard]
            return Conflict()
        if tail.afresh:
            return self._rebuilt(shard, tail, version, base=None, token=token)
        try:
            return self._by_index(shard, tail, base, version, token)
        except Unsuited:
            return self._by_scan(shard, tail, pins, version, token)

    def _by_index(
        self, shard: ShardId, tail: Tail, base: Published | None, version: NextVersion, token: WriterToken
    ) -> tuple[int, StateCommit] | Conflict:
        index = self._index(shard)
        laid = index.lay(tail, base, version)
        if isinstance(laid, Conflict):
            return laid
        commit = StateCommit(tail.txn, token, laid.digest, laid.tombstones, tail.link)
        outcome = self._commit(shard, version, commit, **laid.change)
        if isinstance(outcome, Conflict):
            return outcome
        with housekeeping(version.store.uri):
            index.keep(self._next(shard).head, laid)
        return outcome.version, commit

    def tidy(self, shard: ShardId) -> None:
        tables, index = [self._table(shard)], self._indexes.get(shard)
        if self._specs.of(shard).rule.sequence_by is not None and index is not None:
            tables.append(index.tombstones)
        for table in tables:
            with housekeeping(table.store.uri):
                if table.head().version != VERSION_NONE:
                    tidy(table)
        if index is not None:
            with housekeeping(tables[0].store.uri):
                index.cover(tables[0].head())

    def _by_scan(
        self, shard: ShardId, tail: Tail, pins: Pins, version: NextVersion, token: WriterToken
    ) -> tuple[int, StateCommit] | Conflict:
        spec, spark, base = self._specs.of(shard), self._spark, pins.base
        confs = _PLANNED_ONCE | WRITE_CONFS | (INTERPRETED if is_small(spec, pins) else {})
        confs |= {"spark.sql.shuffle.partitions": str(_partitions(spark, spec, tail, version))}
        with shard_job_errors(shard), confs_set(spark, confs), _tail(spark, spec, pins) as folded:
            tombs = write_tombstones(folded, spec, txn=tail.txn, corrects=_corrects(spec, tail))
            if isinstance(tombs, Conflict):
                return tombs
            with changes_in_state(folded, tail, spec, base, version.head) as changes:
                change, added = changes.written(version)
                digest = base.commit.digest if base is not None else Digest()
                digest = carried_forward(digest, removed=changes.removed, added=added)
                commit = StateCommit(tail.txn, token, digest, tombs, tail.link)
                outcome = self._commit(shard, version, commit, **change)
        return outcome if isinstance(outcome, Conflict) else (outcome.version, commit)

    def _stands_at(self, shard: ShardId, base: Published | None, version: int) -> bool:
        """Whether a version of the state has exactly the rows of a publish. The status that decided on the
        publish is reused if it was read at the same version."""
        since, found = self._statuses.get(shard, (None, None))
        if found is None or since != base or found.version != version:
            found = self.state_status(shard, base)
        return (found.version, found.txn) == (version, published_txn(base)) and not found.foreign_writes

    def _commit(
        self,
        shard: ShardId,
        version: NextVersion,
        commit: StateCommit,
        *,
        afresh: bool = False,
        **change: Any,
    ) -> CommitOutcome:
        """Make one commit, even if no row changes, so that the table records the transaction that it has
        reached."""
        spec = self._specs.of(shard)
        return version.commit(
            "WRITE",
            commit.digest.count,
            txns={app_id(self._specs.pipeline, shard): commit.txn},
            facts={"userMetadata": encoded(commit)},
            **change,
            **description(version.head, spec.declared, state_properties(spec), afresh=afresh),
        )

    def rebuild(
        self, shard: ShardId, tail: Tail, *, base: Published | None, token: WriterToken
    ) -> tuple[int, StateCommit] | Conflict:
        version = self._next(shard)
        if version.head.txns.get(app_id(self._specs.pipeline, shard), TXN_NONE) > tail.txn:
            return Conflict()
        return self._rebuilt(shard, tail, version, base=base, token=token)

    def _rebuilt(
        self, shard: ShardId, tail: Tail, version: NextVersion, *, base: Published | None, token: WriterToken
    ) -> tuple[int, StateCommit] | Conflict:
        """Replace all rows of the state by the fold of the tail onto `base`, and its columns too where the
        log was begun anew."""
        spec, spark = self._specs.of(shard), self._spark
        pins = Pins(base, tail.log_version, tail.upper, begins=tail.lower)
        folded = folded_tail(spark, spec, lower=tail.lower, upper=tail.upper, version=tail.log_version)
        with (
            shard_job_errors(shard),
            confs_set(spark, WRITE_CONFS),
            persisted(fresh(spark, spec, pins)) as rows,
        ):
            tombs = write_tombstones(
                folded, spec, txn=tail.txn, corrects=_corrects(spec, tail), afresh=base is None
            )
            if isinstance(tombs, Conflict):
                return tombs
            commit = StateCommit(tail.txn, token, digest_of_rows(rows, spec), tombs, tail.link)
            change = {
                "added": version.write(rows.select("*", *spec.beside)),
                "removed": list(version.head.files),
            }
            outcome = self._commit(shard, version, commit, afresh=tail.afresh, **change)
        return outcome if isinstance(outcome, Conflict) else (outcome.version, commit)


def _corrects(spec: StateSpec, tail: Tail) -> bool:
    files = log_files(spec, lower=tail.lower, upper=tail.upper, version=tail.log_version)
    return may_correct(spec, files)


def _partitions(spark: SparkSession, spec: StateSpec, tail: Tail, version: NextVersion) -> int:
    """Into how many partitions a publish shuffles: by what it reads, and the cores of now."""
    files = log_files(spec, lower=tail.lower, upper=tail.upper, version=tail.log_version)
    size = sum(one.part.bytes for one in files) + sum(one.bytes for one in version.head.files.values())
    return max(1, parts_for(size, cores=cores_of(spark)))


@contextmanager
def _tail(spark: SparkSession, spec: StateSpec, pins: Pins) -> Iterator[DataFrame]:
    """The folded tail; persisted if it costs more than reading the log's rows, because it is used twice."""
    tail = tail_at(spark, spec, pins)
    if tail is None:
        raise InvariantViolation("a publish needs a tail")
    if spec.rule.keys and (pins.upper - pins.lower > 1 or spec.rule.sequence_by is not None):
        with persisted(tail) as own:
            yield own
    else:
        yield tail
