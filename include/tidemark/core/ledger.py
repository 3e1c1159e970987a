"""The one durable thing: a ledger, and the one way to change it.

The history, shard logs, checkpoints, the journal, publishes and leases are all the same thing:
numbered records with a few integer *marks* (the `upper` first of all), changed by one conditional
commit. `Head` is a checked snapshot; a `Put` says what to add and which marks to move; the commit
happens only if the ledger still stands at that very head, and otherwise nothing happens at all.
A decision is therefore a pure function `Head -> Put | value`, made anew whenever the head moved:
the upper is read again at each decision, never once at the start (Invariant 3).

Restrictions: marks never go down (a link is none that could), and records are never changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, Protocol, TypeVar

from tidemark.core.errors import InvariantViolation
from tidemark.core.ids import TXN_FIRST, Txn

UPPER: Final = "upper"
GENERATION: Final = "generation"
EPOCH: Final = "epoch"
LINK: Final = "link"
"""The link of the newest transaction that a ledger depends on. It identifies; it doesn't count."""


class Record(Protocol):
    """What a ledger keeps: it has a number to be read by, and a key to be found by."""

    @property
    def number(self) -> int: ...

    @property
    def key(self) -> str: ...


R = TypeVar("R")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Head:
    """A snapshot that was checked: the ledger's version and its marks."""

    version: int
    marks: Mapping[str, int] = field(default_factory=dict)

    @property
    def upper(self) -> Txn:
        return Txn(self.marks.get(UPPER, TXN_FIRST))

    @property
    def generation(self) -> int:
        return self.marks.get(GENERATION, 0)

    @property
    def epoch(self) -> int:
        """How often a history was recovered."""
        return self.marks.get(EPOCH, 1) - 1

    @property
    def link(self) -> int:
        return self.marks.get(LINK, 0)

    def moved(self, marks: Mapping[str, int]) -> dict[str, int]:
        """The marks after a put; going back is a broken promise, wherever it comes from."""
        for name, value in marks.items():
            current = self.upper if name == UPPER else self.marks.get(name, 0)
            if value < current and name != LINK:
                raise InvariantViolation(f"mark {name!r} would go back from {current} to {value}")
        return {**self.marks, **marks}


@dataclass(frozen=True, slots=True)
class Put(Generic[R, T]):
    """A decision to commit: records to add, marks to move, and what it means once it is in."""

    marks: Mapping[str, int]
    records: Sequence[R]
    result: T


@dataclass(frozen=True, slots=True)
class Committed:
    """The put is in, at this version."""

    version: int


@dataclass(frozen=True, slots=True)
class Conflict:
    """The ledger had moved on from the head that the decision was made on; nothing was written."""


CommitOutcome = Committed | Conflict
