"""Maintain the table of cuts (`tidemark.core.publish`): after publishes, and before a state is cleaned up.

After a publish, one commit advances the table if the states meet at a later transaction than before. Cuts
that are missing, after a crash or because the table was restored or removed, are added by the next publish.
A cut of a transaction that the history does not have stops publishers, as a checkpoint does (Invariant 16).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tidemark.core.errors import InvalidUsage
from tidemark.core.ids import QUARANTINE, TXN_FIRST, TXN_NONE, ShardId, Txn
from tidemark.core.ledger import UPPER, Head, Put
from tidemark.core.publish import (
    PUBLISHES_MAX,
    TXNS_MAX,
    Cut,
    Meeting,
    Published,
    decide_cut,
    next_cut,
    state_as_of,
)
from tidemark.core.seal import touch_mark
from tidemark.pipeline.context import settle
from tidemark.pipeline.history import require_known
from tidemark.ports.control import Control


def advance_cut(control: Control, shards: Sequence[ShardId]) -> Txn:
    """Record the newest transaction at which the states of all these shards are exact. Pass all shards of the
    pipeline. Returns the newest cut, 0 when there is none."""
    ledger = control.cuts

    def decide(head: Head) -> Put[Cut, Txn] | Txn:
        last = _last(control, head)
        meeting = _meeting(control, shards, last)
        if meeting is None or not meeting.versions:
            return last
        (seal,) = control.seals.read(meeting.txn, meeting.txn + 1)
        return decide_cut(head, meeting, link=seal.link)

    return settle(ledger, decide, what="the cut")


def _last(control: Control, head: Head) -> Txn:
    """The transaction of the newest cut; `HistoryLost` where the history does not have it."""
    for cut in control.cuts.read(head.upper - 1, head.upper):
        require_known(control, "the newest cut", txn=cut.txn, link=cut.link)
        return cut.txn
    return TXN_NONE


def _meeting(control: Control, shards: Sequence[ShardId], last: Txn) -> Meeting | None:
    seals = control.seals
    as_of = Txn(seals.head().upper - 1)
    recent = seals.read(max(last, as_of - TXNS_MAX) + 1, as_of + 1)
    # Another process may have shards that this one's pipeline file does not have yet. Shards that no seal
    # since the last cut touches need no look.
    since = () if last >= as_of - TXNS_MAX else shards
    names = {*since, *(shard for seal in recent for shard in seal.shards)} - {QUARANTINE}
    touched = {shard: Txn(seals.mark(touch_mark(shard))) for shard in sorted(names)}
    touched = {shard: txn for shard, txn in touched.items() if txn > last}
    publishes = {shard: _publishes(control, shard) for shard in touched}
    return next_cut(last=last, as_of=as_of, touched=touched, publishes=publishes, seals=recent)


def _publishes(control: Control, shard: ShardId) -> Sequence[Published]:
    ledger = control.publishes(shard)
    upper = ledger.head().upper
    return ledger.read(max(TXN_FIRST, upper - PUBLISHES_MAX), upper)


def renew_cut(control: Control, shard: ShardId, same_rows: Callable[[int], int]) -> None:
    """Record a shard's newest version with the rows of the newest cut, before the files of older versions are
    deleted. Otherwise, in a table that was compacted and then idle for long, the recorded version would be
    gone.

    `same_rows` returns the newest version that has the same rows as the given one."""
    ledger = control.cuts

    def decide(head: Head) -> Put[Cut, None] | None:
        last = _last(control, head)
        base = state_as_of(_publishes(control, shard), as_of=last)
        named = ledger.find(shard)
        if base is None or not named:
            return None
        try:
            version = same_rows(base.version)
        except InvalidUsage:
            return None  # It was superseded so long ago that the table no longer has it.
        if version <= named[-1].version:
            return None
        (newest,) = ledger.read(head.upper - 1, head.upper)
        row = Cut(head.upper, newest.txn, shard, version, newest.link)
        return Put(marks={UPPER: head.upper + 1}, records=(row,), result=None)

    settle(ledger, decide, what=f"the cut of {shard}")


def cuts_of(
    control: Control, *, as_of: int | None = None, last: int = 20
) -> list[tuple[Txn, dict[ShardId, int]]]:
    """The newest cuts at or below a transaction, the newest first, each with every shard's version."""
    ledger = control.cuts
    versions: dict[ShardId, int] = {}
    found: dict[Txn, dict[ShardId, int]] = {}
    for cut in ledger.read(1, ledger.head().upper):
        if as_of is not None and cut.txn > as_of:
            break
        versions[cut.shard] = cut.version
        found[cut.txn] = dict(versions)
        if len(found) > last:
            del found[next(iter(found))]
    return list(reversed(found.items()))
