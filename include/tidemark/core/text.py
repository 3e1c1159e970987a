"""Values as text for people and machines: JSON, times, durations, sizes and sequences.

A sequence is an integer, a time in UTC, or a date. Its number is the integer itself, microseconds, or days
since 1970; the unit of the shard's `lateness` decides which: `seconds` for times, `days` for dates.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime, timedelta
from enum import Enum
from typing import Any, Final

from tidemark.core.errors import InvalidUsage


def plain(value: Any) -> Any:
    """Convert a value to types that JSON supports. Fields that are no part of a value's `repr` are left
    out."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        shown = (field.name for field in dataclasses.fields(value) if field.repr)
        return {name: plain(getattr(value, name)) for name in shown}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if isinstance(value, str | int | float | bool) or value is None:
        return value
    if isinstance(value, Iterable):
        return [plain(item) for item in value]
    return str(value)


def moment(at: datetime | None) -> str:
    """A time as text in UTC; empty if unknown."""
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S") if at is not None else ""


UNITS: Final = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))


def span(seconds: float | None) -> str:
    """A duration as text, in its two largest units; empty if unknown."""
    if seconds is None:
        return ""
    units = [(unit, size) for unit, size in UNITS if seconds >= size > 1]
    if not units:
        return f"{max(seconds, 0.0):.1f} s"
    unit, size = units[0]
    lower, lower_size = UNITS[UNITS.index(units[0]) + 1]
    rest = int(seconds % size // lower_size)
    return f"{int(seconds // size)} {unit}" + (f" {rest} {lower}" if rest else "")


def seconds_in(text: str) -> float:
    """Parse a duration such as `90s`, `10m`, `24h` or `7d`."""
    found = re.fullmatch(r"(\d+)([smhd])", text.strip())
    if found is None:
        raise InvalidUsage(
            f"{text!r} is not a length of time", hint="write a number with s, m, h or d: 10m, 24h"
        )
    return int(found[1]) * dict(UNITS)[found[2]]


_BYTES: Final = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


def bytes_in(text: str) -> int:
    """Parse a size such as `500MB` or `10GB`."""
    found = re.fullmatch(r"(\d+)(KB|MB|GB|TB)", text.strip())
    if found is None:
        raise InvalidUsage(f"{text!r} is not a size", hint="write a number with KB, MB, GB or TB: 10GB")
    return int(found[1]) * _BYTES[found[2]]


def share_in(text: str) -> float:
    """Parse a percentage such as `5%` or `0.5%`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)%", text.strip())
    if found is None or float(found[1]) > 100:
        raise InvalidUsage(f"{text!r} is not a percentage", hint="write a number up to 100 with %: 5%")
    return float(found[1]) / 100


SECONDS: Final = "seconds"
DAYS: Final = "days"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def sequence_text(number: int, *, unit: str) -> str:
    """A sequence number as text; the number itself if it is beyond the calendar."""
    try:
        if unit == SECONDS:
            return str((_EPOCH + timedelta(microseconds=number)).replace(tzinfo=None))
        if unit == DAYS:
            return str(_EPOCH.date() + timedelta(days=number))
    except OverflowError:
        pass
    return str(number)


def sequence_number(text: str, *, unit: str) -> int:
    """Parse a sequence; a time without a zone is in UTC."""
    try:
        if unit == SECONDS:
            at = datetime.fromisoformat(text)
            at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
            return (at - _EPOCH) // timedelta(microseconds=1)
        if unit == DAYS:
            return (date.fromisoformat(text) - _EPOCH.date()).days
        return int(text)
    except (ValueError, OverflowError):
        kinds = {SECONDS: "a time, 2026-01-31 12:00:00", DAYS: "a date, 2026-01-31"}
        hint = f"write {kinds.get(unit, 'a whole number')}"
        raise InvalidUsage(f"{text[:80]!r} is not a sequence of this shard", hint=hint) from None
