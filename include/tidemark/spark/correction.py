"""The difference between two generations of a shard, staged as one transaction's rows of its log.

Both generations are given as rows of one transaction. The difference is exact: values are compared, not
digests. Which shards need it is decided before (`pipeline.promotion.unchanged`). Keys are compared null-safe,
as everywhere. A column that the old generation lacks is NULL in it.

- With keys: a row that is new or differs becomes an upsert, and a key that is gone becomes a delete.
- Without keys: rows that only the new generation has are added. A log can't take back rows that only the old
  one has, so these are refused.
- In quarantine: the open errors of the new generation are added, and records that only it has quarantined,
  by shard and position. Open errors are looked for from the last promotion on, so they become its.

With `sequence_by`, tombstones are compared too: they decide about later records. A deleted key whose
tombstone differs becomes a delete with the new tombstone's sequence, or without one where there is none.

A correction's rows have no position (`_offset` is NULL), because they stand for no record. In quarantine they
keep theirs. Parts are written and counted as ingest does it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from tidemark.core.errors import InvariantViolation
from tidemark.core.generation import Correction
from tidemark.core.ids import QUARANTINE, ShardId
from tidemark.core.replay import Difference
from tidemark.core.seal import ShardParts
from tidemark.delta.state_files import DIGEST
from tidemark.spark.columns import (
    DELETE,
    LOG_COLUMNS,
    OP,
    POSITION,
    TXN,
    UPSERT,
    log_hashed,
    quoted,
    sequence_number_sql,
)
from tidemark.spark.decode import KEY, SHARD
from tidemark.spark.digest import digest_of, partials, row_hash, row_hash_sql
from tidemark.spark.failures import shard_job_errors
from tidemark.spark.fold import QUARANTINE_COLUMNS, WRITE_CONFS, Sink
from tidemark.spark.sample import Sampler
from tidemark.spark.session import confs_set, counted, persisted
from tidemark.spark.state_table import StateSpec
from tidemark.spark.tables import no_rows
from tidemark.spark.tail import comparable, equal_values
from tidemark.spark.views import RECORD, with_declared_columns

ROWS_PER_FILE: Final = 250_000
CONFS: Final = {**WRITE_CONFS, "spark.sql.parquet.compression.codec": "zstd"}
_OLD, _NEW = "_tidemark_old_", "_tidemark_new_"
_THERE: Final = "_tidemark_there"
_WAS: Final = "_tidemark_was"
_COUNT: Final = "_tidemark_count"
_ROW: Final = "_tidemark_row"
_OUT: Final = "out_"
_KNOWN: Final = "_tidemark_known"
_OPEN: Final = "_tidemark_open"
SIDES: Final = ("new generation", "old generation")


@dataclass(frozen=True, slots=True)
class Comparison:
    """How a shard's rows would change from one generation to the other, with a sample, for people."""

    inserted: int
    deleted: int
    changed: int
    sample: tuple[Difference, ...] = ()

    @property
    def is_equal(self) -> bool:
        return not (self.inserted or self.deleted or self.changed)


@dataclass(frozen=True, slots=True)
class Dead:
    """The tombstones of both generations; None where one has none. Those below the `line` are too late to
    matter. Those of the old generation below the `old_line` may expire at any time, so they don't count."""

    old: DataFrame | None
    new: DataFrame | None
    line: int | None = None
    old_line: int | None = None

    @property
    def sides(self) -> tuple[tuple[DataFrame | None, int | None], tuple[DataFrame | None, int | None]]:
        """The tombstones of the old and the new generation, each with the line that they count from."""
        lines = [line for line in (self.line, self.old_line) if line is not None]
        return (self.old, max(lines, default=None)), (self.new, self.line)


