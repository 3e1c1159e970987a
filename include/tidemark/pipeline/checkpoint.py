"""Checkpoint: record how far everything is done, then let the source forget what is below.

The order matters: the checkpoint is durable before the source is acknowledged, so a crash between
the two leaves the source remembering too much, never too little (Invariant 10).
"""

from __future__ import annotations

from dataclasses import replace

from tidemark.core.checkpoint import Checkpoint, TableMark, complete_prefix, decide_checkpoint
from tidemark.core.ids import TXN_NONE, ShardId, Txn
from tidemark.core.ledger import Head, Put
from tidemark.core.shard import LogEntry, NextAppend, Paused, next_append
from tidemark.pipeline.context import Pipeline, binding_at, unfinished
from tidemark.pipeline.settle import settle


def table_mark(pipeline: Pipeline, shard: ShardId, lower: Txn) -> tuple[TableMark, NextAppend]:
    """Where a shard's log stands, whether it waits at a held transaction, and what it needs next."""
    head = pipeline.control.log(shard).head()
    first = max(head.upper, lower)
    seals = pipeline.control.seals.read(first, pipeline.control.seals.head().upper)
    needs = next_append(shard, upper=first, seals=seals)
    waits_at = needs.txn if isinstance(needs, Paused) else TXN_NONE
    return TableMark(upper=head.upper, version=head.version, waits_at=waits_at), needs


def kept(mark: TableMark, needs: NextAppend, *, txn: Txn) -> TableMark:
    """The mark for the record. A log that was released and is not brought up yet still counts as
    waiting there: a release that dies halfway would else leave a log that nobody looks at again.
    Only the record says so; the prefix itself was worked out without it."""
    if isinstance(needs, LogEntry) and needs.txn <= txn:
        return replace(mark, waits_at=needs.txn)
    return mark


def reached(pipeline: Pipeline) -> Checkpoint:
    """The checkpoint that the seals and logs allow now."""
    behind = unfinished(pipeline)
    found = {shard: table_mark(pipeline, shard, lower) for shard, lower in behind.lowers.items()}
    marks = {shard: mark for shard, (mark, _) in found.items()}
    txn = complete_prefix(sealed_upper=behind.sealed_upper, seals=behind.seals, tables=marks)
    return Checkpoint(txn, {shard: kept(mark, needs, txn=txn) for shard, (mark, needs) in found.items()})


def checkpoint(pipeline: Pipeline) -> Txn:
    """Advance the checkpoint as far as it goes, and acknowledge the source up to it."""
    candidate = reached(pipeline)

    def decide(head: Head) -> Put[Checkpoint, Txn] | Txn:
        return decide_checkpoint(head=head, checkpoint=candidate)

    txn = settle(pipeline.control.checkpoints, decide, what="the checkpoint")
    if txn > TXN_NONE:
        pipeline.source.acknowledge(binding_at(pipeline, txn).upper)
    return txn
