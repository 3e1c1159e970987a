"""Publishing what is due: which shards' states follow their logs now, and whose turn it is.

Spark is started only when a shard's policy asks for it, so whoever finds nothing due is through at once.
"""

from __future__ import annotations

import time
from typing import Final

from tidemark.assemble import Deployment
from tidemark.core.ids import ShardId, Txn
from tidemark.core.publish import BeingPublished, Published
from tidemark.pipeline.context import Attempt
from tidemark.pipeline.publish import is_due, publish
from tidemark.pipeline.run import Progress, unwatched

PUBLISHER_WAIT_SECONDS_MAX: Final = 900.0


def publish_due(
    deployment: Deployment, attempt: Attempt, *, progress: Progress = unwatched
) -> dict[ShardId, Published]:
    """Publish every shard whose policy asks for it; Spark is started only if one does."""
    done: dict[ShardId, Published] = {}
    for shard in deployment.shards:
        outcome = publish_when_free(deployment, attempt, shard, progress=progress)
        if isinstance(outcome, Published):
            done[shard] = outcome
    return done


def publish_when_free(
    deployment: Deployment, attempt: Attempt, shard: ShardId, *, progress: Progress
) -> object | None:
    """Publish a shard if that is due; while another process does, wait, and ask again whether it is."""
    deadline = time.monotonic() + PUBLISHER_WAIT_SECONDS_MAX
    while is_due(deployment.control, shard, deployment.policy(shard)):
        progress(Txn(deployment.control.log(shard).head().upper - 1), f"publish {shard}")
        state = deployment.state()
        try:
            return publish(deployment.control, state, shard, token=attempt.token)
        except BeingPublished:
            if time.monotonic() > deadline:
                raise
            time.sleep(1)
    return None
