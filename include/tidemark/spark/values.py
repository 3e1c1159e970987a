"""Values that Spark's parsers would misread: they are read in another type and checked here.

Times and dates. The JSON parser takes an integer in a TIMESTAMP as seconds, and both it and the CSV parser
take text like `12:30` as a time of today. So times and dates are read as text, at any depth: a time must
begin with its year and month, a date must be a date alone or at midnight. Any other value does not fit its
column.

Decimals are never rounded; one with more digits than its column does not fit. The parsers round, so a
number is read with as many decimal places as there is room for, and must equal the value that the column
can hold. A type with many digits leaves little room; then the number's own text is checked too.

Debezium writes numbers: days in a DATE, and in a TIMESTAMP milli-, micro- or nanoseconds, by the record's
schema or, without one, by the connector's setting. A DECIMAL is the number, its text, or the base64 of its
unscaled value, by the connector's setting; a schema that contradicts the setting makes the record bad.

Unchanged TOAST values. PostgreSQL stores big values outside their rows. For an update it sends only those
that changed, unless the table has `REPLICA IDENTITY FULL`. For a value that it did not get, Debezium writes

==========================================  ==========================================================
a text, JSON or bytes                       a placeholder text
an array of texts                           the placeholder as its one element
an array of uuids                           the uuid that Java derives from the placeholder
an array of INTEGER, BIGINT, some of DATE   the character codes of the placeholder
an array of anything else                   NULL, as if the row had none
==========================================  ==========================================================

If the record of an update has a `before`, as with full identity, NULL is the row's value. Without a
`before` it is ambiguous, so such a record is bad, and the row keeps its value. A row that changes its key
is inserted anew with the same gaps; a header distinguishes it from other insertions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from tidemark.config import PipelineConfig
from tidemark.config.source import Debezium
from tidemark.spark.columns import case, literal, quoted
from tidemark.spark.read import RECORD

_DIGITS_MAX: Final = 38
_ROOM_DIGITS: Final = 18
"""The decimal places that a double may have, so that results of double arithmetic are detected."""
_HEX: Final = "'0123456789ABCDEF'"


# Decimals.


def read_type(kind: DecimalType, mode: str) -> DataType:
    """The type in which a parser reads a decimal. Text would not keep the digits of a JSON number."""
    whole = DecimalType(_DIGITS_MAX, _DIGITS_MAX - kind.precision + kind.scale)
    return {"precise": BinaryType(), "double": DoubleType()}.get(mode, whole)


def of_number(read: str, kind: DecimalType, *, text: str) -> str:
    """The decimal of a number that was read with room; `text` is its original text, empty if unknown."""
    number = f"try_cast({read} as {kind.simpleString()})"
    fits = f"{number} = {read}"
    if text and _DIGITS_MAX - kind.precision < _ROOM_DIGITS:
        longer = literal(rf"[.]\d{{{kind.scale}}}\d*[1-9]\d*$")
        fits += f" AND NOT coalesce({text} rlike {longer}, false)"
    return case(fits, number)


def of_double(read: str, kind: DecimalType) -> str:
    """The decimal of a double: its shortest text is the intended number."""
    number = f"try_cast(cast({read} as string) as {kind.simpleString()})"
    return case(f"cast({number} as double) = {read}", number)


def of_bytes(read: str, kind: DecimalType) -> str:
    """The decimal of an unscaled value as big-endian bytes."""
    text = f"concat(cast({_unscaled(read)} as string), 'E-{kind.scale}')"
    return case(f"octet_length({read}) BETWEEN 1 AND 16", f"try_cast({text} as {kind.simpleString()})")


def _unscaled(read: str) -> str:
    """The signed number of up to 16 big-endian bytes. It is computed from two halves, for a negative number
    from its complement, so that no step has more digits than the number."""
    negative = f"substring(hex({read}), 1, 1) >= '8'"
    digits = f"CASE WHEN {negative} THEN translate(hex({read}), {_HEX}, reverse({_HEX})) ELSE hex({read}) END"
    halves = [f"substring(lpad({digits}, 32, '0'), {start}, 16)" for start in (1, 17)]
    high, low = (f"cast(conv({half}, 16, 10) as decimal(20,0))" for half in halves)
    number = f"try_add(try_multiply({high}, 18446744073709551616BD), {low})"
    return f"CASE WHEN {negative} THEN try_subtract(-1BD, {number}) ELSE {number} END"


# Unchanged TOAST values.

PARTIAL: Final = "_partial"
"""Whether the record's change may omit unchanged values."""
PLACEHOLDER: Final = "__debezium_unavailable_value"
ADVICE: Final = "ALTER TABLE … REPLICA IDENTITY FULL has it sent"
_UUID: Final = "b68a35a7-17ad-35b3-af2a-ae46edb4545a"
_CODES: Final = literal(",".join(str(code) for code in PLACEHOLDER.encode()))
_REASON: Final = "column '"


