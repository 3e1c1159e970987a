"""PostgreSQL's text values as JSON that the declared types read back without loss.

A value's JSON depends only on its PostgreSQL type. `lossless` determines which declared types read it back
without loss. A column with another declared type is refused before anything is captured: Spark would silently
round a number with too many decimals.

=====================  =============================  ===========================================
PostgreSQL             captured as                    may be declared as
=====================  =============================  ===========================================
bool                   true, false                    BOOLEAN
int2, int4, int8, oid  number                         an integer type that is wide enough
float4, float8         number, or "NaN", "Infinity"   FLOAT for float4, DOUBLE
numeric(p,s)           text of the number             a DECIMAL that is wide enough
numeric                text of the number             nothing but STRING: its scale has no limit
date                   text, ISO 8601                 DATE
timestamp              text, ISO 8601                 TIMESTAMP_NTZ
timestamptz            text, ISO 8601, in UTC         TIMESTAMP
bytea                  base64                         BINARY
arrays of these        list, or text with bounds      ARRAY of what the element may be
all others             PostgreSQL's text              nothing but STRING
=====================  =============================  ===========================================

Every column may also be declared STRING. A value that the declared type doesn't have (infinity as a date, a
year BC, an array whose bounds don't begin at 1) can't be read back. It is quarantined with the reason, and
never becomes NULL.

`RowWriter` writes rows as change records, one JSON line each, for many rows at once. A line consists of
pieces that are the same for every row (names, brackets, quotes) and of values. Most values have the same
bytes in the server's message and in JSON. So a line is a list of byte ranges, and one call of Arrow copies
those of all rows. Only a value with another form in JSON (a text with a quote, an array, a bytea) is encoded
individually, by `writer_of`. The same bytes always give the same lines, however they are split into calls.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from json.encoder import encode_basestring
from typing import Any, Final

import numpy as np
import pyarrow as pa
from psycopg.postgres import types

from tidemark.config.schema import Array, DataType, Decimal
from tidemark.core.errors import InvalidUsage
from tidemark.sources.postgres.pgoutput import (
    NULL,
    TEXT,
    UNCHANGED,
    Broken,
    Bytes,
    Flags,
    Numbers,
    RelationColumn,
    Spans,
)
from tidemark.sources.postgres.slot import NOT_UTF8

BOOL, BYTEA, NUMERIC, DATE, TIMESTAMP, TIMESTAMPTZ = (
    types[name].oid for name in ("bool", "bytea", "numeric", "date", "timestamp", "timestamptz")
)
_WIDER: Final = {"int2": ("SMALLINT", "INT", "BIGINT"), "int4": ("INT", "BIGINT"), "int8": ("BIGINT",)}
_INTEGERS: Final = {types[name].oid: wider for name, wider in {**_WIDER, "oid": ("BIGINT",)}.items()}
_FLOATS: Final = {types["float4"].oid: ("FLOAT", "DOUBLE"), types["float8"].oid: ("DOUBLE",)}
ELEMENTS: Final = {info.array_oid: info.oid for info in types if info.array_oid and info.delimiter == ","}
_DECLARED: Final = {
    BOOL: ("BOOLEAN",),
    BYTEA: ("BINARY",),
    DATE: ("DATE",),
    TIMESTAMP: ("TIMESTAMP_NTZ",),
    TIMESTAMPTZ: ("TIMESTAMP",),
    **_INTEGERS,
    **_FLOATS,
}
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_NO_MODIFIER: Final = -1
_STOP: Final = re.compile("[,}]")
_PLAIN: Final = frozenset(types[name].oid for name in ("uuid", "numeric", "date"))


class Spelling(Enum):
    """How a value's text becomes JSON."""

    NUMBER = "as it is"
    FLOAT = "as it is, or in quotes when it is not finite; -0 as -0.0"
    FLAG = "true or false"
    PLAIN = "in quotes"
    TEXT = "in quotes, with what JSON escapes"
    TIME = "in quotes, with T and Z"
    ALONE = "by itself"


def spelling_of(type_oid: int) -> Spelling:
    """How values of a type are written as JSON."""
    if type_oid in ELEMENTS or type_oid == BYTEA:
        return Spelling.ALONE
    if type_oid in _INTEGERS:
        return Spelling.NUMBER
    if type_oid in _FLOATS:
        return Spelling.FLOAT
    if type_oid in (TIMESTAMP, TIMESTAMPTZ):
        return Spelling.TIME
    if type_oid == BOOL:
        return Spelling.FLAG
    return Spelling.PLAIN if type_oid in _PLAIN else Spelling.TEXT