def correct(
    old: DataFrame, new: DataFrame, spec: StateSpec, sink: Sink, *, dead: Dead | None = None
) -> Correction:
    """Stage the difference of a shard's rows. Nothing is written where there is none, or where it is
    refused. A shard with `sequence_by` needs the tombstones too."""
    shard = ShardId(spec.name)
    with shard_job_errors(shard), confs_set(new.sparkSession, CONFS):
        if not spec.rule.keys:
            return _correct_appended(old, new, spec, sink)
        found = _differing(old, new, spec)
        if spec.rule.sequence_by is not None:
            if dead is None:
                raise InvariantViolation(f"shard {shard} has tombstones, and they were not compared")
            found = _with_tombstones(found, old, new, spec, dead)
        with persisted(found) as rows:
            counts = _counts(rows)
            return _written(rows, spec, sink, upserts=counts["upserts"], deletes=counts["deletes"])


def _with_tombstones(
    found: DataFrame, old: DataFrame, new: DataFrame, spec: StateSpec, dead: Dead
) -> DataFrame:
    """The differences, in which a delete has the sequence of the new generation's tombstone, with a delete
    for each key that has no row in either generation and another tombstone."""
    sequence = str(spec.rule.sequence_by)
    theirs, ours = (_tombstones(rows, spec, line, new) for rows, line in dead.sides)
    same = F.expr(spec.same_key(_OLD, _NEW))
    deletes = found.where(F.col(OP) == DELETE).alias(_NEW).join(ours.alias(_OLD), same, "left")
    names = [name for name in found.columns if name != sequence]
    known = [F.col(f"{_NEW}.{quoted(name)}").alias(name) for name in names]
    dated = deletes.select(*known, F.col(f"{_OLD}.{quoted(sequence)}").alias(sequence))
    pairs = theirs.alias(_OLD).join(ours.alias(_NEW), same, "full_outer")
    before, after = (F.col(f"{side}.{quoted(sequence)}") for side in (_OLD, _NEW))
    keys = [
        F.when(after.isNotNull(), F.col(f"{_NEW}.{quoted(key)}"))
        .otherwise(F.col(f"{_OLD}.{quoted(key)}"))
        .alias(key)
        for key in spec.rule.keys
    ]
    lone = pairs.where(~before.eqNullSafe(after)).select(*keys, after.alias(sequence))
    for live in (old, new):
        lone = lone.alias(_NEW).join(live.alias(_OLD), same, "left_anti")
    rest = {OP: F.lit(DELETE), _WAS: F.lit(False)}
    known_here = {*spec.rule.keys, sequence}
    buried = lone.select(
        *[
            F.col(quoted(f.name)) if f.name in known_here else F.lit(None).cast(f.dataType).alias(f.name)
            for f in spec.declared.fields
        ],
        *[value.alias(name) for name, value in rest.items()],
    )
    return found.where(F.col(OP) == UPSERT).unionByName(dated).unionByName(buried)


def _tombstones(rows: DataFrame | None, spec: StateSpec, line: int | None, beside: DataFrame) -> DataFrame:
    """The keys and sequences of tombstones that a late record could still lose to."""
    sequence = str(spec.rule.sequence_by)
    names = [*spec.rule.keys, sequence]
    if rows is None:
        return no_rows(beside.sparkSession, StructType([spec.declared[name] for name in names]))
    needed = F.col(quoted(sequence)).isNotNull()
    if line is not None:
        number = sequence_number_sql(quoted(sequence), spec.declared[sequence].dataType)
        needed = needed & (F.expr(number) >= line)
    return rows.where(needed).select(*[F.col(quoted(name)) for name in names])


