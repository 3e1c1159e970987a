"""A ledger: the one durable structure, and the one way to change it; and the journal, a ledger of events.

The history, shard logs, checkpoints, the journal, publishes and leases are all ledgers: numbered records with
a few integer *marks* (above all the `upper`), changed by one conditional commit. `Head` is a checked version;
a `Put` holds the records to add and the marks to move. The commit succeeds only if the ledger is still at
that head; otherwise nothing changes. So a decision is a pure function `Head -> Put | value`, made again
whenever the head has moved: the upper is read at each decision, never once at the start (Invariant 3).

Restrictions: marks never decrease (except a link, which is not a count), and records never change.

Every stored record carries a link: a checksum of itself and of the previous link. A lost or changed record
breaks the chain, and so differs from a step in which nothing happened. Records also carry their format;
another format is rejected instead of guessed at (scenario P6).

Bindings, seals and checkpoints record what is decided. The journal records what happened: rejections,
verdicts of the gate, lost races and their winners, replays and their verdicts, and what people accepted or
skipped and why.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Generic, Protocol, TypeVar

from tidemark.core.errors import InvalidUsage, InvariantViolation
from tidemark.core.ids import TXN_FIRST, Txn, WriterToken

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


FORMAT: Final = 2
CHAIN: Final = "chain"


class Event(StrEnum):
    """The events of a transaction."""

    REFUSED = "refused"
    JUDGED = "judged"
    LOST = "lost"
    VERIFIED = "verified"
    SAMPLED = "sampled"
    ACCEPTED = "accepted"
    OVERRULED = "overruled"
    ANNOUNCED = "announced"
    SKIPPED = "skipped"
    RELEASED = "released"
    REPAIRED = "repaired"
    RECOVERED = "recovered"
    FROZEN = "frozen"
    PASSED_OVER = "passed over"
    WATERMARK = "watermark"
    ALARM = "alarm"
    ALARM_OVER = "alarm over"
    REQUESTED = "requested"
    PROMOTED = "promoted"


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """One event. `detail` is for people and machines: short text without rows or secrets. Only a sample of
    what differs (`Event.SAMPLED`) has keys of rows."""

    number: int
    txn: Txn
    event: Event
    token: WriterToken
    detail: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return str(self.txn)


def decide_note(
    *,
    head: Head,
    txns: Sequence[Txn],
    event: Event,
    token: WriterToken,
    detail: Mapping[str, str],
    noted: bool,
) -> Put[JournalEntry, None] | None:
    """Add an event for each transaction under the next numbers, all or none. `noted` is whether it was found
    there already, after a lost reply."""
    if noted:
        return None
    entries = [
        JournalEntry(number, txn, event, token, detail) for number, txn in enumerate(txns, start=head.upper)
    ]
    return Put(marks={UPPER: head.upper + len(entries)}, records=tuple(entries), result=None)


def link(previous: int, body: str) -> int:
    """The link after a record: 63 bits, so that it fits a Delta application transaction."""
    data = previous.to_bytes(8, "big") + body.encode()
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big") >> 1


def check_format(found: int, *, table: str) -> None:
    if found == FORMAT:
        return
    older = found < FORMAT
    raise InvalidUsage(
        f"{table} has records of format {found}, and this version reads format {FORMAT}",
        hint="read the warehouse with the older version of tidemark that wrote it"
        if older
        else "use the newer version of tidemark that wrote them",
    )


def check_chain(records: Iterable[tuple[int, int, str]], *, previous: int, table: str) -> int:
    """Verify (number, link, body) in order from a known link; return the last link."""
    for number, found, body in records:
        expected = link(previous, body)
        if found != expected:
            raise InvariantViolation(
                f"{table}: record {number} does not follow the one before it",
                hint="a record was lost or changed; restore the table's files from a backup",
            )
        previous = found
    return previous
