"""Checkpoints: how far everything is done, as one number.

A checkpoint `n` says that every `txn <= n` is sealed and in the log of each shard it touches (or
recorded as skipped, or waiting in a shard that its gate has paused, which is named). It is the
complete prefix, so an open later transaction never starves it, and it is written by
compare-and-max, so it never goes back, whoever writes last (Invariant 9). How far it may go is what
the flush tracker acknowledges, so that there is one answer to both questions (Invariant 10).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tidemark.core.flush import FlushPosition, FlushTracker, SourceTxn
from tidemark.core.ids import TXN_FIRST, TXN_NONE, ShardId, Txn, next_txn
from tidemark.core.ledger import UPPER, Head, Put
from tidemark.core.seal import Seal

_COMMIT_OP: Final = 0


@dataclass(frozen=True, slots=True)
class TableMark:
    """A shard's log at a checkpoint: its upper, and whether it waits.

    `waits_at` is the held transaction that the log waits at (or, just released, has yet to take),
    0 when it doesn't wait."""

    upper: Txn
    waits_at: Txn = TXN_NONE

    def waits_for(self, txn: Txn) -> bool:
        """Whether the log waits at this transaction, or at one before it."""
        return TXN_NONE < self.waits_at <= txn


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Written once per advance. One that was kept without a number counts as 0: start from there.

    `tables` has the shards touched since the checkpoint before, and the paused ones: the map of a
    pipeline is the newest mark of each shard, and an untouched shard costs nothing."""

    txn: Txn = TXN_NONE
    tables: Mapping[ShardId, TableMark] = field(default_factory=dict)
    link: int = 0
    """That of the transaction's seal. A checkpoint is a witness: a history that has no such seal, or another
    one, has lost commits."""

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
    """The acknowledgement by durable facts: the last checkpoint, the seals above it, and the logs' marks.

    What it says is acknowledged is the complete prefix. A shard that waits at or before a transaction has it
    sealed and durable, so it doesn't lag there. The times are for alarms, and may be left out."""
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
    """Compare-and-max. Returns the checkpoint in force, ours or a higher one."""
    if checkpoint.txn < head.upper:
        return Txn(head.upper - 1)
    marks = {UPPER: next_txn(checkpoint.txn)}
    return Put(marks=marks, records=(checkpoint,), result=checkpoint.txn)