def partial(*, keyed: bool) -> str:
    """`_partial`, for an opened envelope."""
    moved = f"exists({RECORD}.headers, h -> h.key = '__debezium.oldkey')" if keyed else "false"
    return f"isnull(_inner.before) AND (_inner.op = 'u' OR coalesce({moved}, false)) AS {PARTIAL}"


def is_toasted(read: str, kind: DataType) -> str | None:
    """SQL for whether an array was not sent; None for types that are not checked here."""
    if not isinstance(kind, ArrayType):
        return None
    missing = f"(isnull({read}) AND {PARTIAL})"
    codes = f"coalesce(concat_ws(',', cast({read} as array<string>)) = {_CODES}, false)"
    match kind.elementType:
        case StringType():
            marks = f"array({literal(PLACEHOLDER)}, {literal(_UUID)})"
            return f"coalesce(arrays_overlap({read}, {marks}), false)"
        case IntegerType() | LongType():
            return codes
        case DateType():
            return f"({codes} OR {missing})"
    return missing


def reason(column: str) -> str:
    """Why a record with such an array is bad."""
    return f"{_REASON}{column}' is not in the record: an update does not send it; {ADVICE}"


def toast_reason(corrupt: str) -> str:
    """The reason in the column for corrupt records; NULL for any other text in it."""
    return f"CASE WHEN startswith({corrupt}, {literal(_REASON)}) THEN {corrupt} END"


# Times, dates, and the check of all types.

_MONTH: Final = r"^(?!0000)\d{4}-\d{1,2}"
_DATE: Final = _MONTH + r"-\d{1,2}([T ]00:00(:00([.]0+)?)?)?Z?$"
_UNZONED: Final = _MONTH + r"(-\d{1,2}([T ][0-9:.]+)?)?"
_INTEGER: Final = r"^-?\d+$"
_NUMBER: Final = r"^-?\d+([.]\d+)?$"
_DAYS: Final = (-719_162, 2_932_896)
_MICROS: Final = (-62_135_596_800_000_000, 253_402_300_799_999_999)
"""The years 1 to 9999, as in the texts above: other readers of the tables support no others."""
_DECIMAL: Final = literal("org.apache.kafka.connect.data.Decimal")
_DAYS_NAMES: Final = "'io.debezium.time.Date', 'org.apache.kafka.connect.data.Date'"
_UNITS: Final = {
    "io.debezium.time.Timestamp": "ms",
    "org.apache.kafka.connect.data.Timestamp": "ms",
    "io.debezium.time.MicroTimestamp": "us",
    "io.debezium.time.NanoTimestamp": "ns",
}
_MODE_UNITS: Final = {"connect": "ms", "microseconds": "us", "nanoseconds": "ns"}
CORRUPT: Final = "_corrupt"
TYPES: Final = "_types"
"""The column types in the record's own schema; NULL if it has none."""
_LOGICAL: Final = "name:string,parameters:struct<scale:string>"
TYPES_TYPE: Final = f"array<struct<field:string,{_LOGICAL},items:struct<{_LOGICAL}>>>"


