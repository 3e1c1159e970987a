"""A shard's log and its upper: which transaction to append, drop or hold.

The *upper* is the first `txn` that a shard's log does not have yet. A transaction is classified against it:
below the upper, it is dropped and counted, never stashed and never staged again (Invariant 3); at the upper,
it is appended; above it, the lower ones are finished first. Transactions that don't touch the shard are
passed, so an untouched shard costs nothing and never waits.

An append decides nothing. The seal has decided, and `decide_append` only brings the log up to it, one
transaction at a time, with the sealed parts. So a lost race means that another process has written the same
parts: there is nothing to undo or delete (Invariant 4). *Other* parts under the same number are an error,
never a skip (Invariant 8).
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
    """A transaction's relation to an upper."""

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
    """The link of the seal; an entry that is read from a log has none."""
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
    """Our append has moved the log past this transaction."""

    txn: Txn


@dataclass(frozen=True, slots=True)
class UpperMismatch:
    """The log's upper is not the expected one; if `current` is above it, the append is dropped."""

    expected: Txn
    current: Txn


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """Nothing more to append: the log has every sealed transaction below `upper`."""

    upper: Txn


@dataclass(frozen=True, slots=True)
class Paused:
    """The log waits at this transaction, because the gate held the shard there."""

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
    """The next append of the shard's log, given the seals from its upper on.

    Transactions that don't touch the shard are passed. A held one stops the log there until it is released by
    number, and later ones wait behind it: this is how a shard is paused."""
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

    `expected` is the upper that the entry was chosen for; nothing in [expected, entry.txn) touches the shard.
    `found` is the log's entry under the same number. After a version conflict with an unchanged upper, this
    is called again with the new head and puts again."""
    match classify(entry.txn, head.upper):
        case UpperRelation.BELOW:
            if found is not None and set(found.parts) != set(entry.parts):
                raise InvariantViolation(
                    f"transaction {entry.txn} is in the log with parts of {found.token},"
                    f" but its seal has parts of {entry.token}",
                    hint="something else than tidemark wrote to the log: restore it from a backup",
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
