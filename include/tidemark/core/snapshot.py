"""Where a snapshot of a log ends and listening begins, so that together they give everything once.

`since` is the first `txn` whose rows can still be read one by one; what lies below it is left only
as the rows that a fold of it keeps. So a snapshot may be taken as of `since - 1` or later: any
earlier one can't be told apart any more, and asking for it is refused instead of answered with
rows from later transactions.

States are published each at its own time, so those of several shards are seldom at one transaction. A state
is also exact at the later transactions that don't touch its shard; `agreed` finds where all of them meet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tidemark.core.errors import InvalidUsage
from tidemark.core.ids import TXN_FIRST, TXN_NONE, ShardId, Txn, next_txn
from tidemark.core.seal import Seal


class Truncated(InvalidUsage):
    """What is asked for lies below `since`, and maintenance was free to remove it."""

    def __init__(self, shard: ShardId, *, as_of: Txn, since: Txn) -> None:
        super().__init__(
            f"shard {shard!r} can't be read as of transaction {as_of}: single transactions are kept from"
            f" {since} on",
            hint=f"read as of {since - 1} or later; `retention` in the pipeline file says what is kept",
        )
        self.as_of = as_of
        self.since = since


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """A snapshot of every `txn` up to and with `as_of`, then each later one from `listen_from` on."""

    as_of: Txn

    @property
    def listen_from(self) -> Txn:
        """Where to start the `ReadAccount` of the listener."""
        return next_txn(self.as_of)

    def covers(self, txn: Txn) -> bool:
        """Whether the snapshot has it; what it doesn't have, the listener gets."""
        return txn <= self.as_of


@dataclass(frozen=True, slots=True)
class NotYet:
    """The log hasn't passed `as_of`: wait until its upper is above it, then plan again."""

    as_of: Txn
    upper: Txn


def plan_read(*, as_of: Txn, since: Txn, upper: Txn) -> ReadPlan | NotYet:
    """Split a read at `as_of`, for a log whose single transactions are readable in [since, upper)."""
    if since < TXN_FIRST or as_of < TXN_NONE:
        raise InvalidUsage(
            f"since {since} or as_of {as_of} is not a transaction", hint="as_of 0 is before all"
        )
    if as_of < since - 1:
        raise InvalidUsage(
            f"as_of {as_of} can't be told apart any more: single transactions are kept from {since} on",
            hint=f"read as of {since - 1} or later",
        )
    return ReadPlan(as_of) if as_of < upper else NotYet(as_of, upper)


def agreed(*, as_of: Txn, published: Mapping[ShardId, Txn], seals: Sequence[Seal]) -> Txn:
    """The transaction up to which every state is exact, given where each was published last at or below
    `as_of`, and the seals in between; `as_of` itself when all of them are exact there.

    A lower one is a bound, not the answer: below it a state may have to be taken from an earlier publish."""
    lacking = (
        seal.txn
        for seal in seals
        for shard, txn in published.items()
        if txn < seal.txn <= as_of and seal.touches(shard)
    )
    return Txn(min(lacking, default=next_txn(as_of)) - 1)