def to_json(text: str | None, type_oid: int) -> Any:
    """The JSON value for the text form of a value of this type."""
    if text is None:
        return None
    if type_oid in ELEMENTS:
        # Bounds that don't begin at 1 come first, `[0:1]={1,2}`. A JSON list can't express them.
        return text if text.startswith("[") else _list(text, ELEMENTS[type_oid])
    if type_oid in _INTEGERS:
        return int(text)
    if type_oid in _FLOATS:
        number = float(text)
        return number if math.isfinite(number) else text
    if type_oid == BOOL:
        return text == "t"
    if type_oid in (TIMESTAMP, TIMESTAMPTZ):
        # The session's time zone is UTC, so the offset is always +00.
        moment, before_christ = text.removesuffix(" BC"), text[-3:] if text.endswith(" BC") else ""
        moment = f"{moment[:-3]}Z" if moment.endswith("+00") else moment
        return moment.replace(" ", "T", 1) + before_christ
    if type_oid == BYTEA:
        return base64.b64encode(bytes.fromhex(text.removeprefix("\\x"))).decode()
    return text


def writer_of(type_oid: int) -> Callable[[str], str]:
    """The function that encodes the text of a single value as JSON."""
    if spelling_of(type_oid) is Spelling.TEXT:
        return encode_basestring
    return lambda text: _ENCODER.encode(to_json(text, type_oid))


def numeric_limits(modifier: int) -> tuple[int, int] | None:
    """Precision and scale of a numeric column; None if it has no limits."""
    if modifier == _NO_MODIFIER:
        return None
    packed = modifier - 4
    return packed >> 16 & 0xFFFF, (packed & 0x7FF ^ 1024) - 1024


def lossless(type_oid: int, modifier: int, declared: DataType) -> bool:
    """Whether the declared type preserves every ordinary value of the column."""
    if declared.name == "STRING":
        return True
    if type_oid in ELEMENTS:
        return isinstance(declared, Array) and lossless(ELEMENTS[type_oid], modifier, declared.element)
    if type_oid == NUMERIC and isinstance(declared, Decimal):
        limits = numeric_limits(modifier)
        if limits is None:
            return False
        precision, scale = limits
        # A negative scale means zeros before the decimal point, which need digits too.
        return declared.scale >= scale and declared.precision - declared.scale >= precision - scale
    return declared.name in _DECLARED.get(type_oid, ())


def declared_for(type_oid: int, modifier: int) -> str:
    """The type to declare for a column, as DDL: the narrowest lossless one."""
    if type_oid in ELEMENTS:
        return f"ARRAY<{declared_for(ELEMENTS[type_oid], modifier)}>"
    limits = numeric_limits(modifier) if type_oid == NUMERIC else None
    if limits is not None:
        precision, scale = limits
        needed = Decimal(max(precision - scale, 0) + max(scale, 0), max(scale, 0))
        return needed.ddl if needed.precision <= 38 else "STRING"
    return _DECLARED.get(type_oid, ("STRING",))[0]


def _list(text: str, element: int) -> list[Any]:
    """An array parsed from PostgreSQL's text, `{1,NULL,"a b"}`, with any number of dimensions."""
    found, end = _elements(text, 0, element)
    if end != len(text):
        raise InvalidUsage(f"{text[:60]!r} is not an array", hint="report this with the column's type")
    return found


def _elements(text: str, at: int, element: int) -> tuple[list[Any], int]:
    """The elements after the brace at `at`, and the position after the closing brace."""
    found: list[Any] = []
    at += 1
    while at < len(text) and text[at] != "}":
        if text[at] == ",":
            at += 1
        elif text[at] == "{":
            inner, at = _elements(text, at, element)
            found.append(inner)
        elif text[at] == '"':
            raw, at = _quoted(text, at)
            found.append(to_json(raw, element))
        else:
            # One search for both ends: a search for each could scan the whole array for every element.
            stop = _STOP.search(text, at)
            raw = text[at : stop.start() if stop is not None else len(text)]
            found.append(None if raw.upper() == "NULL" else to_json(raw, element))
            at += len(raw)
    return found, at + 1


def _quoted(text: str, at: int) -> tuple[str, int]:
    out: list[str] = []
    at += 1
    while text[at] != '"':
        at += text[at] == "\\"
        out.append(text[at])
        at += 1
    return "".join(out), at + 1


# Writing many rows at once.

