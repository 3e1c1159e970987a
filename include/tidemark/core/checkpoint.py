"""Checkpoints: how far everything is done, as one number.

A checkpoint `n` says that every `txn <= n` is sealed and in the log of each shard it touches (or
recorded as skipped, or waiting in a shard that its gate has paused, which is named). It is the
complete prefix, so an open later transaction never starves it, and it is written by
compare-and-max, so it never goes back, whoever writes last (Invariant 9).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tidemark.core.ids import TXN_NONE, ShardId, Txn, next_txn
from tidemark.core.ledger import UPPER, Head, Put
from tidemark.core.seal import Seal


@dataclass(frozen=True, slots=True)
class TableMark:
    """A shard's log at a checkpoint: its upper, and a version of the table that shows it.

    `waits_at` is the held transaction that the log waits at (or, just released, has yet to take),
    0 when it doesn't wait."""

    upper: Txn
    version: int
    waits_at: Txn = TXN_NONE


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Written once per advance. One that was kept without a number counts as 0: start from there.

    `tables` has the shards touched since the checkpoint before, and the paused ones: the map of a
    pipeline is the newest mark of each shard, and an untouched shard costs nothing."""

    txn: Txn = TXN_NONE
    tables: Mapping[ShardId, TableMark] = field(default_factory=dict)

    @property
    def number(self) -> int:
        return self.txn

    @property
    def key(self) -> str:
        return ""


def complete_prefix(*, sealed_upper: Txn, seals: Sequence[Seal], tables: Mapping[ShardId, TableMark]) -> Txn:
    """The highest complete transaction, from the seals above the last checkpoint and the logs' marks."""
    for seal in seals:
        for shard in seal.shards:
            mark = tables[shard]
            waits = mark.waits_at != TXN_NONE and mark.waits_at <= seal.txn
            if mark.upper <= seal.txn and not waits:
                return Txn(seal.txn - 1)
    return Txn(sealed_upper - 1)


def decide_checkpoint(*, head: Head, checkpoint: Checkpoint) -> Put[Checkpoint, Txn] | Txn:
    """Compare-and-max. Returns the checkpoint in force, ours or a higher one."""
    if checkpoint.txn < head.upper:
        return Txn(head.upper - 1)
    marks = {UPPER: next_txn(checkpoint.txn)}
    return Put(marks=marks, records=(checkpoint,), result=checkpoint.txn)
