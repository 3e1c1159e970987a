"""Checkpoint: how far every shard has flushed, and the source's acknowledgement; and cuts, where states meet.

The order matters. The checkpoint is durable before the source is acknowledged, so a crash between the two
leaves the source with too much, never with too little (Invariant 10).

The core's flush tracker, fed with durable facts, decides how far that is. A shard has flushed a transaction
when the transaction is sealed and is in the shard's log, or waits there because its gate has paused it: its
parts are durable either way. A transaction that is not sealed is not flushed for any shard, and is reported
by its number instead of by every shard. The same tracker reports which shards hold the checkpoint back, and
which do so for too long (Invariant 14).

The table of cuts (`tidemark.core.publish`) is maintained after publishes, and before a state is cleaned up.

After a publish, one commit advances the table if the states meet at a later transaction than before. Cuts
that are missing, after a crash or because the table was restored or removed, are added by the next publish.
A cut of a transaction that the history does not have stops publishers, as a checkpoint does (Invariant 16).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from tidemark.core.checkpoint import (
    Checkpoint,
    FlushTracker,
    Lag,
    TableMark,
    decide_checkpoint,
    flush_tracker,
)
from tidemark.core.errors import InvalidUsage
from tidemark.core.ids import QUARANTINE, TXN_FIRST, TXN_NONE, ShardId, Txn
from tidemark.core.ledger import UPPER, Head, Put
from tidemark.core.log import CaughtUp, LogEntry, NextAppend, Paused, next_append
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
from tidemark.core.status import Stalled
from tidemark.pipeline.context import Pipeline, binding_at, seal_at, settle, unfinished
from tidemark.pipeline.history import require_history, require_known
from tidemark.ports.control import Control, ReportsCommitTime

GRACE_SECONDS: Final = 900.0
"""A sealed transaction is in its logs a moment later, unless the process that appends it is gone."""


@dataclass(frozen=True, slots=True)
class Flushing:
    """The tracker as of now. For the shards that may be behind: the marks of their logs, and what they need
    next."""

    tracker: FlushTracker
    marks: Mapping[ShardId, TableMark]
    needs: Mapping[ShardId, NextAppend]


def table_mark(pipeline: Pipeline, shard: ShardId, lower: Txn) -> tuple[TableMark, NextAppend]:
    """The upper of a shard's log, the held transaction that it waits at, if any, and what it needs next."""
    head = pipeline.control.log(shard).head()
    first = max(head.upper, lower)
    seals = pipeline.control.seals.read(first, pipeline.control.seals.head().upper)
    needs = next_append(shard, upper=first, seals=seals)
    waits_at = needs.txn if isinstance(needs, Paused) else TXN_NONE
    return TableMark(head.upper, waits_at), needs


def flushing(pipeline: Pipeline, *, timed: bool = False) -> Flushing:
    """The tracker, from the current seals and logs. With `timed`, it also has the time since which each shard
    lags."""
    behind = unfinished(pipeline)
    found = {shard: table_mark(pipeline, shard, lower) for shard, lower in behind.lowers.items()}
    marks = {shard: mark for shard, (mark, _) in found.items()}
    sealed: dict[Txn, float] = {}
    flushed: dict[ShardId, float] = {}
    if timed:
        control = pipeline.control
        sealed = {seal.txn: _seconds(control.seals, seal.txn) for seal in behind.seals}
        flushed = {shard: _seconds(control.log(shard), mark.upper - 1) for shard, mark in marks.items()}
    tracker = flush_tracker(
        done=behind.done, seals=behind.seals, tables=marks, sealed_seconds=sealed, flushed_seconds=flushed
    )
    return Flushing(tracker, marks, {shard: needs for shard, (_, needs) in found.items()})


def is_settled(pipeline: Pipeline, shard: ShardId) -> bool:
    """Whether every bound transaction is decided and the shard's log has all of them.

    This reads the log itself. A checkpoint shows only where the log waited then, and the next checkpoint is
    written only after something is bound, which may in turn wait for this."""
    if pipeline.control.bindings.head().upper != pipeline.control.seals.head().upper:
        return False
    lower = unfinished(pipeline).lowers.get(shard)
    return lower is None or isinstance(table_mark(pipeline, shard, lower)[1], CaughtUp)


