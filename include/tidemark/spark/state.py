"""The state plane on Spark: a tail folded into a state by one Delta commit (`tidemark.ports.state`).

The steps of a publish: fold the tail at its pinned version of the log; leave out what loses and what
changes nothing; write tombstones; make one commit, by the cheapest means that does it (`spark.commit`).
The commit carries the digest of the whole state after it, carried forward from the hashes of the rows
that go and come, which the comparison has read anyway.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from tidemark.config import PipelineConfig
from tidemark.config.shard import ShardConfig
from tidemark.core.checksum import Digest
from tidemark.core.errors import Indeterminate, InvalidUsage, InvariantViolation
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
from tidemark.spark.commit import Stamp, classic_jvm, delete_and_insert, insert, merge, replace, write
from tidemark.spark.digest import digest_of, partials, row_hash
from tidemark.spark.documents import declared_schema
from tidemark.spark.fold import OP, UPSERT, FoldRule, lateness_number
from tidemark.spark.fresh import Pins, fresh, tail_at
from tidemark.spark.standing import app_id, encoded, read_standing, version_of
from tidemark.spark.tail import (
    AFTER,
    BEFORE,
    StateSpec,
    changes,
    first_changes,
    folded_tail,
    read_version,
)
from tidemark.spark.tombstones import bury

_REMOVED = "removed_"
_ADDED = "added_"


@dataclass(frozen=True, slots=True)
class Effect:
    """What a set of changes comes to."""

    upserts: int
    deletes: int
    removed: Digest
    added: Digest


@dataclass(frozen=True, slots=True)
class StateSpecs:
    """The shards of one pipeline that have a state."""

    pipeline: str
    shards: Mapping[ShardId, StateSpec]

    def of(self, shard: ShardId) -> StateSpec:
        if shard not in self.shards:
            known = ", ".join(sorted(self.shards))
            raise InvalidUsage(f"pipeline {self.pipeline!r} has no state {shard!r}", hint=f"it has {known}")
        return self.shards[shard]


def specs_of(config: PipelineConfig) -> StateSpecs:
    """What a pipeline's file says of its states."""
    return StateSpecs(
        config.name,
        {
            ShardId(shard.name): spec_of(
                shard, f"{config.warehouse_location}/{config.name}/{shard.name}", config.envelope
            )
            for shard in config.shards
        },
    )


