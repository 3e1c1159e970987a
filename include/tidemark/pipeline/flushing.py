"""What holds a source's acknowledgement back: the flush tracker of the core, fed with durable facts.

A shard has flushed a transaction when the transaction is sealed and in the shard's log, or waits there
because its gate has paused it: its parts are durable either way. What is not sealed is not flushed for
anybody, and is told by its number instead of by every shard (Invariant 10).
"""

from __future__ import annotations

from collections.abc import Sequence

from tidemark.core.flush import FlushPosition, FlushTracker, Lag, SourceTxn
from tidemark.core.ids import ShardId
from tidemark.pipeline.checkpoint import table_mark
from tidemark.pipeline.context import Pipeline, unfinished

_COMMIT_OP = 0


def holding_back(pipeline: Pipeline) -> Sequence[Lag]:
    """The shards whose logs lack sealed transactions, the one that holds furthest back first."""
    behind = unfinished(pipeline)
    done = pipeline.control.checkpoints.head().upper - 1
    tracker = FlushTracker(acknowledged=SourceTxn(done))
    waits: dict[ShardId, int] = {}
    uppers: dict[ShardId, int] = {}
    for shard, lower in behind.lowers.items():
        mark, _ = table_mark(pipeline, shard, lower)
        waits[shard], uppers[shard] = mark.waits_at, mark.upper
    for seal in behind.seals:
        touched = [shard for shard in seal.shards if not 0 < waits.get(shard, 0) <= seal.txn]
        tracker.committed(FlushPosition(SourceTxn(seal.txn), _COMMIT_OP), touched, now_seconds=0)
    for shard, upper in uppers.items():
        if upper > 1:
            tracker.flushed(shard, FlushPosition(SourceTxn(upper - 1), _COMMIT_OP), now_seconds=0)
    return tracker.lagging()
