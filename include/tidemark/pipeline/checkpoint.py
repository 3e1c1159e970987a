"""Checkpoint: record how far everything is done, then let the source forget what is below.

The order matters: the checkpoint is durable before the source is acknowledged, so a crash between
the two leaves the source remembering too much, never too little (Invariant 10).
"""

from __future__ import annotations

from tidemark.core.checkpoint import Checkpoint, TableMark, complete_prefix, decide_checkpoint
from tidemark.core.ids import TXN_NONE, ShardId, Txn
from tidemark.core.ledger import Head, Put
from tidemark.core.shard import LogEntry, Paused, next_append
from tidemark.pipeline.context import Pipeline, binding_at, unfinished
from tidemark.pipeline.settle import settle


def table_mark(pipeline: Pipeline, shard: ShardId, *, done_upper: Txn) -> TableMark:
    """Where a shard's log stands, and whether it waits: at a held transaction, or, released but not
    brought up yet, at one that the checkpoint has passed already. Without the second, a release
    that dies halfway would leave a log that nobody looks at again."""
    head = pipeline.control.log(shard).head()
    seals = pipeline.control.seals.read(head.upper, pipeline.control.seals.head().upper)
    match next_append(shard, upper=head.upper, seals=seals):
        case Paused(txn):
            paused_at = txn
        case LogEntry(txn) if txn < done_upper:
            paused_at = txn
        case _:
            paused_at = TXN_NONE
    return TableMark(upper=head.upper, version=head.version, paused_at=paused_at)


def reached(pipeline: Pipeline) -> Checkpoint:
    """The checkpoint that the seals and logs allow now."""
    sealed_upper, seals, shards = unfinished(pipeline)
    done_upper = pipeline.control.checkpoints.head().upper
    tables = {shard: table_mark(pipeline, shard, done_upper=done_upper) for shard in shards}
    txn = complete_prefix(sealed_upper=sealed_upper, seals=seals, tables=tables)
    return Checkpoint(txn, tables)


def checkpoint(pipeline: Pipeline) -> Txn:
    """Advance the checkpoint as far as it goes, and acknowledge the source up to it."""
    candidate = reached(pipeline)

    def decide(head: Head) -> Put[Checkpoint, Txn] | Txn:
        return decide_checkpoint(head=head, checkpoint=candidate)

    txn = settle(pipeline.control.checkpoints, decide, what="the checkpoint")
    if txn > TXN_NONE:
        pipeline.source.acknowledge(binding_at(pipeline, txn).upper)
    return txn
