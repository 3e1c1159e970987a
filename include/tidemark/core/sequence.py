"""Sequences as numbers and as people write them: a whole number, a time in UTC, or a date.

The number is the sequence itself, microseconds, or days since 1970; which of them, the unit of the shard's
`lateness` tells: `seconds` for times, `days` for dates.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Final

from tidemark.core.errors import InvalidUsage

SECONDS: Final = "seconds"
DAYS: Final = "days"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def sequence_text(number: int, *, unit: str) -> str:
    """A number as people write it; as it is where no calendar has it."""
    try:
        if unit == SECONDS:
            return str((_EPOCH + timedelta(microseconds=number)).replace(tzinfo=None))
        if unit == DAYS:
            return str(_EPOCH.date() + timedelta(days=number))
    except OverflowError:
        pass
    return str(number)


def sequence_number(text: str, *, unit: str) -> int:
    """The number of what a person has written; a time without a zone is in UTC."""
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
        raise InvalidUsage(f"{text[:80]!r} is no sequence of this shard", hint=hint) from None
