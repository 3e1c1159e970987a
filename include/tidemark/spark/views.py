"""The ways to read a shard: its state, its fresh rows, its log, batches of changes, and its open errors.

`fresh` is the state with the log's tail folded in. It is exact at a transaction: it reads the state at its
recorded version and the tail at a pinned version of the log, so concurrent appends and publishes make no
difference (Invariant 15). The tail's keys are broadcast to the state's rows, and its folded rows are added
to the rows that remain.

`changes_of` is one Spark read of exactly the listed files. Every read of a batch verifies the checksums of
pages: without that, Parquet can silently return another value for a flipped bit.

`open_errors` are the quarantined records whose key has no later good row (scenario E2). Nothing is stored
for it. A bad record of a known key is open until the shard's log has a row of that key that is later by
(transaction, position). A promotion has the errors that its generation still has open, and ends all others.
Keys are compared as their text in quarantine, in which a NULL part is a value like
any other (U13).

Known limitations: a record that is unreadable, or has an unreadable key part, has no key in quarantine and
is never an open error. With `sequence_by`, a good record that follows the error but has an older sequence
leaves no row if a newer one in the same transaction does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import LongType, StringType, StructField, StructType

from tidemark.core.errors import InvalidUsage
from tidemark.core.ids import QUARANTINE, TXN_FIRST, TXN_NONE, ShardId, Txn, next_txn
from tidemark.core.log import Condition, LogFile
from tidemark.core.publish import VERSION_NONE, HistoryGone, Published
from tidemark.core.seal import Part
from tidemark.delta.state_status import lost_files
from tidemark.spark.columns import (
    DELETE,
    LOG_COLUMNS,
    OFFSET,
    OP,
    ORDINAL,
    PARTITION,
    POSITION,
    SINCE,
    TXN,
    UPSERT,
    key_text,
    literal,
    log_schema,
    quoted,
)
from tidemark.spark.decode import KEY, REASON, SHARD
from tidemark.spark.read import RAW
from tidemark.spark.session import ROWS_FEW, confs_set
from tidemark.spark.state_table import StateSpec
from tidemark.spark.tables import (
    at_version,
    log_files,
    log_paths,
    log_rows,
    may_correct,
    newer_rows,
    no_rows,
    same_rows,
    with_filled_keys,
)
from tidemark.spark.tail import SOURCE, TARGET, broadcastable, folded, loses, without_tombstoned
from tidemark.spark.tombstones import last_tombstones, read_tombstones, tombstones_in, without_corrected

_STATE_ROWS_FEW = 20 * ROWS_FEW


@dataclass(frozen=True, slots=True)
class Pins:
    """The versions that a read is pinned to: a publish (or none yet), a version of the log and its upper.
    `begins` is the transaction that the log was begun anew with; a publish from before it is no base."""

    base: Published | None
    log_version: int
    upper: Txn
    begins: Txn = TXN_NONE

    @property
    def lower(self) -> Txn:
        return max(next_txn(self.base.txn if self.base is not None else TXN_NONE), self.begins)


def read_state(spark: SparkSession, spec: StateSpec, base: Published) -> DataFrame:
    """The state of a publish. Raises `HistoryGone` if files of its version were removed."""
    return _state_at(spark, spec, base, same_rows(spec, spec.state, base.version))


def _state_at(spark: SparkSession, spec: StateSpec, base: Published, version: int) -> DataFrame:
    lost = lost_files(spec.state, version, spec.storage_options)
    if lost:
        raise HistoryGone(ShardId(spec.name), base, lost=lost)
    return with_declared_columns(at_version(spark, spec.state, version), spec).select(*spec.columns)


def with_declared_columns(rows: DataFrame, spec: StateSpec) -> DataFrame:
    """Rows with all declared columns; a column that the table's version lacks is NULL."""
    there = set(rows.columns)
    lacking = {f.name: F.lit(None).cast(f.dataType) for f in spec.declared.fields if f.name not in there}
    return rows.withColumns(lacking) if lacking else rows


