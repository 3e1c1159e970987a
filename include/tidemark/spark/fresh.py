"""The three ways to read a shard: its state, the state with the log's tail folded in, and its log.

`fresh` is exact at a transaction: the state at its recorded version and the tail at a pinned version of
the log, so what is appended or published meanwhile makes no difference (Invariant 15). The tail's keys are
sent to the state's rows, which stay where they are, and its folded rows are put beside what is left of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from tidemark.core.errors import InvalidUsage
from tidemark.core.ids import TXN_FIRST, TXN_NONE, ShardId, Txn, next_txn
from tidemark.core.publish import VERSION_NONE, HistoryGone, Published
from tidemark.delta.standing import lost_files, same_rows_version
from tidemark.spark.fold import OP, TXN, UPSERT, log_schema, quoted
from tidemark.spark.session import ROWS_FEW
from tidemark.spark.spec import StateSpec
from tidemark.spark.tables import log_files, log_rows, read_version
from tidemark.spark.tail import (
    SOURCE,
    TARGET,
    folded,
    is_older,
    without_buried,
)
from tidemark.spark.tombstones import read_tombstones

_STATE_ROWS_FEW = 20 * ROWS_FEW


@dataclass(frozen=True, slots=True)
class Pins:
    """What a read is fixed to: a publish (or none yet), a version of the log and its upper."""

    base: Published | None
    log_version: int
    upper: Txn

    @property
    def lower(self) -> Txn:
        return next_txn(self.base.txn if self.base is not None else TXN_NONE)


def read_state(spark: SparkSession, spec: StateSpec, base: Published) -> DataFrame:
    """The state as a publish left it, or `HistoryGone` when files of an older version were removed."""
    version = same_rows_version(spec.state, base.version, spec.storage_options)
    lost = lost_files(spec.state, version, spec.storage_options)
    if lost:
        raise HistoryGone(ShardId(spec.name), base, lost=lost)
    return filled(read_version(spark, spec, spec.state, base.version), spec).select(*spec.columns)


def filled(rows: DataFrame, spec: StateSpec) -> DataFrame:
    """Rows with all declared columns: one that a version of the table didn't have yet is NULL."""
    there = set(rows.columns)
    lacking = {f.name: F.lit(None).cast(f.dataType) for f in spec.declared.fields if f.name not in there}
    return rows.withColumns(lacking) if lacking else rows


def read_log(spark: SparkSession, spec: StateSpec, pins: Pins, *, lower: Txn = TXN_FIRST) -> DataFrame:
    """The log's rows from `lower` on, below the pinned upper, with their transaction and position."""
    if pins.log_version == VERSION_NONE:
        return spark.createDataFrame([], log_schema(spec.declared))
    return log_rows(spark, spec, lower=lower, upper=pins.upper, version=pins.log_version)


def is_small(spec: StateSpec, pins: Pins) -> bool:
    """Whether there are so few rows to look at that compiling code for them would be most of the work."""
    if pins.base is not None and pins.base.commit.digest.count > _STATE_ROWS_FEW:
        return False
    files = log_files(spec, lower=pins.lower, upper=pins.upper, version=pins.log_version)
    return sum(file.part.rows for file in files) <= ROWS_FEW


def tail_at(spark: SparkSession, spec: StateSpec, pins: Pins) -> DataFrame | None:
    """The folded tail above the pinned publish, buried records left out; None when there is no tail."""
    rows = tail_rows(spark, spec, pins)
    if rows is None:
        return None
    return without_buried(
        folded(rows, spec, lower=pins.lower, upper=pins.upper), _tombstones_at(spark, spec, pins), spec
    )


def tail_rows(spark: SparkSession, spec: StateSpec, pins: Pins) -> DataFrame | None:
    """The log's rows above the pinned publish; None when there is no tail."""
    if pins.upper < pins.lower:
        raise InvalidUsage(f"a read below {pins.upper} can't start from a publish of {pins.lower - 1}")
    if pins.upper == pins.lower or pins.log_version == VERSION_NONE:
        return None
    return log_rows(spark, spec, lower=pins.lower, upper=pins.upper, version=pins.log_version)


def _tombstones_at(spark: SparkSession, spec: StateSpec, pins: Pins) -> DataFrame | None:
    return read_tombstones(spark, spec, pins.base.commit.tombstones if pins.base else VERSION_NONE)


def fresh(spark: SparkSession, spec: StateSpec, pins: Pins) -> DataFrame:
    """The current row of each key below the pinned upper, in the declared columns."""
    rows = tail_rows(spark, spec, pins)
    if pins.base is None:
        if rows is None:
            return spark.createDataFrame([], spec.declared)
        tail = folded(rows, spec, lower=pins.lower, upper=pins.upper)
        return tail.where(F.col(OP) == UPSERT).select(*spec.columns)
    state = read_state(spark, spec, pins.base)
    if rows is None:
        return state
    if not spec.rule.keys:
        return state.unionAll(rows.select(*spec.columns))
    last = folded(rows, spec, lower=pins.lower, upper=pins.upper)
    return _overlaid(state, rows, last, _tombstones_at(spark, spec, pins), spec)


def _overlaid(
    state: DataFrame, rows: DataFrame, last: DataFrame, tombstones: DataFrame | None, spec: StateSpec
) -> DataFrame:
    """The state with a tail over it: its rows, and the last of each key.

    Which rows of the state give way is asked of the tail as it is: one record that wins is enough, so the
    keys need no fold before they are sent to the state."""
    rule = spec.rule
    same = F.expr(spec.same_key(TARGET, SOURCE))
    if rule.sequence_by is None:
        heads = F.broadcast(rows.select([F.col(quoted(key)) for key in rule.keys]))
        kept = state.alias(TARGET).join(heads.alias(SOURCE), same, "left_anti")
        return kept.unionAll(last.where(F.col(OP) == UPSERT).select(*spec.columns))
    living, tail = (without_buried(frame, tombstones, spec) for frame in (rows, last))
    names = list(dict.fromkeys([*rule.keys, rule.sequence_by, TXN]))
    heads = F.broadcast(living.select([F.col(quoted(name)) for name in names]))
    own, row = (f"{frame}.{quoted(rule.sequence_by)}" for frame in (SOURCE, TARGET))
    older = is_older(own, f"{SOURCE}.{TXN}", than=row)
    kept = state.alias(TARGET).join(heads.alias(SOURCE), same & ~older, "left_anti")
    lost = (
        state.alias(TARGET)
        .join(F.broadcast(tail.select([F.col(quoted(name)) for name in names])).alias(SOURCE), same & older)
        .select([F.col(SOURCE + "." + quoted(key)).alias(key) for key in rule.keys])
    )
    won = tail.alias(TARGET).join(F.broadcast(lost).alias(SOURCE), same, "left_anti")
    return kept.unionAll(won.where(F.col(OP) == UPSERT).select(*spec.columns))
