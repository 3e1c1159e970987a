"""Values that Spark's JSON parser would take for something else: read as text, and judged here.

The parser takes an integer in a TIMESTAMP as seconds, and text like `12:30` as a time of today, whatever the
writer meant. So times and dates are read as text, at any depth, and must be that: a time begins with its year
and month, a date is a date alone or at midnight. Anything else does not fit its column.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from tidemark.spark.sql import case, literal, quoted

_MONTH: Final = r"^[+-]?\d{4,6}-\d{1,2}"
_DATE: Final = _MONTH + r"-\d{1,2}([T ]00:00(:00([.]0+)?)?)?Z?$"
_UNZONED: Final = _MONTH + r"(-\d{1,2}([T ][0-9:.]+)?)?$"
_NUMBER: Final = r"^-?\d+([.]\d+)?$"
CORRUPT: Final = "_corrupt"


def read_json(document: str, fields: Sequence[StructField]) -> str:
    """A document's fields as the parser gives them: all that is judged here as text."""
    read = [StructField(field.name, _read_type(field.dataType)) for field in fields]
    schema = literal(ddl_of([*read, StructField(CORRUPT, StringType())]))
    return f"from_json({document}, {schema}, {reader_options({})})"


def reader_options(more: Mapping[str, str]) -> str:
    """Reader options as a SQL map; what does not fit is kept in the corrupt column, never dropped."""
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT, **more}
    return f"map({', '.join(literal(text) for pair in options.items() for text in pair)})"


def ddl_of(fields: Sequence[StructField]) -> str:
    return ", ".join(f"{quoted(field.name)} {field.dataType.simpleString()}" for field in fields)


def judged(struct: str, fields: Sequence[StructField]) -> str:
    """What `read_json` gave, in the declared types; where something does not fit, it is corrupt too."""
    values = {f.name: (f"{struct}.{quoted(f.name)}", f.dataType) for f in fields}
    if not any(is_judged(kind) for _, kind in values.values()):
        return struct
    wrong = " OR ".join(_misfit(read, kind, 0) for read, kind in values.values() if is_judged(kind))
    corrupt = f"coalesce({struct}.{CORRUPT}, {case(wrong, literal(''))}) AS {CORRUPT}"
    columns = [f"{_value(read, kind, 0)} AS {quoted(name)}" for name, (read, kind) in values.items()]
    return f"if(isnull({struct}), null, struct({', '.join([*columns, corrupt])}))"


def is_judged(kind: DataType) -> bool:
    """Whether a type is one of those that are read as text, or has one inside."""
    match kind:
        case ArrayType():
            return is_judged(kind.elementType)
        case MapType():
            return is_judged(kind.valueType)
        case StructType():
            return any(is_judged(field.dataType) for field in kind.fields)
    return isinstance(kind, DateType | TimestampType | TimestampNTZType)


def advice(found: str, kind: DataType) -> str:
    """What to do about a text that does not fit, as the end of a sentence; empty where the fact says it."""
    if not isinstance(kind, DateType | TimestampType | TimestampNTZType):
        return "''"
    said = ": a number does not say what it counts, and since when; write the time as text"
    return f"CASE WHEN {found} rlike {literal(_NUMBER)} THEN {literal(said)} ELSE '' END"


def _read_type(kind: DataType) -> DataType:
    """What the parser is told that a value is."""
    match kind:
        case ArrayType():
            return ArrayType(_read_type(kind.elementType))
        case MapType():
            return MapType(kind.keyType, _read_type(kind.valueType))
        case StructType():
            return StructType([StructField(f.name, _read_type(f.dataType)) for f in kind.fields])
    return StringType() if is_judged(kind) else kind


def _value(read: str, kind: DataType, depth: int) -> str:
    """A value in its declared type; NULL for a text that is none."""
    if not is_judged(kind):
        return read
    inner = f"x{depth}"
    match kind:
        case ArrayType():
            return f"transform({read}, {inner} -> {_value(inner, kind.elementType, depth + 1)})"
        case MapType():
            value = _value(inner, kind.valueType, depth + 1)
            return f"transform_values({read}, (k{depth}, {inner}) -> {value})"
        case StructType():
            fields = [
                f"{_value(f'{read}.{quoted(f.name)}', f.dataType, depth)} AS {quoted(f.name)}"
                for f in kind.fields
            ]
            return f"if(isnull({read}), null, struct({', '.join(fields)}))"
    return _time(read, kind)


def _time(read: str, kind: DataType) -> str:
    """The time or date of a text."""
    match kind:
        case DateType():
            return case(f"{read} rlike {literal(_DATE)}", f"try_cast(trim(TRAILING 'Z' FROM {read}) as date)")
        case TimestampNTZType():
            return case(f"{read} rlike {literal(_UNZONED)}", f"try_cast({read} as timestamp_ntz)")
    return case(f"{read} rlike {literal(_MONTH)}", f"try_cast({read} as timestamp)")


def _misfit(read: str, kind: DataType, depth: int) -> str:
    """Whether a value, or one inside of it, is there and does not fit."""
    inner = f"x{depth}"
    match kind:
        case ArrayType():
            return (
                f"coalesce(exists({read}, {inner} -> {_misfit(inner, kind.elementType, depth + 1)}), false)"
            )
        case MapType():
            wrong = _misfit(inner, kind.valueType, depth + 1)
            return f"coalesce(exists(map_values({read}), {inner} -> {wrong}), false)"
        case StructType():
            parts = [(f"{read}.{quoted(f.name)}", f.dataType) for f in kind.fields if is_judged(f.dataType)]
            return f"({' OR '.join(_misfit(part, of, depth) for part, of in parts)})"
    return f"(isnotnull({read}) AND isnull({_value(read, kind, depth)}))"
