"""Checkpoints: the last transaction up to which everything is done, and what a source may discard.

A checkpoint `n` means that every `txn <= n` is sealed and in the log of each shard it touches (or recorded as
skipped, or waiting in a shard that its gate has paused, which is named). It is the complete prefix, so an
open later transaction never starves it. It is written by compare-and-max, so it never decreases, whichever
writer is last (Invariant 9). `FlushTracker` computes it, so there is one answer for checkpoint and
acknowledgement (Invariant 10).

A source (for example a Postgres slot) discards acknowledged input, so an acknowledgement can't be withdrawn.
`FlushTracker` receives the source's commits and each shard's flushes, and reports when the acknowledged
source transaction advances.

Promise (Invariant 10): the acknowledged transaction is complete, durable for every shard, and never
decreases. A flush before the commit fragment, by size or by timer, is kept and aligned at the commit. `>=`
completes. A transaction that doesn't touch a shard never blocks it.

Terms:

- *position*: (source transaction, op). An op is a row's place in its transaction; the commit's op is the
  highest.
- A shard *lags* from a commit that touches it until its flushed position covers the last op it received of
  that transaction. Without calls of `received`, the commit's own op counts instead, which can only delay.
- *floor* of a lagging shard: the source transaction that it counts as having flushed *into*. It is the higher
  of its flushed position's transaction and the one before the commit at which it began to lag.

The rule: while nothing lags, the acknowledged transaction is the last committed one. While a shard lags, it
is the lowest floor minus one, and it is reported at a flush or a removal, never at a commit.

Why it is safe: a flushed position names an op, and only a commit marks the end of a transaction. A shard that
flushed into n has everything before n, and perhaps not all of n: so n - 1. A shard that began to lag at n was
caught up before, so n - 1 is complete for it; it still counts as flushed *into* n - 1, one less than
possible. That is deliberate: input that is acknowledged late is sent twice after a crash, and the uppers drop
it; input that is acknowledged early is lost.

Restrictions: source transactions arrive one after the other, in the order of their numbers, each ended by its
commit; two open ones are rejected. A repeated one (after a reconnect) changes nothing. Nothing here is
durable: rebuild the tracker from the acknowledged transaction and the shards' flushed positions, and repeat
the commits after that transaction. Calls are not synchronized.

In a pipeline a commit is a seal and a flush is a log's upper, so transactions arrive complete:
`flush_tracker` rebuilds the tracker from these facts. `received` and `removed` are for callers that see rows
before their commit, or shards that are removed; a sealed transaction needs neither.

Cost: a notification is logarithmic in the number of lagging shards; memory is one position for each shard
that ever flushed and was not removed.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final, NewType

from tidemark.core.errors import InvalidUsage, InvariantViolation
from tidemark.core.ids import TXN_FIRST, TXN_NONE, ShardId, Txn, next_txn
from tidemark.core.ledger import UPPER, Head, Put
from tidemark.core.seal import Seal

SourceTxn = NewType("SourceTxn", int)

SOURCE_TXN_NONE: Final = SourceTxn(0)

# Below this much garbage, rebuilding the heap costs more than it saves.
_GARBAGE_ENTRIES_MIN: Final = 64


@dataclass(frozen=True, slots=True, order=True)
class FlushPosition:
    """A position in the source's stream, ordered by transaction, then by op."""

    txn: SourceTxn
    op: int

    def __post_init__(self) -> None:
        if self.txn <= SOURCE_TXN_NONE or self.op < 0:
            raise InvalidUsage(
                f"(transaction {self.txn}, op {self.op}) is not a position of the source",
                hint="transactions start at 1, ops at 0",
            )

    def __str__(self) -> str:
        return f"{self.txn}.{self.op}"


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """Every source transaction up to and including `txn` is durable for every shard it touches.

    `position` is the last commit's position if everything committed is durable, and None while a shard lags:
    `txn` is then a bound between complete transactions, perhaps without a commit of its own."""

    txn: SourceTxn
    position: FlushPosition | None


@dataclass(frozen=True, slots=True)
class Lag:
    """A shard that holds the acknowledgement back: its flushed position, and the position it must reach."""

    shard: ShardId
    flushed: FlushPosition | None
    wanted: FlushPosition
    since_seconds: float


@dataclass(slots=True)
class _Lagging:
    wanted: FlushPosition
    reach: FlushPosition
    floor: SourceTxn
    since_seconds: float


