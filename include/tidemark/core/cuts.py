"""Cuts: the transactions at which the states of a whole pipeline meet, with the version of each state.

A *cut* is a transaction at which every shard's state is exact. The table of cuts has a row for each state
that changed since the cut before, so its cost follows the change and not the number of shards. At a cut
`n`, a shard's version is that of its last row with `txn <= n`; a shard without one has no state yet.

Cuts are derived from the publishes and the seals, for readers that use neither: another engine needs only
this table. A missing cut makes the choice coarser, and nothing wrong. Each row names its transaction by
number and link, as everything does that depends on the history.

Restriction: the search looks back over a bounded number of transactions and publishes. Shards whose
policies meet more rarely than that get a cut only when all of them are up to date.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tidemark.core.errors import InvalidUsage
from tidemark.core.ids import TXN_NONE, ShardId, Txn
from tidemark.core.ledger import UPPER, Head, Put
from tidemark.core.listing import agreed
from tidemark.core.publish import VERSION_NONE, Published, published_txn, state_as_of
from tidemark.core.seal import Seal

TXNS_MAX: Final = 200
PUBLISHES_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class Cut:
    """The version of one shard's state at a cut. `link` is that of the transaction's seal."""

    number: int
    txn: Txn
    shard: ShardId
    version: int
    link: int

    def __post_init__(self) -> None:
        if self.txn <= TXN_NONE or self.version <= VERSION_NONE:
            raise InvalidUsage(f"no cut: transaction {self.txn}, version {self.version} of {self.shard!r}")

    @property
    def key(self) -> str:
        return self.shard


@dataclass(frozen=True, slots=True)
class Meeting:
    """A transaction at which every state is exact, and the versions of those that changed since the cut
    before."""

    txn: Txn
    versions: Mapping[ShardId, int]


def next_cut(
    *,
    last: Txn,
    as_of: Txn,
    touched: Mapping[ShardId, Txn],
    publishes: Mapping[ShardId, Sequence[Published]],
    seals: Sequence[Seal],
) -> Meeting | None:
    """The highest transaction above `last`, at or below `as_of`, at which every state is exact; None where
    there is none, or where the bounded search can't find it.

    `touched` has the shards that transactions above `last` touch, with the last such transaction. `publishes`
    are their newest, and `seals` the newest up to `as_of`, both in order and bounded."""
    seals_from = seals[0].txn if seals else Txn(as_of + 1)
    while as_of > last:
        found = {shard: state_as_of(publishes[shard], as_of=as_of) for shard in touched}
        published = {shard: published_txn(one) for shard, one in found.items()}
        behind = {shard: txn for shard, txn in published.items() if txn < touched[shard]}
        if any(max(txn, last) + 1 < seals_from for txn in behind.values()):
            return None
        lower = agreed(as_of=as_of, published=behind, seals=seals)
        if lower == as_of:
            changed = {shard: one.version for shard, one in found.items() if one and one.txn > last}
            return Meeting(as_of, changed)
        as_of = lower
    return None


def decide_cut(head: Head, meeting: Meeting, *, link: int) -> Put[Cut, Txn]:
    """A row for each state that changed."""
    rows = (
        Cut(head.upper + at, meeting.txn, shard, version, link)
        for at, (shard, version) in enumerate(sorted(meeting.versions.items()))
    )
    records = tuple(rows)
    return Put(marks={UPPER: head.upper + len(records)}, records=records, result=meeting.txn)
