"""The columns of a log, and SQL text over columns: quoted names, literals and common expressions.

Expressions over many columns are written as text, which Spark parses once. Building them column by column
in Python took more than five thousand calls into the JVM per transaction, half the time of a small one.
Values from a pipeline file enter SQL only through these functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

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

TXN: Final = "_txn"
OP: Final = "_op"
PARTITION: Final = "_partition"
OFFSET: Final = "_offset"
ORDINAL: Final = "_ordinal"
SINCE: Final = "_tidemark_since"

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


def log_schema(declared: StructType) -> StructType:
    """The columns of a shard's log. All are nullable: a delete has only its key and sequence."""
    fields = [StructField(field.name, field.dataType) for field in declared.fields]
    return StructType([*fields, *LOG_COLUMNS])


def log_hashed(declared: StructType) -> StructType:
    """The columns that the hash of a log's row covers: the declared ones and the operation."""
    return StructType(list(declared.fields)).add(OP, StringType())


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


def quoted(name: str) -> str:
    """A quoted column name; it may contain dots, spaces and backticks."""
    return "`" + name.replace("`", "``") + "`"


def literal(value: str | int | bool) -> str:
    """A value as a SQL literal. Text requires the default of `spark.sql.parser.escapedStringLiterals`."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"{value}L"
    escaped = "".join(_ESCAPED.get(character, character) for character in value)
    return f"'{escaped}'"


# A dollar sign may begin a `${variable}`, which Spark would substitute.
_ESCAPED = {"\\": "\\\\", "'": "\\'", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\0": "\\0", "$": "\\u0024"}


def texts(values: Sequence[str]) -> str:
    """An array of texts."""
    if not values:
        return "cast(array() as array<string>)"
    return f"array({', '.join(map(literal, values))})"


def coalesced(values: Iterable[str]) -> str:
    """The first of these values that is not NULL."""
    return f"coalesce({', '.join(values)}, cast(null as string))"


def case(condition: str, value: str) -> str:
    """The value if the condition holds, else NULL."""
    return f"CASE WHEN {condition} THEN {value} END"


def bytes_text(value: str) -> str:
    """Bytes as text, without loss: as they are if they are valid UTF-8, else as `base64:…`."""
    text = f"cast({value} as string)"
    is_text = f"isnull({value}) OR is_valid_utf8({text})"
    return f"CASE WHEN {is_text} THEN {text} ELSE concat('base64:', base64({value})) END"


def opaque(value: int, *, beside: str) -> str:
    """A number that does not occur in Spark's generated code, since the next transaction has another one.

    A literal would become part of the code, and Spark would compile it again for every transaction.
    `beside` names a column that is never negative; Spark doesn't know that, so it can't fold the
    expression.
    """
    return f"get(from_json('[{value}]', 'array<bigint>'), cast({beside} < 0 as int))"


def key_text(values: Mapping[str, str]) -> str:
    """A key as JSON text, from expressions by name; equal only for equal keys, in any session's time zone."""
    fields = ", ".join(f"{value} AS {quoted(name)}" for name, value in values.items())
    return f"to_json(struct({fields}), {JSON_OPTIONS})"


_EXACT = {
    "ignoreNullFields": "false",
    "timeZone": "UTC",
    # By default a timestamp's text ends at milliseconds, so two values could have the same text.
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
JSON_OPTIONS = f"map({', '.join(literal(text) for pair in _EXACT.items() for text in pair)})"
"""For `to_json`: text without loss, in any session's time zone."""