def read_log(spark: SparkSession, spec: StateSpec, pins: Pins, *, lower: Txn = TXN_FIRST) -> DataFrame:
    """The log's rows from `lower` on, below the pinned upper, with their transaction and position."""
    if pins.log_version == VERSION_NONE:
        return no_rows(spark, log_schema(spec.declared))
    files = log_files(spec, lower=lower, upper=pins.upper, version=pins.log_version)
    return log_rows(spark, spec, files, lower=lower, upper=pins.upper)


def is_small(spec: StateSpec, pins: Pins) -> bool:
    """Whether there are so few rows that compiling code for them would be most of the work."""
    if pins.base is not None and pins.base.commit.digest.count > _STATE_ROWS_FEW:
        return False
    return sum(file.part.rows for file in tail_files(spec, pins) or ()) <= ROWS_FEW


def tail_at(spark: SparkSession, spec: StateSpec, pins: Pins) -> DataFrame | None:
    """The folded tail above the pinned publish, without tombstoned records; None if there is no tail."""
    files = tail_files(spec, pins)
    if files is None:
        return None
    tail = _folded(log_rows(spark, spec, files, lower=pins.lower, upper=pins.upper), files, spec, pins)
    return without_tombstoned(tail, read_tombstones(spark, spec, pins.base), spec)


def _folded(rows: DataFrame, files: Sequence[LogFile], spec: StateSpec, pins: Pins) -> DataFrame:
    """The rows of a tail's files folded."""
    return folded(rows, spec, lower=pins.lower, upper=pins.upper, corrects=may_correct(spec, files))


def tail_files(spec: StateSpec, pins: Pins) -> list[LogFile] | None:
    """The log's files that have rows above the pinned publish; None if there is no tail."""
    if pins.upper < pins.lower:
        raise InvalidUsage(
            f"a read below transaction {pins.upper} can't start from the publish of transaction"
            f" {pins.lower - 1}"
        )
    if pins.upper == pins.lower or pins.log_version == VERSION_NONE:
        return None
    return log_files(spec, lower=pins.lower, upper=pins.upper, version=pins.log_version)


def tombstones(spark: SparkSession, spec: StateSpec, pins: Pins) -> DataFrame | None:
    """The last tombstone of each key below the pinned upper, the tail included; None if the shard has none. A
    live key may have an older one."""
    if spec.rule.sequence_by is None or not spec.rule.keys:
        return None
    base, tail = read_tombstones(spark, spec, pins.base), tail_at(spark, spec, pins)
    if tail is None:
        return base if base is None else last_tombstones(base, spec)
    added = tombstones_in(tail, spec)
    if base is None:
        return added
    return last_tombstones(without_corrected(base, tail, spec).unionAll(added), spec)


def fresh(spark: SparkSession, spec: StateSpec, pins: Pins) -> DataFrame:
    """The current row of each key below the pinned upper, in the declared columns."""
    files = tail_files(spec, pins)
    if files is None:
        if pins.base is None:
            return no_rows(spark, spec.declared)
        return read_state(spark, spec, pins.base)
    rows = log_rows(spark, spec, files, lower=pins.lower, upper=pins.upper)
    last = _folded(rows, files, spec, pins)
    if pins.base is None:
        return last.where(F.col(OP) == UPSERT).select(*spec.columns)
    version = same_rows(spec, spec.state, pins.base.version)
    state = _state_at(spark, spec, pins.base, version)
    if not spec.rule.keys:
        return state.unionAll(rows.select(*spec.columns))
    short = partial(broadcastable, rows=sum(file.part.rows for file in files))
    spec = with_filled_keys(spec, files)
    # A correction voids other rows of the tail, so only the folded ones say what the state loses.
    heads = last if may_correct(spec, files) else rows.withColumn(SINCE, F.lit(None).cast("bigint"))
    if spec.rule.sequence_by is None:
        return _with_tail(state, heads, last, None, spec, short)
    dead = read_tombstones(spark, spec, pins.base)
    if dead is not None:
        keys = short(rows.select([F.col(quoted(key)) for key in spec.rule.keys]))
        same = F.expr(spec.same_key(TARGET, SOURCE))
        # Only these are compared with the tail, so that neither is shuffled where the tail is short.
        dead = short(dead.alias(TARGET).join(keys.alias(SOURCE), same, "left_semi"))
    living, tail = (without_tombstoned(frame, dead, spec) for frame in (heads, last))
    newer = newer_rows(state, files, spec, version=version)
    return _with_tail(state, living, tail, newer, spec, short)


