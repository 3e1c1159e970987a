"""A ledger: the one durable structure, and the one way to change it.

The history, shard logs, checkpoints, the journal, publishes and leases are all ledgers: numbered records with
a few integer *marks* (above all the `upper`), changed by one conditional commit. `Head` is a checked version;
a `Put` holds the records to add and the marks to move. The commit succeeds only if the ledger is still at
that head; otherwise nothing changes. So a decision is a pure function `Head -> Put | value`, made again
whenever the head has moved: the upper is read at each decision, never once at the start (Invariant 3).

Restrictions: marks never decrease (except a link, which is not a count), and records never change.
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
"""The link of the newest transaction that a ledger depends on. It is an identity, not a count."""


class Record(Protocol):
    """A record of a ledger: read by number, found by key."""

    @property
    def number(self) -> int: ...

    @property
    def key(self) -> str: ...


R = TypeVar("R")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Head:
    """A checked version of a ledger, with its marks."""

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
        """The marks after a put; `InvariantViolation` if one would decrease."""
        for name, value in marks.items():
            current = self.upper if name == UPPER else self.marks.get(name, 0)
            if value < current and name != LINK:
                raise InvariantViolation(f"mark {name!r} would go back from {current} to {value}")
        return {**self.marks, **marks}


@dataclass(frozen=True, slots=True)
class Put(Generic[R, T]):
    """A decision to commit: records to add, marks to move, and the result if the commit succeeds."""

    marks: Mapping[str, int]
    records: Sequence[R]
    result: T


@dataclass(frozen=True, slots=True)
class Committed:
    """The put is committed, at this version."""

    version: int


@dataclass(frozen=True, slots=True)
class Conflict:
    """The ledger is no longer at the head that the decision was made on; nothing was written."""


CommitOutcome = Committed | Conflict
