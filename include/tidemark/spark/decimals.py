"""Decimals as sources write them, in their declared type and never rounded: one with more digits than its
column has does not fit.

The parsers round. So a number is read with all the digits behind the point that there is room for, and must
be equal to what the column can hold. A type of many digits leaves little room, and there the number's own
text is looked at too.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql.types import BinaryType, DataType, DecimalType, DoubleType

from tidemark.spark.sql import case, literal

_DIGITS_MAX: Final = 38
_ROOM_DIGITS: Final = 18
"""As many as a double may have behind the point, so that what was worked out in doubles is noticed."""
_HEX: Final = "'0123456789ABCDEF'"


def read_type(kind: DecimalType, mode: str) -> DataType:
    """What a parser is told that a decimal is. Text would not keep the digits of a JSON number."""
    whole = DecimalType(_DIGITS_MAX, _DIGITS_MAX - kind.precision + kind.scale)
    return {"precise": BinaryType(), "double": DoubleType()}.get(mode, whole)


def of_number(read: str, kind: DecimalType, *, text: str) -> str:
    """The decimal of a number that was read with room; `text` is how it was written, empty if unknown."""
    number = f"try_cast({read} as {kind.simpleString()})"
    fits = f"{number} = {read}"
    if text and _DIGITS_MAX - kind.precision < _ROOM_DIGITS:
        longer = literal(rf"[.]\d{{{kind.scale}}}\d*[1-9]\d*$")
        fits += f" AND NOT coalesce({text} rlike {longer}, false)"
    return case(fits, number)


def of_double(read: str, kind: DecimalType) -> str:
    """The decimal of a double: its shortest text is the number that was meant."""
    number = f"try_cast(cast({read} as string) as {kind.simpleString()})"
    return case(f"cast({number} as double) = {read}", number)


def of_bytes(read: str, kind: DecimalType) -> str:
    """The decimal of an unscaled value as bytes, the highest one first."""
    text = f"concat(cast({_unscaled(read)} as string), 'E-{kind.scale}')"
    return case(f"octet_length({read}) BETWEEN 1 AND 16", f"try_cast({text} as {kind.simpleString()})")


def _unscaled(read: str) -> str:
    """The number that up to 16 bytes are, the highest one first and with the sign. It is taken in two halves,
    of a negative one from its complement, so that no step has more digits than the number."""
    negative = f"substring(hex({read}), 1, 1) >= '8'"
    digits = f"CASE WHEN {negative} THEN translate(hex({read}), {_HEX}, reverse({_HEX})) ELSE hex({read}) END"
    halves = [f"substring(lpad({digits}, 32, '0'), {start}, 16)" for start in (1, 17)]
    high, low = (f"cast(conv({half}, 16, 10) as decimal(20,0))" for half in halves)
    number = f"try_add(try_multiply({high}, 18446744073709551616BD), {low})"
    return f"CASE WHEN {negative} THEN try_subtract(-1BD, {number}) ELSE {number} END"
