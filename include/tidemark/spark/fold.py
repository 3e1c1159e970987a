"""The one fold, on DataFrames: for each key the row that is last by (`sequence_by`, txn, position).

It is `core.fold.fold` with Spark's means. Publish, fresh read and rebuild call `fold`; ingest, which counts
losers too, marks the winners (`is_last`). The same things hold for both:

- Keys are compared null-safe, as grouping does: a NULL part is a value like any other.
- A NULL sequence is older than any other, as in Spark's order of structs. Decoding lets none through.
- Deletes take part like all else; whoever wants only living rows filters `_op` afterwards.

It is a window, which moves rows as they are, where an aggregation would make a struct of each one and sort
twice. Where only the winners are wanted, each task leaves out the losers among its own rows first: a million
updates of one key become one row before anything is shuffled.

Rows must carry the position columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame
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

_RANK: Final = "_tidemark_rank"


@dataclass(frozen=True, slots=True)
class FoldRule:
    """What identifies a row, and which of two is the newer one."""

    keys: tuple[str, ...]
    sequence_by: str | None = None


def log_schema(declared: StructType) -> StructType:
    """The columns of a shard's log. All are nullable: a delete has its key and sequence only."""
    fields = [StructField(field.name, field.dataType) for field in declared.fields]
    return StructType([*fields, *LOG_COLUMNS])


def log_hashed(declared: StructType) -> StructType:
    """What the hash of a log's row covers: the declared columns and the operation."""
    return StructType(list(declared.fields)).add(OP, StringType())


def is_last(rule: FoldRule) -> str:
    """Whether a row of one transaction is the last of its key, as SQL text, for who needs the others too.

    It brings all rows of a key together, and leaves them in key order."""
    return f"{_rank(rule, POSITION)} = 1"


def fold(frame: DataFrame, rule: FoldRule, *, place: tuple[str, ...] = (TXN, *POSITION)) -> DataFrame:
    """The last row of each key, deletes included, with the frame's own columns.

    `place` tells rows of one key and one sequence apart."""
    ranked = frame.selectExpr("*", f"{_rank(rule, place)} AS {_RANK}")
    return ranked.where(f"{_RANK} = 1").drop(_RANK)


def _rank(rule: FoldRule, place: tuple[str, ...]) -> str:
    """A row's number among those of its key, the last one first."""
    order = place if rule.sequence_by is None else (rule.sequence_by, *place)
    latest = ", ".join(f"{quoted(name)} DESC NULLS LAST" for name in order)
    return f"row_number() OVER (PARTITION BY {', '.join(map(quoted, rule.keys))} ORDER BY {latest})"


def sequence_number_sql(value: str, kind: DataType) -> str:
    """A sequence as a number, for watermark and lateness: itself, microseconds or days.

    SQL text of SQL text."""
    if isinstance(kind, TimestampType | TimestampNTZType):
        return f"unix_micros(cast({value} as timestamp))"
    if isinstance(kind, DateType):
        return f"cast(unix_date({value}) as bigint)"
    return f"cast({value} as bigint)"


def lateness_number(lateness: int, kind: DataType) -> int:
    """A declared lateness (own unit, seconds or days) in the unit of `sequence_number_sql`."""
    return lateness * 1_000_000 if isinstance(kind, TimestampType | TimestampNTZType) else lateness