def _with_tail(
    state: DataFrame,
    rows: DataFrame,
    tail: DataFrame,
    newer: DataFrame | None,
    spec: StateSpec,
    short: Callable[[DataFrame], DataFrame],
) -> DataFrame:
    """The state with a tail over it: its rows, and the last of each key. `newer` are the state's rows that
    may win against a record; None if the tail wins every key that it has. `short` broadcasts rows of the
    tail, if it is short enough.

    The rows that the state loses are found with the unfolded tail, unless it has corrections: one winning
    record is enough, so the keys need no fold before they are broadcast.
    """
    rule = spec.rule
    same = F.expr(spec.same_key(TARGET, SOURCE))
    if rule.sequence_by is None or newer is None:
        heads = short(rows.select([F.col(quoted(key)) for key in rule.keys]))
        kept = state.alias(TARGET).join(heads.alias(SOURCE), same, "left_anti")
        return kept.unionAll(tail.where(F.col(OP) == UPSERT).select(*spec.columns))
    names = list(dict.fromkeys([*rule.keys, rule.sequence_by, TXN, SINCE]))
    heads = short(rows.select([F.col(quoted(name)) for name in names]))
    own, row = (f"{frame}.{quoted(rule.sequence_by)}" for frame in (SOURCE, TARGET))
    older = loses(own, f"{SOURCE}.{TXN}", since=f"{SOURCE}.{SINCE}", than=row)
    kept = state.alias(TARGET).join(heads.alias(SOURCE), same & ~older, "left_anti")
    lost = (
        newer.alias(TARGET)
        .join(short(tail.select([F.col(quoted(name)) for name in names])).alias(SOURCE), same & older)
        .select([F.col(SOURCE + "." + quoted(key)).alias(key) for key in rule.keys])
    )
    won = tail.alias(TARGET).join(short(lost).alias(SOURCE), same, "left_anti")
    return kept.unionAll(won.where(F.col(OP) == UPSERT).select(*spec.columns))


# Batches of changes.

CHECK_PAGES: Final = "parquet.page.verify-checksum.enabled"
LISTING: Final = {"spark.sql.sources.parallelPartitionDiscovery.parallelism": "16"}
"""Spark lists many files in a job, by default with one task per file."""


def log_changes(
    spark: SparkSession,
    spec: StateSpec,
    parts: Sequence[Part],
    *,
    lower: Txn,
    upper: Txn,
    conditions: Sequence[Condition] = (),
) -> DataFrame:
    """The log's rows with lower <= txn < upper: the declared columns, `_txn`, `_op` and the position."""
    schema = log_schema(spec.declared)
    if not parts:
        return no_rows(spark, schema)
    files = [f"{spec.log}/{part.path}" for part in parts]
    with confs_set(spark, LISTING):
        rows = spark.read.schema(schema).option(CHECK_PAGES, "true").parquet(*files)
    return _matching(rows.where(f"{TXN} >= {lower}L AND {TXN} < {upper}L"), spec, conditions)


def rows_as_changes(
    rows: DataFrame, spec: StateSpec, *, as_of: Txn, conditions: Sequence[Condition] = ()
) -> DataFrame:
    """A shard's current rows in the columns of changes: upserts at transaction `as_of`, without a position,
    because their original records may be gone."""
    made = {TXN: F.lit(as_of), OP: F.lit(UPSERT)}
    added = [made.get(one.name, F.lit(None)).cast(one.dataType).alias(one.name) for one in LOG_COLUMNS]
    return _matching(rows.select(*spec.columns, *added), spec, conditions)