@dataclass(frozen=True, slots=True)
class ValueEncoding:
    """How the source writes times and decimals: by a connector's settings, or as text."""

    debezium: Debezium | None = None
    decimals: str = "string"

    @classmethod
    def of(cls, config: PipelineConfig) -> ValueEncoding:
        """The settings of a pipeline's configuration."""
        if config.envelope != "debezium" or config.source.type == "postgres":
            return cls()
        settings = config.debezium or Debezium()
        # Avro's decimals are converted to numbers before they get here.
        mode = settings.decimal_handling_mode if config.source.format == "json" else None
        return cls(settings, mode or "string")

    @property
    def unit(self) -> str:
        """The unit of a number in a TIMESTAMP, if the record has no schema."""
        return _MODE_UNITS.get(self.debezium.time_precision_mode, "") if self.debezium else ""

    @property
    def days(self) -> bool:
        """Whether a number in a DATE counts days, if the record has no schema."""
        return self.debezium is not None and self.debezium.time_precision_mode != "isostring"

    def read_json(self, document: str, fields: Sequence[StructField]) -> str:
        """A document's fields from the parser; the types that are checked here are read in another type."""
        schema = literal(ddl_of([*self.read_fields(fields), StructField(CORRUPT, StringType())]))
        return f"from_json({document}, {schema}, {reader_options({})})"

    def read_fields(self, fields: Sequence[StructField]) -> list[StructField]:
        """The fields in the types that the parser uses."""
        return [StructField(field.name, self._read_type(field.dataType)) for field in fields]

    def judged(
        self, struct: str, fields: Sequence[StructField], *, text: Callable[[str], str] | None = None
    ) -> str:
        """The parser's result in the declared types; a value that does not fit makes the record corrupt.
        `text` returns the original text of a field."""
        judges = {
            f.name: _ValueCheck.of(self, f.name, text(f.name) if text is not None else "") for f in fields
        }
        values = [(f"{struct}.{quoted(f.name)}", f.dataType, judges[f.name]) for f in fields]
        wrong = [judge.misfit(read, kind) for read, kind, judge in values if self.judges(kind)]
        toasted = [
            case(toast, literal(reason(name))) for name, toast in self._toasted(struct, fields).items()
        ]
        if not wrong and not toasted:
            return struct
        marks = [*toasted, *([case(" OR ".join(wrong), literal(""))] if wrong else [])]
        corrupt = f"coalesce({struct}.{CORRUPT}, {', '.join(marks)}) AS {CORRUPT}"
        named = zip(fields, values, strict=True)
        columns = [f"{judge.value(read, kind)} AS {quoted(f.name)}" for f, (read, kind, judge) in named]
        return f"if(isnull({struct}), null, struct({', '.join([*columns, corrupt])}))"

    def _toasted(self, struct: str, fields: Sequence[StructField]) -> dict[str, str]:
        """By column, whether the connector did not send it."""
        if self.debezium is None:
            return {}
        found = {f.name: is_toasted(f"{struct}.{quoted(f.name)}", f.dataType) for f in fields}
        return {name: toast for name, toast in found.items() if toast is not None}

    def judges(self, kind: DataType) -> bool:
        """Whether a type, or one inside it, is checked here."""
        match kind:
            case ArrayType():
                return self.judges(kind.elementType)
            case MapType():
                return self.judges(kind.valueType)
            case StructType():
                return any(self.judges(field.dataType) for field in kind.fields)
            case StringType() | BinaryType():
                return self.debezium is not None
        return isinstance(kind, DateType | DecimalType | TimestampType | TimestampNTZType)

    def advice(self, found: str, kind: DataType) -> str:
        """The remedy for a value that does not fit, as the end of a sentence; empty if there is none."""
        if not self.judges(kind) or isinstance(kind, ArrayType | MapType | StructType):
            return "''"
        if isinstance(kind, StringType | BinaryType):
            return literal(f": an update does not send it; {ADVICE}")
        if isinstance(kind, DecimalType):
            return literal(f" (debezium.decimal_handling_mode is {self.decimals})" if self.debezium else "")
        advice = ": a number has no unit and no epoch; write the time as text"
        if self.debezium is not None:
            advice = (
                ": its unit is not known; send schemas along, or set time.precision.mode in the connector"
            )
            advice += " to microseconds or isostring, and debezium.time_precision_mode here"
        return f"CASE WHEN {found} rlike {literal(_NUMBER)} THEN {literal(advice)} ELSE '' END"

    def _read_type(self, kind: DataType) -> DataType:
        """The type in which the parser reads a value."""
        match kind:
            case ArrayType():
                return ArrayType(self._read_type(kind.elementType))
            case MapType():
                return MapType(kind.keyType, self._read_type(kind.valueType))
            case StructType():
                return StructType([StructField(f.name, self._read_type(f.dataType)) for f in kind.fields])
            case DecimalType():
                return read_type(kind, self.decimals)
            case BinaryType():
                return kind
        return StringType() if self.judges(kind) else kind