def _differing(old: DataFrame, new: DataFrame, spec: StateSpec) -> DataFrame:
    """The keys whose rows differ: the declared columns, `_op`, and whether the old generation has a row."""
    ours, theirs = (
        with_declared_columns(rows, spec).select(
            *[F.col(quoted(name)).alias(prefix + name) for name in spec.declared.names],
            F.lit(True).alias(prefix + _THERE),
        )
        for rows, prefix in ((new, _NEW), (old, _OLD))
    )
    keys = set(spec.rule.keys)
    same_key = spec.equal({key: (quoted(_NEW + key), quoted(_OLD + key)) for key in spec.rule.keys})
    is_there, was_there = (F.col(prefix + _THERE).isNotNull() for prefix in (_NEW, _OLD))
    differs = reduce(
        Column.__or__,
        [
            ~equal_values(_of(_NEW, field.name), _of(_OLD, field.name), field.dataType)
            for field in spec.declared.fields
            if field.name not in keys
        ],
        ~is_there | ~was_there,
    )
    values = [
        (F.when(is_there, _of(_NEW, name)).otherwise(_of(_OLD, name)) if name in keys else _of(_NEW, name))
        for name in spec.declared.names
    ]
    return (
        ours.join(theirs, F.expr(same_key), "full_outer")
        .where(differs)
        .select(
            *[value.alias(name) for value, name in zip(values, spec.declared.names, strict=True)],
            F.when(is_there, UPSERT).otherwise(DELETE).alias(OP),
            was_there.alias(_WAS),
        )
    )


def _of(prefix: str, name: str) -> Column:
    return F.col(quoted(prefix + name))


def _counts(found: DataFrame) -> Mapping[str, int]:
    row = found.agg(
        F.count_if(F.col(OP) == UPSERT).alias("upserts"),
        F.count_if(F.col(OP) == DELETE).alias("deletes"),
        F.count_if((F.col(OP) == UPSERT) & F.col(_WAS)).alias("changed"),
    ).first()
    return {name: int(number) for name, number in row.asDict().items()}  # type: ignore[union-attr]


