"""The fold on DataFrames: for each key, the last row by (`sequence_by`, txn, position).

Ingest, publish, the fresh read and the rebuild all use this rule. It is associative and commutative, so the
result depends neither on how records were grouped into transactions nor on when a state was published:

- Keys are compared null-safe, as in GROUP BY: a NULL part is a value like any other.
- A NULL sequence is older than any other, as in Spark's struct order. Decoding passes no such row on.
- Deletes take part like upserts. Filter `_op` afterwards to get live rows only.
- A row without an offset is a *correction*, a record of a promotion (`core.generation`). It says what its
  key's row is at its transaction, so it voids the earlier rows of its key (`with_since`); later ones compete
  with it as usual.
- If one transaction has a key in two partitions, and there is no sequence, the partition's name decides, then
  the offset. That is arbitrary but fixed, and the same on every replay (scenario U12).

With a `sequence_by`, a deleted key leaves a tombstone, so that a late older record can't restore it. How long
it must stay follows from the declared lateness and from the records alone: a record whose sequence is more
than `lateness` below the watermark (the highest sequence in earlier transactions) is *too late*, whatever the
state contains, and is set aside. So a tombstone below that line is never needed again and may be removed.

Publish, fresh read and rebuild call `fold`; ingest, which also counts the losing rows, marks the winners with
`is_last`.

The fold is a window function, which moves rows as they are; an aggregation would build a struct of each row
and sort twice. In `fold`, each task drops the losers among its own rows before the shuffle: a million
updates of one key become one row.

Rows must have the position columns.
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
"""A record's position, in the order in which positions are compared."""

LOG_COLUMNS: Final = (
    StructField(TXN, LongType()),
    StructField(OP, StringType()),
    StructField(PARTITION, StringType()),
    StructField(OFFSET, LongType()),
    StructField(ORDINAL, LongType()),
)
"""The columns of a log after the declared ones."""

_RANK: Final = "_tidemark_rank"
SINCE: Final = "_tidemark_since"


@dataclass(frozen=True, slots=True)
class FoldRule:
    """The key columns that identify a row, and the column that orders the rows of a key."""

    keys: tuple[str, ...]
    sequence_by: str | None = None


def log_schema(declared: StructType) -> StructType:
    """The columns of a shard's log. All are nullable: a delete has only its key and sequence."""
    fields = [StructField(field.name, field.dataType) for field in declared.fields]
    return StructType([*fields, *LOG_COLUMNS])


def log_hashed(declared: StructType) -> StructType:
    """The columns that the hash of a log's row covers: the declared ones and the operation."""
    return StructType(list(declared.fields)).add(OP, StringType())


def is_last(rule: FoldRule) -> str:
    """SQL for whether a row of one transaction is the last of its key; the losing rows stay.

    It shuffles all rows of a key together and leaves them in key order.
    """
    return f"{_rank(rule, POSITION)} = 1"


def fold(frame: DataFrame, rule: FoldRule, *, place: tuple[str, ...] = (TXN, *POSITION)) -> DataFrame:
    """The last row of each key, deletes included, with the frame's columns.

    `place` orders the rows of one key and one sequence.
    """
    ranked = frame.selectExpr("*", f"{_rank(rule, place)} AS {_RANK}")
    return ranked.where(f"{_RANK} = 1").drop(_RANK)


def with_since(frame: DataFrame, rule: FoldRule, *, corrects: bool, of_one_txn: bool) -> DataFrame:
    """The rows that no later correction of their key voids, with the last correction's transaction as
    `SINCE`; NULL for none. `corrects` is whether there may be corrections at all."""
    own = f"CASE WHEN isnull({OFFSET}) THEN {TXN} END" if corrects else "cast(NULL AS bigint)"
    if not corrects or of_one_txn:
        return frame.selectExpr("*", f"{own} AS {SINCE}")
    last = f"max({own}) OVER (PARTITION BY {', '.join(map(quoted, rule.keys))})"
    return frame.selectExpr("*", f"{last} AS {SINCE}").where(f"isnull({SINCE}) OR {TXN} >= {SINCE}")


def _rank(rule: FoldRule, place: tuple[str, ...]) -> str:
    """A row's rank among the rows of its key; the last row has rank 1."""
    order = place if rule.sequence_by is None else (rule.sequence_by, *place)
    latest = ", ".join(f"{quoted(name)} DESC NULLS LAST" for name in order)
    return f"row_number() OVER (PARTITION BY {', '.join(map(quoted, rule.keys))} ORDER BY {latest})"


def sequence_number_sql(value: str, kind: DataType) -> str:
    """SQL for a sequence as a number, for watermark and lateness: the value itself, microseconds or days."""
    if isinstance(kind, TimestampType | TimestampNTZType):
        return f"unix_micros(cast({value} as timestamp))"
    if isinstance(kind, DateType):
        return f"cast(unix_date({value}) as bigint)"
    return f"cast({value} as bigint)"


def lateness_number(lateness: int, kind: DataType) -> int:
    """A declared lateness (own unit, seconds or days) in the unit of `sequence_number_sql`."""
    return lateness * 1_000_000 if isinstance(kind, TimestampType | TimestampNTZType) else lateness