def _matching(rows: DataFrame, spec: StateSpec, conditions: Sequence[Condition]) -> DataFrame:
    """The rows that meet every condition. A delete has only its key's values, so it meets all other
    conditions."""
    met = [_condition(one) if one.column in spec.rule.keys else _or_delete(one) for one in conditions]
    return rows.where(reduce(Column.__and__, met)) if met else rows


def _or_delete(condition: Condition) -> Column:
    return _condition(condition) | (F.col(OP) == DELETE)


def _condition(condition: Condition) -> Column:
    column, value = F.col(quoted(condition.column)), F.lit(condition.value)
    match condition.comparison:
        case "=":
            return column == value
        case "<":
            return column < value
        case "<=":
            return column <= value
        case ">":
            return column > value
        case _:
            return column >= value


# Open errors.

_TYPES: Final = {TXN: LongType(), OFFSET: LongType(), ORDINAL: LongType()}
RECORD: Final = StructType(
    [
        StructField(name, _TYPES.get(name, StringType()))
        for name in (TXN, SHARD, KEY, RAW, REASON, PARTITION, OFFSET, ORDINAL)
    ]
)
"""The columns of a record in the quarantine's log."""

_WHEN: Final = f"struct({', '.join((TXN, *POSITION))})"
_LAST: Final = "_last"


@dataclass(frozen=True, slots=True)
class ErrorPins:
    """The versions that are read: one of each log, and the upper. Records of transactions below `lower` are
    no open errors: the promotion there has those of before that are still open."""

    quarantine_version: int
    log_version: int
    upper: Txn
    lower: Txn = TXN_FIRST


def open_errors(spark: SparkSession, spec: StateSpec, quarantine_uri: str, pins: ErrorPins) -> DataFrame:
    """The shard's open errors, in the columns of the quarantine's log; empty for a shard without keys."""
    errors = _errors(spark, spec, quarantine_uri, pins)
    lower = errors.agg(F.min(TXN)).collect()[0][0] if errors is not None else None
    if errors is None or lower is None:
        return no_rows(spark, RECORD)
    if pins.log_version == VERSION_NONE:
        return errors
    tail = log_files(spec, lower=lower, upper=pins.upper, version=pins.log_version)
    rows = log_rows(spark, spec, tail, lower=lower, upper=pins.upper)
    key = key_text({name: quoted(name) for name in spec.rule.keys})
    keyed = rows.selectExpr(f"{key} AS {KEY}", f"{_WHEN} AS {_LAST}")
    # The log may be long; only rows of keys with errors pass.
    last = keyed.join(errors.select(KEY), KEY, "left_semi").groupBy(KEY).agg(F.max(_LAST).alias(_LAST))
    still = errors.join(last, KEY, "left").where(f"{_LAST} IS NULL OR {_LAST} < {_WHEN}")
    return still.select(*RECORD.names)


def quarantined(spark: SparkSession, spec: StateSpec, uri: str, pins: ErrorPins) -> DataFrame:
    """The records of all shards in quarantine, below the pinned upper; `spec` is any shard's."""
    found = _records(spark, spec, uri, pins)
    return found if found is not None else no_rows(spark, RECORD)


def _errors(spark: SparkSession, spec: StateSpec, uri: str, pins: ErrorPins) -> DataFrame | None:
    """The shard's records in quarantine that have a key; None if there can't be any."""
    records = _records(spark, spec, uri, pins) if spec.rule.keys else None
    if records is None:
        return None
    lower = literal(int(pins.lower))
    return records.where(f"{SHARD} = {literal(spec.name)} AND {KEY} IS NOT NULL AND {TXN} >= {lower}")


def _records(spark: SparkSession, spec: StateSpec, uri: str, pins: ErrorPins) -> DataFrame | None:
    if pins.quarantine_version == VERSION_NONE:
        return None
    log = replace(spec, name=QUARANTINE, uri=uri)
    files = log_files(log, lower=0, upper=pins.upper, version=pins.quarantine_version)
    if not files:
        return None
    records = spark.read.schema(RECORD).parquet(*log_paths(log, files))
    return records.where(f"{TXN} < {literal(int(pins.upper))}")