class FlushTracker:
    """Receives commits, rows and flushes; returns the new acknowledgement, or None.

    It is built from durable facts: the last acknowledged source transaction, and each shard's flushed
    position, with the time it was reached if known. The caller repeats the commits after that transaction."""

    def __init__(
        self,
        *,
        acknowledged: SourceTxn = SOURCE_TXN_NONE,
        flushed: Mapping[ShardId, FlushPosition] | None = None,
        flushed_seconds: Mapping[ShardId, float] | None = None,
    ) -> None:
        if acknowledged < SOURCE_TXN_NONE:
            raise InvalidUsage(f"acknowledged transaction {acknowledged} is negative", hint="0 is none")
        self._acknowledged = Acknowledged(acknowledged, None)
        self._flushed = dict(flushed or {})
        self._flushed_seconds = flushed_seconds or {}
        self._lagging: dict[ShardId, _Lagging] = {}
        # (floor, shard), with lazy deletion: an entry counts while it equals the shard's current floor.
        self._heap: list[tuple[SourceTxn, ShardId]] = []
        self._last: FlushPosition | None = None
        self._last_shards: AbstractSet[ShardId] = frozenset()
        self._open_txn = SOURCE_TXN_NONE
        self._open: dict[ShardId, FlushPosition] = {}

    @property
    def acknowledged(self) -> Acknowledged:
        """The last report, or the value that the tracker was built from."""
        return self._acknowledged

    def received(self, shard: ShardId, position: FlushPosition) -> None:
        """A row of the open source transaction arrived for the shard; its flush may come at any time.

        Call it for every row of a transaction or for none: the highest op counts as the shard's last."""
        if position.txn <= self._committed_txn:
            return
        self._check_in_order(position.txn)
        if position.txn > self._open_txn:
            self._open_txn = position.txn
            self._open = {}
        known = self._open.get(shard)
        if known is None or position > known:
            self._open[shard] = position

    def committed(
        self, position: FlushPosition, shards: Iterable[ShardId] = (), *, now_seconds: float
    ) -> Acknowledged | None:
        """The commit fragment of a source transaction, with the shards it touches; without shards it is a
        keep-alive.

        A shard with received rows counts as touched even if it isn't listed. It reports only if nothing lags
        afterwards, so idle keep-alives never pass an unflushed transaction."""
        listed = frozenset(shards)
        if position.txn <= self._committed_txn:
            self._check_resent(position, listed)
            return None
        self._check_in_order(position.txn)
        reaches = self._open if self._open_txn == position.txn else {}
        for shard, reach in reaches.items():
            if reach > position:
                raise InvalidUsage(
                    f"commit at {position} is before the row at {reach} of shard {shard}",
                    hint="a commit's op is the highest of its transaction",
                )
        touched = listed | reaches.keys()
        for shard in touched:
            self._want(shard, position, reaches.get(shard, position), now_seconds)
        self._last, self._last_shards = position, touched
        return None if self._lagging else self._advanced()

    def flushed(self, shard: ShardId, position: FlushPosition, *, now_seconds: float) -> Acknowledged | None:
        """Everything that the shard received up to `position` is durable.

        A repeated or lower position, or one for a shard that doesn't lag, reports nothing."""
        known = self._flushed.get(shard)
        if known is not None and position <= known:
            return None
        self._flushed[shard] = position
        lagging = self._lagging.get(shard)
        if lagging is None:
            return None
        if position >= lagging.reach:
            self._flushed[shard] = max(position, lagging.wanted)
            del self._lagging[shard]
        else:
            lagging.since_seconds = now_seconds
            if position.txn > lagging.floor:
                lagging.floor = position.txn
                heapq.heappush(self._heap, (lagging.floor, shard))
        return self._advanced()

    def removed(self, shard: ShardId) -> Acknowledged | None:
        """The shard was removed from the pipeline: nothing waits for it any more."""
        self._flushed.pop(shard, None)
        self._open.pop(shard, None)
        if self._lagging.pop(shard, None) is None:
            return None
        return self._advanced()

    def lagging(self) -> tuple[Lag, ...]:
        """All shards that hold the acknowledgement back, lowest floor first."""
        order = sorted(self._lagging.items(), key=lambda item: (item[1].floor, item[0]))
        return tuple(
            Lag(shard, self._flushed.get(shard), lagging.wanted, lagging.since_seconds)
            for shard, lagging in order
        )

    def stalled(self, *, now_seconds: float, grace_seconds: float) -> tuple[Lag, ...]:
        """The lagging shards without progress for longer than the grace.

        The time counts from when a shard began to lag, or from its last flush that advanced. New traffic
        doesn't reset it, because a busy source would hide a dead shard."""
        return tuple(lag for lag in self.lagging() if now_seconds - lag.since_seconds > grace_seconds)

    @property
    def _committed_txn(self) -> SourceTxn:
        return self._acknowledged.txn if self._last is None else self._last.txn

    def _check_in_order(self, txn: SourceTxn) -> None:
        if txn < self._open_txn:
            raise InvalidUsage(
                f"source transaction {txn} arrived while {self._open_txn} is open",
                hint="pass source transactions one at a time, in the order of their numbers",
            )

    def _check_resent(self, position: FlushPosition, shards: frozenset[ShardId]) -> None:
        # Only the last commit is kept, so only there can a changed transaction be detected.
        if self._last is None or position.txn != self._last.txn:
            return
        if position != self._last or not shards <= self._last_shards:
            raise InvariantViolation(
                f"source transaction {position.txn} was committed at {self._last} for"
                f" {sorted(self._last_shards)}, and again at {position} for {sorted(shards)}",
                hint="a transaction number must always identify the same data;"
                " check the source before more is acknowledged",
            )

    def _want(self, shard: ShardId, commit: FlushPosition, reach: FlushPosition, now_seconds: float) -> None:
        flushed = self._flushed.get(shard)
        if flushed is not None and flushed >= reach:
            self._flushed[shard] = max(flushed, commit)
            # The shard doesn't lag: a flush this high has ended every earlier lag.
            return
        lagging = self._lagging.get(shard)
        if lagging is not None:
            lagging.wanted, lagging.reach = commit, reach
            return
        before = SourceTxn(commit.txn - 1)
        floor = before if flushed is None else max(before, flushed.txn)
        # A rebuilt tracker may receive a commit after the flush that followed it.
        since_seconds = max(now_seconds, self._flushed_seconds.get(shard, now_seconds))
        self._lagging[shard] = _Lagging(commit, reach, floor, since_seconds)
        heapq.heappush(self._heap, (floor, shard))

    def _advanced(self) -> Acknowledged | None:
        if self._lagging:
            now = Acknowledged(SourceTxn(self._floor_lowest() - 1), None)
        else:
            self._heap.clear()
            now = Acknowledged(self._committed_txn, self._last)
        if now.txn <= self._acknowledged.txn:
            return None
        self._acknowledged = now
        return now

    def _floor_lowest(self) -> SourceTxn:
        """The lowest floor. Afterwards a live entry is on top, and garbage is bounded by the number of live
        entries."""
        if len(self._heap) > 2 * len(self._lagging) + _GARBAGE_ENTRIES_MIN:
            self._heap = [(lagging.floor, shard) for shard, lagging in self._lagging.items()]
            heapq.heapify(self._heap)
        while True:
            floor, shard = self._heap[0]
            lagging = self._lagging.get(shard)
            if lagging is not None and lagging.floor == floor:
                return floor
            heapq.heappop(self._heap)