def is_paused(pipeline: Pipeline, shard: ShardId) -> bool:
    """Whether the shard's log waits at a transaction that its gate has held."""
    lower = unfinished(pipeline).lowers.get(shard)
    return lower is not None and isinstance(table_mark(pipeline, shard, lower)[1], Paused)


def paused_shards(pipeline: Pipeline) -> dict[ShardId, Paused]:
    """The shards whose logs wait at a transaction that their gate has held, wherever the checkpoint is."""
    needs = flushing(pipeline).needs
    return {shard: one for shard, one in needs.items() if isinstance(one, Paused)}


def holding_back(pipeline: Pipeline) -> Sequence[Lag]:
    """The shards whose logs lack sealed transactions, the one that holds furthest back first."""
    return flushing(pipeline).tracker.lagging()


def stalls(
    pipeline: Pipeline, *, now_seconds: float, grace_seconds: float = GRACE_SECONDS
) -> tuple[Stalled, ...]:
    """The shards and transactions that have work to do and have not moved for longer than the grace, by
    recorded times."""
    lags = flushing(pipeline, timed=True).tracker.stalled(
        now_seconds=now_seconds, grace_seconds=grace_seconds
    )
    stalled = [
        Stalled(
            f"shard {lag.shard}",
            datetime.fromtimestamp(lag.since_seconds, UTC),
            f"it lacks the sealed transaction {lag.wanted.txn}",
        )
        for lag in lags
    ]
    bindings, seals = pipeline.control.bindings, pipeline.control.seals
    upper, sealed_upper = bindings.head().upper, seals.head().upper
    if sealed_upper < upper:
        since = max(_seconds(bindings, sealed_upper), _seconds(seals, sealed_upper - 1))
        if now_seconds - since > grace_seconds:
            at = datetime.fromtimestamp(since, UTC)
            stalled.append(Stalled(f"transaction {sealed_upper}", at, "it is bound and not sealed"))
    return tuple(stalled)


def _seconds(ledger: object, number: int) -> float:
    """When a record was committed; 0 when that is not known."""
    at = ledger.written_at(number) if isinstance(ledger, ReportsCommitTime) else None
    return at.timestamp() if at is not None else 0.0


def recorded_mark(mark: TableMark, needs: NextAppend, *, txn: Txn) -> TableMark:
    """The mark to record. A log that was released and has not caught up yet still counts as waiting:
    otherwise, after a release that dies halfway, nothing would look at this log again. Only the record has
    this mark; the checkpoint itself is computed without it."""
    if isinstance(needs, LogEntry) and needs.txn <= txn:
        return replace(mark, waits_at=needs.txn)
    return mark


def reached(pipeline: Pipeline) -> Checkpoint:
    """The checkpoint that the seals and logs allow now."""
    found = flushing(pipeline)
    txn = Txn(found.tracker.acknowledged.txn)
    tables = {shard: recorded_mark(mark, found.needs[shard], txn=txn) for shard, mark in found.marks.items()}
    return Checkpoint(txn, tables)


def checkpoint(pipeline: Pipeline) -> Txn:
    """Advance the checkpoint as far as the flush tracker allows, and acknowledge the source up to it."""
    require_history(pipeline.control)
    candidate = reached(pipeline)

    def decide(head: Head) -> Put[Checkpoint, Txn] | Txn:
        if candidate.txn < head.upper:
            return decide_checkpoint(head=head, checkpoint=candidate)
        link = seal_at(pipeline, candidate.txn).link
        return decide_checkpoint(head=head, checkpoint=replace(candidate, link=link))

    txn = settle(pipeline.control.checkpoints, decide, what="the checkpoint")
    if txn > TXN_NONE:
        pipeline.source.acknowledge(binding_at(pipeline, txn).upper)
    return txn


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