def _written(rows: DataFrame, spec: StateSpec, sink: Sink, *, upserts: int, deletes: int) -> Correction:
    """Write the rows, which have the declared columns and `_op`, as parts of the log."""
    count = upserts + deletes
    if not count:
        return Correction()
    made: dict[str, Column] = {TXN: F.lit(int(sink.txn)), OP: F.col(OP)}
    facts = [made.get(one.name, F.lit(None)).cast(one.dataType).alias(one.name) for one in LOG_COLUMNS]
    hashed = F.expr(row_hash_sql(log_hashed(spec.declared))).alias(DIGEST)
    few = rows.coalesce(-(-count // ROWS_PER_FILE)).select(*spec.columns, *facts, *spec.key_hash, hashed)
    return _taken(few, ShardId(spec.name), sink, deletes=deletes)


def _taken(rows: DataFrame, shard: ShardId, sink: Sink, *, deletes: int | None) -> Correction:
    """Write rows, which have their digest beside them, and count them on the way."""
    hidden = [] if shard != QUARANTINE else [DIGEST]
    found = counted(
        rows,
        partials(F.col(DIGEST), prefix=_OUT),
        lambda frame: sink.take(shard, frame.drop(*hidden)),
    )
    digest = digest_of(found, prefix=_OUT)
    parts = sink.parts(shard, digest.count)
    if not parts:
        return Correction()
    return Correction(ShardParts(parts, digest, deletes=deletes), digest.count - (deletes or 0), deletes or 0)


# Shards without keys.


def _correct_appended(old: DataFrame, new: DataFrame, spec: StateSpec, sink: Sink) -> Correction:
    with persisted(_multiset(old, new, spec)) as found:
        more, fewer = _more_and_fewer(found)
        if fewer:
            return Correction(
                upserts=more,
                deletes=fewer,
                refused=f"{fewer} rows of shard {spec.name} are not in the new generation, and a shard"
                " without keys can't lose rows: start the candidate with settings that keep them",
            )
        copies = F.expr(f"explode(array_repeat({_ROW}, cast({_COUNT} as int))) AS {_ROW}")
        rows = found.select(copies).select(f"{_ROW}.*", F.lit(UPSERT).alias(OP))
        return _written(rows, spec, sink, upserts=more, deletes=0)


def _multiset(old: DataFrame, new: DataFrame, spec: StateSpec) -> DataFrame:
    """The different rows with how many more of each the new generation has; negative for fewer."""
    both = _counting(new, spec, 1).unionAll(_counting(old, spec, -1))
    values = [name for name in both.columns if name.startswith(_NEW)]
    grouped = both.groupBy(*map(quoted, values))
    counted_rows = grouped.agg(F.sum(_COUNT).alias(_COUNT), F.first(_ROW).alias(_ROW))
    return counted_rows.where(f"{_COUNT} != 0").select(_COUNT, _ROW)


def _counting(rows: DataFrame, spec: StateSpec, number: int) -> DataFrame:
    """The rows as they are, and as values that can be grouped."""
    values = [
        comparable(F.col(quoted(field.name)), field.dataType).alias(_NEW + field.name)
        for field in spec.declared.fields
    ]
    return with_declared_columns(rows, spec).select(
        *values, F.lit(number).alias(_COUNT), F.struct(*spec.columns).alias(_ROW)
    )


def _more_and_fewer(found: DataFrame) -> tuple[int, int]:
    count = F.col(_COUNT)
    row = found.agg(F.sum(F.when(count > 0, count)), F.sum(F.when(count < 0, -count))).first()
    more, fewer = row or (0, 0)
    return int(more or 0), int(fewer or 0)


# Quarantine.


def correct_quarantine(
    old: DataFrame, new: DataFrame, sink: Sink, *, still_open: DataFrame | None = None
) -> Correction:
    """Stage the open errors of the new generation, and what only that one has quarantined. Open errors of
    before end with a promotion, so those that are still open come again.

    `still_open` are the open errors of the new generation; without it, all are open. A record that is no open
    error comes without its key, because a good row before this transaction has ended it."""
    place = [SHARD, *POSITION]
    with shard_job_errors(QUARANTINE), confs_set(new.sparkSession, CONFS):
        rows = _marked(new.dropDuplicates(place), old, place, _KNOWN)
        is_open = F.lit(True)
        if still_open is not None:
            rows, is_open = _marked(rows, still_open, place, _OPEN), F.col(_OPEN).isNotNull()
        made = {TXN: F.lit(int(sink.txn)).cast("bigint"), KEY: F.when(is_open, F.col(KEY))}
        chosen = rows.where(F.col(_KNOWN).isNull() | (is_open & F.col(KEY).isNotNull())).select(
            *[made.get(name, F.col(name)).alias(name) for name in RECORD.names]
        )
        return _taken(
            chosen.coalesce(1).withColumn(DIGEST, row_hash(QUARANTINE_COLUMNS)),
            QUARANTINE,
            sink,
            deletes=None,
        )


def _marked(rows: DataFrame, others: DataFrame, names: Sequence[str], mark: str) -> DataFrame:
    """The rows with a mark on those whose values of these columns are among the others."""
    known = others.select(*names).distinct().select(*[F.col(name).alias(_OLD + name) for name in names])
    same = F.expr(" AND ".join(f"{name} <=> {_OLD}{name}" for name in names))
    return rows.join(known.withColumn(mark, F.lit(True)), same, "left").drop(*[_OLD + name for name in names])


# For people.


def compare(old: DataFrame, new: DataFrame, spec: StateSpec, sampler: Sampler, *, limit: int) -> Comparison:
    """Count the rows that differ, with a sample of up to `limit` of them."""
    with shard_job_errors(spec.name):
        if spec.rule.keys:
            counts = _counts(_differing(old, new, spec))
            found = Comparison(counts["upserts"] - counts["changed"], counts["deletes"], counts["changed"])
        else:
            found = Comparison(*_more_and_fewer(_multiset(old, new, spec)), 0)
        if found.is_equal or not limit:
            return found
        given, kept = (
            with_declared_columns(rows, spec).select(*spec.columns, F.lit(UPSERT).alias(OP))
            for rows in (new, old)
        )
        sample = sampler.differing(given, kept, parts=0, limit=limit)
        return Comparison(found.inserted, found.deleted, found.changed, sample)
