"""Positions in PostgreSQL's write-ahead log: a number to us, `16/B374D848` to PostgreSQL."""

from __future__ import annotations

from tidemark.core.errors import InvalidUsage


def lsn_text(lsn: int) -> str:
    """A log position as PostgreSQL writes it."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def parsed_lsn(text: str) -> int:
    """A log position out of PostgreSQL's spelling."""
    high, slash, low = text.partition("/")
    try:
        if not slash:
            raise ValueError
        return (int(high, 16) << 32) | int(low, 16)
    except ValueError:
        raise InvalidUsage(f"{text[:40]!r} is not a log position", hint="write it like 0/16B3748") from None
