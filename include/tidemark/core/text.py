"""Values as people and machines read them: JSON, points in time, lengths of time."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final


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
