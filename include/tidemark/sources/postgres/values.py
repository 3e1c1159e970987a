"""PostgreSQL's values in text form, as JSON that the declared type reads back without loss.

A value's JSON follows from its PostgreSQL type alone. Which declared types read it back without loss is a
table (`lossless`), and a column that is declared as another type is refused before anything is captured:
Spark would round a number with too many decimals, and nobody would be told.

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
all others             the text that PostgreSQL says  nothing but STRING
=====================  =============================  ===========================================

Everything may be declared STRING too. A value that the declared type doesn't have (infinity as a date, a
year before Christ, an array whose bounds don't begin at 1) can't be read back, and is quarantined with its
reason; it never becomes NULL.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Callable
from enum import Enum
from json.encoder import encode_basestring
from typing import Any, Final

from psycopg.postgres import types

from tidemark.config.schema import Array, DataType, Decimal
from tidemark.core.errors import InvalidUsage

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
    """How values of a type are written."""
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
    """The JSON value of a text that a column of this type has."""
    if text is None:
        return None
    if type_oid in ELEMENTS:
        # Bounds other than from 1 on are written before it, `[0:1]={1,2}`, and a list has no place for them.
        return text if text.startswith("[") else _list(text, ELEMENTS[type_oid])
    if type_oid in _INTEGERS:
        return int(text)
    if type_oid in _FLOATS:
        number = float(text)
        return number if math.isfinite(number) else text
    if type_oid == BOOL:
        return text == "t"
    if type_oid in (TIMESTAMP, TIMESTAMPTZ):
        # The session's time zone is UTC, so the offset is always this one.
        moment, before_christ = text.removesuffix(" BC"), text[-3:] if text.endswith(" BC") else ""
        moment = f"{moment[:-3]}Z" if moment.endswith("+00") else moment
        return moment.replace(" ", "T", 1) + before_christ
    if type_oid == BYTEA:
        return base64.b64encode(bytes.fromhex(text.removeprefix("\\x"))).decode()
    return text


def writer_of(type_oid: int) -> Callable[[str], str]:
    """What writes a single value's text as JSON."""
    if spelling_of(type_oid) is Spelling.TEXT:
        return encode_basestring
    return lambda text: _ENCODER.encode(to_json(text, type_oid))


def numeric_limits(modifier: int) -> tuple[int, int] | None:
    """Precision and scale of a numeric column; None when it has no limits."""
    if modifier == _NO_MODIFIER:
        return None
    packed = modifier - 4
    return packed >> 16 & 0xFFFF, (packed & 0x7FF ^ 1024) - 1024


def lossless(type_oid: int, modifier: int, declared: DataType) -> bool:
    """Whether every ordinary value of the column comes out of the declared type as it was."""
    if declared.name == "STRING":
        return True
    if type_oid in ELEMENTS:
        return isinstance(declared, Array) and lossless(ELEMENTS[type_oid], modifier, declared.element)
    if type_oid == NUMERIC and isinstance(declared, Decimal):
        limits = numeric_limits(modifier)
        if limits is None:
            return False
        precision, scale = limits
        # A negative scale means zeros in front of the point, which need their digits too.
        return declared.scale >= scale and declared.precision - declared.scale >= precision - scale
    return declared.name in _DECLARED.get(type_oid, ())


def declared_for(type_oid: int, modifier: int) -> str:
    """The type to declare for a column, as DDL: the narrowest that loses nothing."""
    if type_oid in ELEMENTS:
        return f"ARRAY<{declared_for(ELEMENTS[type_oid], modifier)}>"
    limits = numeric_limits(modifier) if type_oid == NUMERIC else None
    if limits is not None:
        precision, scale = limits
        needed = Decimal(max(precision - scale, 0) + max(scale, 0), max(scale, 0))
        return needed.ddl if needed.precision <= 38 else "STRING"
    return _DECLARED.get(type_oid, ("STRING",))[0]


def _list(text: str, element: int) -> list[Any]:
    """An array out of PostgreSQL's spelling, `{1,NULL,"a b"}`, with any number of dimensions."""
    found, end = _elements(text, 0, element)
    if end != len(text):
        raise InvalidUsage(f"{text[:60]!r} is not an array", hint="report it, with the column's type")
    return found


def _elements(text: str, at: int, element: int) -> tuple[list[Any], int]:
    """The elements behind the brace at `at`, and where the text goes on."""
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
            # Looked for once: a search for each of the ends may go through the whole array every time.
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
