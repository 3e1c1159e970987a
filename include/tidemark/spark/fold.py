"""The one fold, on DataFrames: for each key the row that is last by (`sequence_by`, txn, position).

It is `core.fold.fold` with Spark's means, in two spellings of one order. Publish, fresh read and rebuild call
`fold`; ingest, which counts losers too, marks the winners (`is_last`). The same things hold for both:

- Keys are compared null-safe, as grouping does: a NULL part is a value like any other.
- A NULL sequence is older than any other, as in Spark's order of structs.
- Deletes take part like all else; whoever wants only living rows filters `_op` afterwards.

`fold` is an aggregation, so each task first reduces what it has read: a million updates of one key become one
row before anything is shuffled. `is_last` is a window, which sorts once where an aggregation of whole rows
sorts twice, and is the faster one where most keys are there once.

Rows must carry the position columns. Rows of a state have none, and take part as what was before any
transaction (`as_of_state`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import (
    DataType,
    DateType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from tidemark.spark.sql import quoted as quoted  # noqa: PLC0414

TXN: Final = "_txn"
OP: Final = "_op"
PARTITION: Final = "_partition"
OFFSET: Final = "_offset"
ORDINAL: Final = "_ordinal"

UPSERT: Final = "U"
DELETE: Final = "D"

POSITION: Final = (PARTITION, OFFSET, ORDINAL)
"""Where a record stood, in the order in which positions are compared."""

LOG_COLUMNS: Final = (
    StructField(TXN, LongType()),
    StructField(OP, StringType()),
    StructField(PARTITION, StringType()),
    StructField(OFFSET, LongType()),
    StructField(ORDINAL, LongType()),
)
"""What a log has after the declared columns."""

_ROW: Final = "_tidemark_row"


@dataclass(frozen=True, slots=True)
class FoldRule:
    """What identifies a row, and which of two is the newer one."""

    keys: tuple[str, ...]
    sequence_by: str | None = None


def log_schema(declared: StructType) -> StructType:
    """The columns of a shard's log. All are nullable: a delete has its key and sequence only."""
    fields = [StructField(field.name, field.dataType) for field in declared.fields]
    return StructType([*fields, *LOG_COLUMNS])


def order_of(rule: FoldRule) -> str:
    """What `last` means, as SQL text: one comparable value per row, never NULL itself."""
    sequence = [] if rule.sequence_by is None else [quoted(rule.sequence_by)]
    return f"struct({', '.join([*sequence, TXN, *POSITION])})"


def is_last(rule: FoldRule) -> str:
    """Whether a row of one transaction is the last of its key, as SQL text, for who needs the others too.

    It brings all rows of a key together, and leaves them in key order."""
    order = [name for name in (rule.sequence_by, *POSITION) if name is not None]
    latest = ", ".join(f"{quoted(name)} DESC NULLS LAST" for name in order)
    return f"row_number() OVER (PARTITION BY {', '.join(map(quoted, rule.keys))} ORDER BY {latest}) = 1"


def fold(frame: DataFrame, rule: FoldRule) -> DataFrame:
    """The last row of each key, deletes included, with the frame's own columns."""
    names = frame.columns
    rest = [quoted(name) for name in names if name not in rule.keys]
    last = F.expr(f"max_by(struct({', '.join(rest)}), {order_of(rule)}) AS {_ROW}")
    grouped = frame.groupBy(*map(quoted, rule.keys)).agg(last)
    return grouped.selectExpr(
        *[quoted(name) if name in rule.keys else f"{_ROW}.{quoted(name)}" for name in names]
    )


def as_of_state(state: DataFrame) -> DataFrame:
    """A state's rows in the shape of a log's, as what was there before any transaction of the tail."""
    return state.select(
        "*",
        F.lit(0).cast(LongType()).alias(TXN),
        F.lit(UPSERT).alias(OP),
        F.lit("").alias(PARTITION),
        F.lit(0).cast(LongType()).alias(OFFSET),
        F.lit(0).cast(LongType()).alias(ORDINAL),
    )


def sequence_number(column: Column, kind: DataType) -> Column:
    """A sequence as a number, for watermark and lateness: itself, microseconds or days."""
    if isinstance(kind, TimestampType | TimestampNTZType):
        return F.unix_micros(column.cast(TimestampType()))
    if isinstance(kind, DateType):
        return F.unix_date(column).cast(LongType())
    return column.cast(LongType())


def sequence_number_sql(value: str, kind: DataType) -> str:
    """`sequence_number` of SQL text, as SQL text."""
    if isinstance(kind, TimestampType | TimestampNTZType):
        return f"unix_micros(cast({value} as timestamp))"
    if isinstance(kind, DateType):
        return f"cast(unix_date({value}) as bigint)"
    return f"cast({value} as bigint)"


def lateness_number(lateness: int, kind: DataType) -> int:
    """A declared lateness (own unit, seconds or days) in the unit of `sequence_number`."""
    return lateness * 1_000_000 if isinstance(kind, TimestampType | TimestampNTZType) else lateness


def is_too_late(number: Column, *, watermark: int | None, lateness: int | None) -> Column:
    """`core.fold.too_late` for a column of sequence numbers: a NULL is older than any."""
    if watermark is None or lateness is None:
        return F.lit(False)
    return F.coalesce(number < F.lit(watermark - lateness).cast(LongType()), F.lit(True))
