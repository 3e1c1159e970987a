"""Values as people and machines read them: JSON, points in time, lengths of time."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final

from tidemark.core.errors import InvalidUsage


def plain(value: Any) -> Any:
    """A value as JSON can hold it."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
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
    """A point in time as people write it, in UTC; empty where it is not known."""
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S") if at is not None else ""


UNITS: Final = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))


def span(seconds: float | None) -> str:
    """A length of time as people write it, in its two largest units; empty where it is not known."""
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
    """The length of time that a text such as `90s`, `10m`, `24h` or `7d` says."""
    found = re.fullmatch(r"(\d+)([smhd])", text.strip())
    if found is None:
        raise InvalidUsage(f"{text!r} is no length of time", hint="write a number and s, m, h or d: 10m, 24h")
    return int(found[1]) * dict(UNITS)[found[2]]


_BYTES: Final = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


def bytes_in(text: str) -> int:
    """The size that a text such as `500MB` or `10GB` says."""
    found = re.fullmatch(r"(\d+)(KB|MB|GB|TB)", text.strip())
    if found is None:
        raise InvalidUsage(f"{text!r} is no size", hint="write a number and KB, MB, GB or TB: 10GB")
    return int(found[1]) * _BYTES[found[2]]


def share_in(text: str) -> float:
    """The share that a text such as `5%` or `0.5%` says."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)%", text.strip())
    if found is None or float(found[1]) > 100:
        raise InvalidUsage(f"{text!r} is no share", hint="write a number up to 100 and %: 5%")
    return float(found[1]) / 100