_AS_IT_IS, _QUOTED, _IS_NULL = range(3)
_MUST_ESCAPE: Final = np.array([byte < 0x20 or byte in b'"\\' for byte in range(256)])
_FLAGS: Final = (b"false", b"true")
_SPACE, _PLUS, _MINUS, _TRUE, _ZERO, _NINE = b" +-t09"


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines in one block of memory. `bounds` has the start of each line, and the end of the last one."""

    data: memoryview
    bounds: Numbers

    @classmethod
    def of(cls, lines: Sequence[bytes]) -> Lines:
        bounds = np.cumsum([0, *map(len, lines)], dtype=np.int64)
        return cls(memoryview(b"".join(lines)), bounds)

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def part(self, first: int, end: int) -> memoryview:
        """The bytes of the lines in [first, end)."""
        return self.data[int(self.bounds[first]) : int(self.bounds[end])]


def values_at(data: Bytes, starts: Numbers, sizes: Numbers, extra: Sequence[bytes] = ()) -> Any:
    """An Arrow array of the values at these ascending positions of `data`. Values have even indexes, the
    bytes between them odd ones. Then come the `extra` texts, which are the end of `data`."""
    pairs = np.stack([starts, starts + sizes], axis=-1).ravel()
    lengths = np.fromiter(map(len, extra), np.int64, len(extra))
    behind = len(data) - lengths.sum() + np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    return _array(data, np.concatenate([pairs, behind]))


def ordered(parts: Sequence[tuple[Lines, Numbers]]) -> tuple[Lines, Numbers]:
    """The lines of several writers, merged in the order of their numbers."""
    if not parts:
        return Lines.of([]), np.zeros(0, np.int64)
    if len(parts) == 1:
        return parts[0]
    numbers = np.concatenate([number for _, number in parts])
    order = np.argsort(numbers, kind="stable")
    lines = pa.concat_arrays([_array(one.data, one.bounds) for one, _ in parts])
    return _lines(lines.take(pa.array(order))), numbers[order]


def _array(data: Bytes | memoryview, bounds: Numbers) -> Any:
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.large_binary(), len(bounds) - 1, buffers)


def _lines(array: Any, each: int = 1) -> Lines:
    """The elements of a newly made array as lines, with `each` elements to a line."""
    _, bounds, data = array.buffers()
    found = np.frombuffer(bounds, np.int64)[: len(array) + 1 : each] if len(array) else np.zeros(1, np.int64)
    return Lines(memoryview(data or b"")[: int(found[-1])], np.ascontiguousarray(found))


class RowWriter:
    """Writes rows of these columns as lines: `before`, the values, `after`, and the row's end (`places`)."""

    def __init__(self, columns: Sequence[RelationColumn], before: str, after: str) -> None:
        names = [json.dumps(column.plain, ensure_ascii=False) for column in columns]
        self._writers = [writer_of(column.type_oid) for column in columns]
        self._spellings = [spelling_of(column.type_oid) for column in columns]
        # The text before a value depends on whether the previous value is quoted, and on the value itself.
        self._pieces = [
            f"{quote}{',' if at else before}{name}:{mark}".encode()
            for at, name in enumerate(names)
            for quote in ("", '"')
            for mark in ("", '"', "null")
        ] + [f"{quote}{after}".encode() for quote in ("", '"')]

    def lines(
        self,
        data: Bytes,
        spans: Spans,
        places: Sequence[bytes],
        place_of: Numbers,
        *,
        decoded: Callable[[bytes], str] = bytes.decode,
        elsewhere: Spans | None = None,
    ) -> Lines:
        """One line for each row. The values are in `data`, in the order of rows and columns. For values that
        were not sent with the row, `elsewhere` has the positions. `decoded` decodes the bytes of a value that
        is encoded individually. Raises `Broken` with the first row that can't be written."""
        rows, width = spans.sizes.shape
        made = _Made(data, spans)
        for column, spelling in enumerate(self._spellings):
            made.spell(column, spelling)
        made.set_escaped([at for at, one in enumerate(self._spellings) if one is Spelling.TEXT])
        alone = self._written(data, elsewhere or spans, made.alone, decoded)
        extra = [*self._pieces, *_FLAGS, *places, *alone]
        # The order of indexes: values with the bytes between them, pieces, flags, places, individual values.
        pieces = 2 * rows * width
        flags = pieces + len(self._pieces)
        placed = flags + len(_FLAGS)
        values = made.numbers
        values[made.flags] = flags + (data[spans.starts[made.flags]] == _TRUE)
        values[made.alone] = placed + len(places) + np.arange(len(alone))
        quoted = np.zeros((rows, width + 1), np.int64)
        quoted[:, 1:] = made.states == _QUOTED
        numbers = np.empty((rows, 2 * width + 2), np.int64)
        numbers[:, 0:-2:2] = pieces + 6 * np.arange(width) + 3 * quoted[:, :-1] + made.states
        numbers[:, 1:-2:2] = values
        numbers[:, -2] = pieces + 6 * width + quoted[:, -1]
        numbers[:, -1] = placed + place_of
        return _checked(made.copied(numbers, extra))

    def _written(
        self, data: Bytes, spans: Spans, alone: Flags, decoded: Callable[[bytes], str]
    ) -> list[bytes]:
        """The values that are encoded individually."""
        found: list[bytes] = []
        for row, column in zip(*(each.tolist() for each in np.nonzero(alone)), strict=True):
            start = int(spans.starts[row, column])
            raw = data[start : start + int(spans.sizes[row, column])].tobytes()
            try:
                found.append(self._writers[column](decoded(raw)).encode())
            except UnicodeDecodeError:
                raise Broken(row, _not_utf8()) from None
            except InvalidUsage as error:
                raise Broken(row, error) from None
        return found


