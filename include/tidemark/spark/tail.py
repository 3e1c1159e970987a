"""The comparison of a log's tail with the state, by joins: which rows are removed, and which are added.

The tail is folded first. Then rows that lose (older than the state's row or than a tombstone) and rows that
change nothing are dropped, so that a publish writes only changes and a change data feed has only changes
(scenario U6). Keys are compared null-safe everywhere (U13).

The state is read once, and the tail, which is small, is broadcast to its rows (`matching_rows`). The same
pass finds the file and row number of each row to remove (`with_file_positions`), so no second search is
necessary. Files of the state that can't have a key of the tail are not opened.
"""

from __future__ import annotations

from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import (
    ArrayType,
    DataType,
    MapType,
    StructType,
)

from tidemark.core.ids import TXN_NONE
from tidemark.spark.columns import OFFSET, OP, SINCE, TXN, UPSERT, quoted
from tidemark.spark.fold import fold, with_since
from tidemark.spark.state_table import StateSpec
from tidemark.spark.tables import log_files, log_rows, may_correct

FILE: Final = "_tidemark_file"
ROW: Final = "_tidemark_row_index"
OLD_HASH: Final = "_tidemark_before"
REMOVED: Final = "_tidemark_goes"
_PREFIX: Final = "_tidemark_s_"

# A short alias could be the name of one of the shard's columns.
TARGET: Final = "_tidemark_target"
SOURCE: Final = "_tidemark_source"
_DEAD: Final = "_tidemark_dead"

BROADCAST_ROWS_MAX: Final = 1_000_000
"""For a longer tail, Spark chooses the join."""


def folded(rows: DataFrame, spec: StateSpec, *, lower: int, upper: int, corrects: bool = False) -> DataFrame:
    """One row per key of a log's rows with lower <= txn < upper, deletes included: the declared columns,
    `_txn`, `_op` and the key's last correction. The rows of a single transaction are folded already."""
    # A transaction has one row per key, so its position need not be read.
    place = [OFFSET] if corrects else []
    narrow = rows.select(*spec.columns, TXN, OP, *place)
    if not spec.rule.keys:
        return narrow
    of_one_txn = upper - lower <= 1
    known = with_since(narrow, spec.rule, corrects=corrects, of_one_txn=of_one_txn).drop(*place)
    return known if of_one_txn else fold(known, spec.rule, place=(TXN,))


def folded_tail(spark: SparkSession, spec: StateSpec, *, lower: int, upper: int, version: int) -> DataFrame:
    """`folded` of the log's rows with lower <= txn < upper."""
    files = log_files(spec, lower=lower, upper=upper, version=version)
    rows = log_rows(spark, spec, files, lower=lower, upper=upper)
    return folded(rows, spec, lower=lower, upper=upper, corrects=may_correct(spec, files))


def with_file_positions(state: DataFrame) -> DataFrame:
    """A state's columns, with each row's file and row number."""
    return state.select(
        "*", F.col("_metadata.file_path").alias(FILE), F.col("_metadata.row_index").alias(ROW)
    )


def is_older(sequence: str, txn: str, *, than: str, at: str | None = None) -> Column:
    """Whether a record loses to another record of its key or to its row, by (sequence, txn) with NULL
    lowest. It is the fold on columns, as `delta.overlay.is_older` is on arrays. A state's row precedes
    all transactions."""
    other = F.lit(TXN_NONE).cast("bigint") if at is None else F.col(at)
    record, rival = ((F.col(sequence), F.col(txn)), (F.col(than), other))
    return F.struct(*_named(*record)) < F.struct(*_named(*rival))


def loses(sequence: str, txn: str, *, since: str, than: str, at: str | None = None) -> Column:
    """Whether a record of a tail `is_older`, unless a correction of its key has made earlier ones void."""
    return F.col(since).isNull() & is_older(sequence, txn, than=than, at=at)


def _named(sequence: Column, txn: Column) -> tuple[Column, Column]:
    return sequence.alias("sequence"), txn.alias("txn")


