"""The problems of a pipeline file, each with its position, and helpers for messages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

from pydantic_core import PydanticCustomError

from tidemark.core.errors import InvalidUsage

COLUMN_NAME: Final = re.compile(r"[^\W\d]\w{0,127}\Z")
"""Letters of any script; some other characters need more than a plain Delta table."""


def shown(value: object, characters_max: int = 60) -> str:
    """A value for a message: quoted, and truncated if long."""
    text = repr(value[: characters_max + 1] if isinstance(value, str) else value)
    return text if len(text) <= characters_max + 2 else f"{text[:characters_max]}…"


def nearest(value: str, known: Iterable[str], *, otherwise: str, cutoff: float = 0.6) -> str:
    """A hint that names the closest known word, or else the text `otherwise`."""
    near = get_close_matches(value[:60], list(known), n=1, cutoff=cutoff)
    return f"did you mean {near[0]!r}?" if near else otherwise


Path = tuple[str | int, ...]
PROBLEMS_SHOWN_MAX = 50


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One mistake: its position, the fact and the remedy. Lines and columns count from 1; 0 is unknown."""

    file: str
    line: int
    column: int
    path: str
    fact: str
    hint: str = ""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}:{self.column}" if self.line else self.file
        subject = f"{place}: {self.path}: {self.fact}" if self.path else f"{place}: {self.fact}"
        return f"{subject}: {self.hint}" if self.hint else subject


class ConfigInvalid(InvalidUsage):
    """A pipeline file or a recorded configuration is unusable. `problems` has all mistakes."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        shown = [str(problem) for problem in self.problems[:PROBLEMS_SHOWN_MAX]]
        if len(self.problems) > PROBLEMS_SHOWN_MAX:
            shown.append(f"and {len(self.problems) - PROBLEMS_SHOWN_MAX} more")
        super().__init__("\n".join(shown))


@dataclass(frozen=True, slots=True)
class Flaw:
    """A broken rule, at a path below the value that the rule checks."""

    path: Path
    fact: str
    hint: str = ""


def raise_flaws(flaws: Iterator[Flaw]) -> None:
    """Raise one pydantic error for all flaws, with their paths in its context."""
    found = tuple(flaws)
    if found:
        text = "; ".join(f"{flaw.fact}: {flaw.hint}" if flaw.hint else flaw.fact for flaw in found)
        raise PydanticCustomError("tidemark_flaws", "{text}", {"text": text, "flaws": found})


def refused(error: InvalidUsage) -> PydanticCustomError:
    """The pydantic error for an `InvalidUsage`, with its fact, its hint and, if known, its offset in the
    text."""
    offset = getattr(error, "offset", None)
    context = {"text": str(error), "fact": error.fact, "hint": error.hint, "offset": offset}
    return PydanticCustomError("tidemark_refused", "{text}", context)


def dotted(path: Path) -> str:
    """`shards[0].keys` for ("shards", 0, "keys")."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text