# Checkpoints.
_COMMIT_OP: Final = 0


@dataclass(frozen=True, slots=True)
class TableMark:
    """A shard's log at a checkpoint: its upper, and whether it waits.

    `waits_at` is the held transaction that the log waits at (or, just released, has yet to append); 0 if it
    doesn't wait."""

    upper: Txn
    waits_at: Txn = TXN_NONE

    def waits_for(self, txn: Txn) -> bool:
        """Whether the log waits at this transaction or at an earlier one."""
        return TXN_NONE < self.waits_at <= txn


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint on record, written once per advance. A record without a number counts as 0.

    `tables` has the shards touched since the previous checkpoint, and the paused ones. A pipeline's full map
    is the newest mark of each shard, so an untouched shard costs nothing."""

    txn: Txn = TXN_NONE
    tables: Mapping[ShardId, TableMark] = field(default_factory=dict)
    link: int = 0
    """The link of the transaction's seal. It detects a history that has lost commits: such a history has no
    such seal or another one."""

    @property
    def number(self) -> int:
        return self.txn

    @property
    def key(self) -> str:
        return ""


def flush_tracker(
    *,
    done: Txn,
    seals: Sequence[Seal],
    tables: Mapping[ShardId, TableMark],
    sealed_seconds: Mapping[Txn, float] | None = None,
    flushed_seconds: Mapping[ShardId, float] | None = None,
) -> FlushTracker:
    """Build a tracker from durable facts: the last checkpoint, the seals above it, and the logs' marks.

    Its acknowledged transaction is the complete prefix. A shard that waits at or before a transaction has it
    sealed and durable, so it doesn't lag there. The times are for alarms and may be left out."""
    flushed = {
        shard: FlushPosition(SourceTxn(mark.upper - 1), _COMMIT_OP)
        for shard, mark in tables.items()
        if mark.upper > TXN_FIRST
    }
    tracker = FlushTracker(acknowledged=SourceTxn(done), flushed=flushed, flushed_seconds=flushed_seconds)
    for seal in seals:
        touched = [shard for shard in seal.shards if not tables[shard].waits_for(seal.txn)]
        at_seconds = (sealed_seconds or {}).get(seal.txn, 0.0)
        tracker.committed(FlushPosition(SourceTxn(seal.txn), _COMMIT_OP), touched, now_seconds=at_seconds)
    return tracker


def decide_checkpoint(*, head: Head, checkpoint: Checkpoint) -> Put[Checkpoint, Txn] | Txn:
    """Compare-and-max. Returns the checkpoint in force, this one or a higher one."""
    if checkpoint.txn < head.upper:
        return Txn(head.upper - 1)
    marks = {UPPER: next_txn(checkpoint.txn)}
    return Put(marks=marks, records=(checkpoint,), result=checkpoint.txn)
