"""Checkpoint: record how far everything is done, then let the source forget what is below.

The order matters: the checkpoint is durable before the source is acknowledged, so a crash between
the two leaves the source remembering too much, never too little (Invariant 10).
"""

from __future__ import annotations

from dataclasses import replace

from tidemark.core.checkpoint import Checkpoint, TableMark, decide_checkpoint
from tidemark.core.ids import TXN_NONE, Txn
from tidemark.core.ledger import Head, Put
from tidemark.core.shard import LogEntry, NextAppend
from tidemark.pipeline.context import Pipeline, binding_at, seal_at
from tidemark.pipeline.flushing import flushing
from tidemark.pipeline.history import require_history
from tidemark.pipeline.settle import settle


def kept(mark: TableMark, needs: NextAppend, *, txn: Txn) -> TableMark:
    """The mark for the record. A log that was released and is not brought up yet still counts as
    waiting there: a release that dies halfway would else leave a log that nobody looks at again.
    Only the record says so; the checkpoint itself was worked out without it."""
    if isinstance(needs, LogEntry) and needs.txn <= txn:
        return replace(mark, waits_at=needs.txn)
    return mark


def reached(pipeline: Pipeline) -> Checkpoint:
    """The checkpoint that the seals and logs allow now."""
    found = flushing(pipeline)
    txn = Txn(found.tracker.acknowledged.txn)
    tables = {shard: kept(mark, found.needs[shard], txn=txn) for shard, mark in found.marks.items()}
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
