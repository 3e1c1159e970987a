"""A shard's log and its upper: what to append, what to drop, what waits.

The *upper* is the first `txn` that a shard's log has not passed. A transaction is classified
against it three ways: below it, it is dropped and counted, never stashed and never staged again
(Invariant 3); at it, it is appended; above it, the lower ones are finished first. Transactions
that don't touch the shard are stepped over, so an untouched shard costs nothing and never waits.

An append never decides anything. The seal has decided, and `decide_append` only brings the log up
to it, one transaction at a time, with the sealed parts. Losing that race therefore means that
someone else has written the very same parts: there is nothing to undo and nothing to delete
(Invariant 4). Finding *other* parts under the same number is an error, never a skip (Invariant 8).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from tidemark.core.errors import InvariantViolation
from tidemark.core.ids import TXN_NONE, ShardId, Txn, WriterToken, next_txn
from tidemark.core.ledger import LINK, UPPER, Head, Put
from tidemark.core.seal import Part, Seal


class UpperRelation(Enum):
    """Where a transaction stands against an upper."""

    BELOW = "drop"
    AT = "append"
    ABOVE = "hold"


def classify(txn: Txn, upper: Txn) -> UpperRelation:
    if txn < upper:
        return UpperRelation.BELOW
    return UpperRelation.AT if txn == upper else UpperRelation.ABOVE


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One transaction's parts in a shard's log."""

    txn: Txn
    token: WriterToken
    parts: tuple[Part, ...]
    link: int = field(default=0, compare=False)
    """That of the seal; an entry that is read from a log has none."""
    before: Txn = field(default=TXN_NONE, compare=False)
    """The transaction that the log must have before this one."""

    @property
    def number(self) -> int:
        return self.txn

    @property
    def key(self) -> str:
        return self.token


@dataclass(frozen=True, slots=True)
class Appended:
    """The log has passed this transaction by our append."""

    txn: Txn


@dataclass(frozen=True, slots=True)
class UpperMismatch:
    """The log does not stand where the append expected it: dropped when `current` is past it."""

    expected: Txn
    current: Txn


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """Nothing more to append: the log has passed every sealed transaction below `upper`."""

    upper: Txn


@dataclass(frozen=True, slots=True)
class Paused:
    """The log waits at this transaction, because its gate held the shard there."""

    txn: Txn
    reason: str


AppendOutcome = Appended | UpperMismatch
NextAppend = LogEntry | CaughtUp | Paused


def entry_of(seal: Seal, shard: ShardId) -> LogEntry:
    added = seal.shards[shard]
    return LogEntry(seal.txn, seal.token, added.parts, seal.link, added.before)


def next_append(
    shard: ShardId, *, upper: Txn, seals: Sequence[Seal], release: Txn | None = None
) -> NextAppend:
    """What the shard's log needs next, given the seals from its upper on.

    Transactions that don't touch the shard are stepped over. A held one stops the log there until
    it is released by name, and the later ones wait behind it: that is all that pausing is.
    """
    sealed_upper = upper
    for seal in seals:
        if seal.txn < upper:
            continue
        if seal.txn != sealed_upper:
            raise InvariantViolation(f"seal {sealed_upper} is missing below seal {seal.txn}")
        sealed_upper = next_txn(seal.txn)
        if not seal.touches(shard):
            continue
        held = seal.shards[shard].held
        if held and release != seal.txn:
            return Paused(seal.txn, held)
        return entry_of(seal, shard)
    return CaughtUp(sealed_upper)


def decide_append(
    *, head: Head, expected: Txn, found: LogEntry | None, entry: LogEntry
) -> Put[LogEntry, AppendOutcome] | AppendOutcome:
    """Compare-and-append of one sealed transaction.

    `expected` is the upper that the entry was chosen for; everything in [expected, entry.txn) is
    known not to touch the shard. `found` is the entry that the log has under the same number. A
    version conflict with an unchanged upper comes back here with a new head, and puts again.
    """
    match classify(entry.txn, head.upper):
        case UpperRelation.BELOW:
            if found is not None and set(found.parts) != set(entry.parts):
                raise InvariantViolation(
                    f"transaction {entry.txn} is in the log with parts of {found.token},"
                    f" but its seal has parts of {entry.token}",
                    hint="the log was written by something that did not ask the seal",
                )
            return UpperMismatch(expected=expected, current=head.upper)
        case _ if head.upper != expected:
            return UpperMismatch(expected=expected, current=head.upper)
        case _ if entry.before >= head.upper:
            raise InvariantViolation(
                f"transaction {entry.txn} follows {entry.before} in its shard, and the log ends before that",
                hint="commits of the log are lost; `tidemark status` names them",
            )
        case _:
            marks = {UPPER: next_txn(entry.txn), LINK: entry.link}
            return Put(marks=marks, records=(entry,), result=Appended(entry.txn))