class _Made:
    """How each value is written, and the bytes that it is copied from."""

    def __init__(self, data: Bytes, spans: Spans) -> None:
        self.data = data
        self.numbers = 2 * np.arange(spans.sizes.size).reshape(spans.sizes.shape)
        self.alone: Flags = spans.kinds == UNCHANGED
        self.states = np.where(spans.kinds == NULL, _IS_NULL, _AS_IT_IS)
        self.flags = np.zeros_like(self.alone)
        self._there = spans.kinds == TEXT
        self._starts, self._sizes = spans.starts, spans.sizes.copy()
        self._times: list[Numbers] = []
        self._zones: list[Numbers] = []

    def spell(self, column: int, spelling: Spelling) -> None:
        """Set how the values of a column are written."""
        there = self._there[:, column]
        match spelling:
            case Spelling.FLAG:
                self.flags[:, column] = there
            case Spelling.ALONE:
                self.alone[:, column] |= there
            case Spelling.FLOAT:
                # Only NaN and the infinities don't end in a digit.
                self.states[there & ~self._end_in_digit(column), column] = _QUOTED
                self.alone[:, column] |= there & self._is_negative_zero(column)
            case Spelling.TEXT | Spelling.PLAIN:
                self.states[there, column] = _QUOTED
            case Spelling.TIME:
                self._spell_time(column, there)

    def _spell_time(self, column: int, there: Flags) -> None:
        """Copy `2024-01-31 12:00:00.5+00` with T and Z. Infinity, years BC, and years that don't have four
        digits are encoded individually."""
        data, starts, sizes = self.data, self._starts[:, column], self._sizes[:, column]
        ends = starts + sizes
        usual = there & (sizes >= 19) & self._end_in_digit(column)
        usual[usual] = data[starts[usual] + 10] == _SPACE
        zoned = usual & (sizes >= 22)
        zone = ends[zoned] - 3
        zoned[zoned] = (data[zone] == _PLUS) & (data[zone + 1] == _ZERO) & (data[zone + 2] == _ZERO)
        self._times.append(starts[usual] + 10)
        self._zones.append(ends[zoned] - 3)
        self._sizes[zoned, column] -= 2
        self.states[usual, column] = _QUOTED
        self.alone[:, column] |= there & ~usual

    def _is_negative_zero(self, column: int) -> Flags:
        """Which values are `-0`. As JSON that is an integer without a sign, so it is written as `-0.0`."""
        found: Flags = self._sizes[:, column] == 2
        at = self._starts[found, column]
        found[found] = (self.data[at] == _MINUS) & (self.data[at + 1] == _ZERO)
        return found

    def _end_in_digit(self, column: int) -> Flags:
        last = self.data[self._starts[:, column] + np.maximum(self._sizes[:, column] - 1, 0)]
        return (last >= _ZERO) & (last <= _NINE)

    def set_escaped(self, columns: Sequence[int]) -> None:
        """Mark the texts that need escaping, which are encoded individually."""
        if columns:
            numbers = pa.array(self.numbers[:, columns].ravel())
            texts = _lines(values_at(self.data, self._starts, self._sizes).take(numbers))
            must = np.flatnonzero(_MUST_ESCAPE[np.frombuffer(texts.data, np.uint8)])
            found = np.unique(np.searchsorted(texts.bounds, must, side="right") - 1)
            self.alone[found // len(columns), np.array(columns)[found % len(columns)]] = True
        self.states[self.alone] = _AS_IT_IS

    def copied(self, numbers: Numbers, extra: Sequence[bytes]) -> Lines:
        """The lines, copied from the values and the `extra` texts by their indexes."""
        data = np.concatenate([self.data, np.frombuffer(b"".join(extra), np.uint8)])
        for marks, written in ((self._times, b"T"), (self._zones, b"Z")):
            for at in marks:
                data[at] = written[0]
        found = values_at(data, self._starts, self._sizes, extra).take(pa.array(numbers.ravel()))
        return _lines(found, numbers.shape[1])


def _checked(lines: Lines) -> Lines:
    """The lines. Raises `Broken` if they are not UTF-8. ASCII characters separate the values, so the bytes of
    two values can't combine to one character."""
    try:
        str(lines.data, "utf-8")
    except UnicodeDecodeError as error:
        row = int(np.searchsorted(lines.bounds, error.start, side="right")) - 1
        raise Broken(row, _not_utf8()) from None
    return lines


def _not_utf8() -> InvalidUsage:
    return InvalidUsage("a text is not UTF-8", hint=NOT_UTF8)