def without_tombstoned(tail: DataFrame, tombstones: DataFrame | None, spec: StateSpec) -> DataFrame:
    """The tail without records that are older than their key's tombstone."""
    rule = spec.rule
    if tombstones is None or rule.sequence_by is None:
        return tail
    own, dead = (f"{frame}.{quoted(rule.sequence_by)}" for frame in (SOURCE, _DEAD))
    older = loses(own, f"{SOURCE}.{TXN}", since=f"{SOURCE}.{SINCE}", than=dead, at=f"{_DEAD}.{TXN}")
    buried = F.expr(spec.same_key(SOURCE, _DEAD)) & older
    return tail.alias(SOURCE).join(tombstones.alias(_DEAD), buried, "left_anti")


def equal_values(left: Column, right: Column, kind: DataType) -> Column:
    """Null-safe equality for any type."""
    return comparable(left, kind).eqNullSafe(comparable(right, kind))


def comparable(value: Column, kind: DataType) -> Column:
    """A value with each map in it as the sorted array of its entries, because Spark can't compare maps."""
    if not _has_map(kind):
        return value
    if isinstance(kind, MapType):
        entry = StructType().add("key", kind.keyType).add("value", kind.valueType)
        return F.array_sort(F.transform(F.map_entries(value), lambda one: _comparable_struct(one, entry)))
    if isinstance(kind, ArrayType):
        return F.transform(value, lambda one: comparable(one, kind.elementType))
    return F.when(value.isNotNull(), _comparable_struct(value, kind))


def _comparable_struct(value: Column, kind: DataType) -> Column:
    fields = kind.fields if isinstance(kind, StructType) else []
    return F.struct(
        *[comparable(value.getField(field.name), field.dataType).alias(field.name) for field in fields]
    )


def _has_map(kind: DataType) -> bool:
    if isinstance(kind, MapType):
        return True
    if isinstance(kind, ArrayType):
        return _has_map(kind.elementType)
    return isinstance(kind, StructType) and any(_has_map(field.dataType) for field in kind.fields)


def broadcastable(tail: DataFrame, rows: int) -> DataFrame:
    """The tail as the broadcast side of a join, if it is short enough."""
    return F.broadcast(tail) if rows <= BROADCAST_ROWS_MAX else tail


def matching_rows(tail: DataFrame, state: DataFrame, spec: StateSpec, *, rows: int) -> DataFrame:
    """The state's rows whose key is in the tail: the key, the tail's `_op`, whether the row is removed, its
    hash, its file and row number. A row stays if it is newer, or if an upsert would not change it."""
    renamed = tail.select([F.col(quoted(name)).alias(_PREFIX + name) for name in tail.columns])
    keys = spec.equal({key: (quoted(key), quoted(_PREFIX + key)) for key in spec.rule.keys})
    sequence, op = spec.rule.sequence_by, F.col(_PREFIX + OP)
    newer = F.lit(False)
    if sequence is not None:
        newer = loses(quoted(_PREFIX + sequence), _PREFIX + TXN, since=_PREFIX + SINCE, than=quoted(sequence))
    same = [
        equal_values(F.col(quoted(_PREFIX + f.name)), F.col(quoted(f.name)), f.dataType)
        for f in spec.declared.fields
        if f.name not in spec.rule.keys
    ]
    unchanged = reduce(Column.__and__, same, op == UPSERT)
    pairs = state.join(broadcastable(renamed, rows), F.expr(keys), "inner")
    return pairs.select(
        *[F.col(quoted(key)) for key in spec.rule.keys],
        op.alias(OP),
        (~(newer | unchanged)).alias(REMOVED),
        spec.row_hash.alias(OLD_HASH),
        FILE,
        ROW,
    )


def changes(tail: DataFrame, stays: DataFrame | None, spec: StateSpec, *, rows: int) -> DataFrame:
    """The tail's rows except those for a state's row that stays. Deletions of absent keys are included;
    they have no effect."""
    if stays is None:
        return tail
    keys = F.expr(spec.same_key(SOURCE, TARGET))
    return tail.alias(SOURCE).join(broadcastable(stays, rows).alias(TARGET), keys, "left_anti")