def spec_of(shard: ShardConfig, uri: str, envelope: str) -> StateSpec:
    """One shard's state. The append envelope has no keys: every record is a row."""
    declared = declared_schema(shard)
    lateness = shard.lateness
    if shard.sequence_by is not None and lateness is not None:
        lateness = lateness_number(lateness, declared[shard.sequence_by].dataType)
    return StateSpec(
        name=shard.name,
        uri=uri,
        declared=declared,
        rule=FoldRule(() if envelope == "append" else tuple(shard.keys), shard.sequence_by),
        lateness=lateness,
        change_data_feed=shard.change_data_feed,
        deletion_vectors=shard.deletion_vectors,
    )


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
        self._specs = config if isinstance(config, StateSpecs) else specs_of(config)
        self._options = dict(storage_options or {})

    def standing(self, shard: ShardId, since: Published | None) -> StateStanding:
        spec = self._specs.of(shard)
        app = app_id(self._specs.pipeline, shard)
        return read_standing(spec.state, app=app, since=since, storage_options=self._options)

    def digest(self, shard: ShardId, version: int) -> Digest:
        spec = self._specs.of(shard)
        return digest_of_rows(read_version(self._spark, spec.state, version), spec)

    def publish(
        self, shard: ShardId, tail: Tail, *, base: Published | None, token: WriterToken
    ) -> tuple[int, StateCommit]:
        spec, spark = self._specs.of(shard), self._spark
        pins = Pins(base, tail.log_version, tail.upper)
        if pins.lower != tail.lower:
            raise InvariantViolation(
                f"a tail from {tail.lower} on does not follow the publish {pins.lower - 1}"
            )
        with _kept(tail_at(spark, spec, pins)) as folded:
            rows = folded.count()
            old = base.commit.tombstones if base is not None else VERSION_NONE
            tombs = bury(folded, spec, base=old, watermark=tail.watermark, storage_options=self._options)
            if base is None or not spec.rule.keys:
                changed = first_changes(folded, spec)
            else:
                state = read_version(spark, spec.state, base.version)
                changed = changes(folded, state, spec, rows=rows)
            with _kept(changed) as kept:
                effect = effect_of(kept)
                before = base.commit.digest if base is not None else Digest()
                digest = carried_forward(before, removed=effect.removed, added=effect.added)
                commit = StateCommit(tail.txn, token, digest, tombs)
                stamp = Stamp(
                    app_id(self._specs.pipeline, shard), tail.txn, encoded(commit), base=published_txn(base)
                )
                with _unknown(shard, tail.txn):
                    self._commit(kept, effect, spec, stamp)
        return self._version_of(shard, commit, since=base), commit

    def _commit(self, changed: DataFrame, effect: Effect, spec: StateSpec, stamp: Stamp) -> None:
        """One commit, by the cheapest means that does it; also when nothing changes, so that the table
        tells how far it is."""
        upserts = changed.where(F.col(OP) == UPSERT).select(*spec.columns)
        conditional = classic_jvm(self._spark) is not None
        if version_of(spec.state, self._options) == VERSION_NONE:
            write(upserts, spec, stamp, mode="errorifexists")
        elif effect.removed.count == 0 and conditional:
            insert(self._spark, upserts, spec, stamp)
        elif spec.deletion_vectors and conditional:
            delete_and_insert(self._spark, changed, spec, stamp)
        elif effect.removed.count == 0:
            write(upserts, spec, stamp, mode="append")
        elif effect.deletes == 0:
            replace(upserts, spec, stamp)
        else:
            merge(self._spark, changed, spec, stamp)

    def rebuild(
        self, shard: ShardId, tail: Tail, *, base: Published | None, token: WriterToken
    ) -> tuple[int, StateCommit]:
        spec, spark = self._specs.of(shard), self._spark
        pins = Pins(base, tail.log_version, tail.upper)
        folded = folded_tail(spark, spec, lower=tail.lower, upper=tail.upper, version=tail.log_version)
        with _kept(fresh(spark, spec, pins)) as rows:
            old = base.commit.tombstones if base is not None else VERSION_NONE
            tombs = bury(
                folded, spec, base=old, watermark=None, storage_options=self._options, afresh=base is None
            )
            commit = StateCommit(tail.txn, token, digest_of_rows(rows, spec), tombs)
            standing = self.standing(shard, None)
            app, number = app_id(self._specs.pipeline, shard), int(tail.txn)
            if tail.txn <= standing.txn:
                # Delta would skip a number that the table has, and the rows with it; without any number
                # it would skip a commit that replaces nothing by nothing. So rebuilds are counted apart.
                app, number = f"{app}/rebuild", standing.version + 1
            stamp = Stamp(app, number, encoded(commit))
            with _unknown(shard, tail.txn):
                write(rows, spec, stamp, mode="overwrite")
        return self._version_of(shard, commit, since=base), commit

    def _version_of(self, shard: ShardId, commit: StateCommit, *, since: Published | None) -> int:
        """Read the commit back: the version it made, and that it is there at all."""
        standing = self.standing(shard, since)
        if standing.newest != commit:
            raise Indeterminate(
                f"the state of {shard} shows {standing.newest} where {commit} was just written",
                hint="publish again: it compares the table with its record first",
            )
        return standing.newest_version


def digest_of_rows(rows: DataFrame, spec: StateSpec) -> Digest:
    """The digest of a state's rows, over the declared columns."""
    found = rows.select(row_hash(spec.declared).alias(AFTER)).agg(*partials(F.col(AFTER), prefix=_ADDED))
    return digest_of(found.first().asDict(), prefix=_ADDED)  # type: ignore[union-attr]


def effect_of(changed: DataFrame) -> Effect:
    """Counts and digests of what goes and what comes, in one pass: only a row that goes has a hash before,
    and only one that comes has a hash after."""
    gone, come = partials(F.col(BEFORE), prefix=_REMOVED), partials(F.col(AFTER), prefix=_ADDED)
    found = changed.agg(*gone, *come, F.count_if(F.col(OP) != UPSERT).alias("deletes")).first()
    row = found.asDict() if found is not None else {}
    added = digest_of(row, prefix=_ADDED)
    return Effect(added.count, int(row["deletes"]), digest_of(row, prefix=_REMOVED), added)


@contextmanager
def _unknown(shard: ShardId, txn: int) -> Iterator[None]:
    """A commit that failed may still have happened; who publishes next reads back (Invariant 5)."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise Indeterminate(
            f"the commit of transaction {txn} to the state of {shard} failed: {str(error)[:500]}",
            hint="publish again: it compares the table with its record first",
        ) from error


@contextmanager
def _kept(frame: DataFrame | None) -> Iterator[DataFrame]:
    """A frame that is used more than once; computed again, from pinned versions, if it gets lost."""
    if frame is None:
        raise InvariantViolation("a publish needs a tail")
    frame.persist()
    try:
        yield frame
    finally:
        frame.unpersist()