@dataclass(frozen=True, slots=True)
class _ValueCheck:
    """Checks the values of one column. `name` and `scale` are from the record's schema; `text` is the
    original text, empty if unknown."""

    writing: ValueEncoding
    name: str
    scale: str
    text: str
    depth: int = 0

    @classmethod
    def of(cls, writing: ValueEncoding, column: str, text: str) -> _ValueCheck:
        found = f"get(filter({TYPES}, f -> f.field = {literal(column)}), 0)"
        name = f"coalesce({found}.name, {found}.items.name)"
        scale = f"coalesce({found}.parameters.scale, {found}.items.parameters.scale)"
        return cls(writing, name, scale, text)

    @property
    def _deeper(self) -> _ValueCheck:
        return replace(self, text="", depth=self.depth + 1)

    def value(self, read: str, kind: DataType) -> str:
        """A value in its declared type; NULL if it does not fit."""
        if not self.writing.judges(kind):
            return read
        inner = f"x{self.depth}"
        match kind:
            case ArrayType():
                return f"transform({read}, {inner} -> {self._deeper.value(inner, kind.elementType)})"
            case MapType():
                value = self._deeper.value(inner, kind.valueType)
                return f"transform_values({read}, (k{self.depth}, {inner}) -> {value})"
            case StructType():
                inside = replace(self, text="")
                fields = [
                    f"{inside.value(f'{read}.{quoted(f.name)}', f.dataType)} AS {quoted(f.name)}"
                    for f in kind.fields
                ]
                return f"if(isnull({read}), null, struct({', '.join(fields)}))"
            case DecimalType():
                return self._decimal(read, kind)
            case StringType() | BinaryType():
                return case(f"{read} != cast({literal(PLACEHOLDER)} as {kind.simpleString()})", read)
        return self._time(read, kind)

    def misfit(self, read: str, kind: DataType) -> str:
        """Whether a value, or one inside it, is present and does not fit."""
        inner = f"x{self.depth}"
        match kind:
            case ArrayType():
                wrong = self._deeper.misfit(inner, kind.elementType)
                return f"coalesce(exists({read}, {inner} -> {wrong}), false)"
            case MapType():
                wrong = self._deeper.misfit(inner, kind.valueType)
                return f"coalesce(exists(map_values({read}), {inner} -> {wrong}), false)"
            case StructType():
                parts = [(f"{read}.{quoted(f.name)}", f.dataType) for f in kind.fields]
                inside = replace(self, text="")
                wrongs = [inside.misfit(part, of) for part, of in parts if self.writing.judges(of)]
                return f"({' OR '.join(wrongs)})"
        return f"(isnotnull({read}) AND isnull({self.value(read, kind)}))"

    def _time(self, read: str, kind: DataType) -> str:
        """The time or date of a text, or of a number with a known unit."""
        of_connector = self.writing.debezium is not None
        match kind:
            case DateType():
                text = case(
                    f"{read} rlike {literal(_DATE)}", f"try_cast(trim(TRAILING 'Z' FROM {read}) as date)"
                )
                number = self._date(read)
            case TimestampNTZType():
                # Debezium writes a time without a zone as if it were UTC.
                ends = "Z?$" if of_connector else "$"
                text = case(f"{read} rlike {literal(_UNZONED + ends)}", f"try_cast({read} as timestamp_ntz)")
                number = f"cast({self._timestamp(read)} as timestamp_ntz)"
            case _:
                # A zone may move a time out of the supported years.
                time = f"try_cast({read} as timestamp)"
                fits = f"unix_micros({time}) BETWEEN {_MICROS[0]}L AND {_MICROS[1]}L"
                text = case(f"{read} rlike {literal(_MONTH)} AND {fits}", time)
                number = self._timestamp(read)
        return (
            f"CASE WHEN {read} rlike {literal(_INTEGER)} THEN {number} ELSE {text} END"
            if of_connector
            else text
        )

    def _date(self, read: str) -> str:
        counts_days = f"{self.name} IN ({_DAYS_NAMES})"
        counts = f"CASE WHEN isnull({TYPES}) THEN {literal(self.writing.days)} ELSE {counts_days} END"
        number = f"try_cast({read} as int)"
        return case(
            f"{counts} AND {number} BETWEEN {_DAYS[0]} AND {_DAYS[1]}", f"date_from_unix_date({number})"
        )

    def _timestamp(self, read: str) -> str:
        number = f"try_cast({read} as bigint)"
        by_name = " ".join(f"WHEN {literal(name)} THEN '{unit}'" for name, unit in _UNITS.items())
        unit = f"CASE WHEN isnull({TYPES}) THEN '{self.writing.unit}' ELSE CASE {self.name} {by_name} END END"
        micros = (
            f"CASE {unit} WHEN 'ms' THEN try_multiply({number}, 1000L) WHEN 'us' THEN {number}"
            f" WHEN 'ns' THEN try_subtract({number}, pmod({number}, 1000L)) div 1000L END"
        )
        return case(f"{micros} BETWEEN {_MICROS[0]}L AND {_MICROS[1]}L", f"timestamp_micros({micros})")

    def _decimal(self, read: str, kind: DecimalType) -> str:
        match self.writing.decimals:
            case "precise":
                fits = f"{self.name} = {_DECIMAL} AND {self.scale} = '{kind.scale}'"
                return case(f"isnull({TYPES}) OR {fits}", of_bytes(read, kind))
            case "double":
                return of_double(read, kind)
        number = of_number(read, kind, text=self.text)
        if self.writing.debezium is None:
            return number
        return case(f"isnull({TYPES}) OR NOT ({self.name} <=> {_DECIMAL})", number)


def reader_options(more: Mapping[str, str]) -> str:
    """Reader options as a SQL map; a value that does not fit goes to the corrupt column and is never
    dropped."""
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT, **more}
    return f"map({', '.join(literal(text) for pair in options.items() for text in pair)})"


def ddl_of(fields: Sequence[StructField]) -> str:
    return ", ".join(f"{quoted(field.name)} {field.dataType.simpleString()}" for field in fields)
