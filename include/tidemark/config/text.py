"""What messages and name checks share: values cut short, near names, what a column may be called."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

COLUMN_NAME: Final = re.compile(r"[^\W\d]\w{0,127}\Z")
"""Letters of any script; what else a name may have needs more than a plain Delta table."""


def shown(value: object, characters_max: int = 60) -> str:
    """The value for a message: quoted, and cut when it is long."""
    text = repr(value[: characters_max + 1] if isinstance(value, str) else value)
    return text if len(text) <= characters_max + 2 else f"{text[:characters_max]}…"


def nearest(value: str, known: Iterable[str], *, otherwise: str, cutoff: float = 0.6) -> str:
    """A hint that names the nearest known word, or else says what there is."""
    near = get_close_matches(value[:60], list(known), n=1, cutoff=cutoff)
    return f"did you mean {near[0]!r}?" if near else otherwise
