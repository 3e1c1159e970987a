"""Publishing what is due: which shards' states follow their logs now.

Spark is started only when a shard's policy asks for it, so whoever finds nothing due is through at once.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final

from tidemark.assemble import Deployment
from tidemark.core.errors import TidemarkError
from tidemark.core.ids import TXN_FIRST, ShardId, Txn
from tidemark.core.publish import Published, UpToDate
from tidemark.core.seal import SealOutcome
from tidemark.pipeline.context import Attempt
from tidemark.pipeline.publish import NotDue, is_due, publish
from tidemark.pipeline.run import Decided, Progress, RunReport, run, untold, unwatched

BACKLOG_SECONDS: Final = 60.0
"""During a run of many transactions the states follow once in so long: each publish holds the next one up."""


def publish_due(
    deployment: Deployment, attempt: Attempt, *, progress: Progress = unwatched
) -> dict[ShardId, Published]:
    """Publish every shard whose policy asks for it; Spark is started only if one does."""
    done: dict[ShardId, Published] = {}
    for shard in deployment.shards:
        outcome = publish_if_due(deployment, attempt, shard, progress=progress)
        if isinstance(outcome, Published):
            done[shard] = outcome
    return done


@dataclass(frozen=True, slots=True)
class Worked:
    """What a run has come to, and the states that have followed."""

    run_id: str
    report: RunReport
    published: Mapping[ShardId, Published]


def run_and_publish(
    deployment: Deployment,
    attempt: Attempt,
    *,
    transactions_max: int | None = None,
    publishes: bool = True,
    progress: Progress = unwatched,
    decided: Decided = untold,
) -> Worked:
    """One run of a pipeline, and the publishes that are due during it and at its end; the next transaction is
    staged while the one before is committed."""
    publisher = BacklogPublisher(deployment, attempt, progress=progress)
    outcomes: list[SealOutcome] = []

    def through(outcome: SealOutcome) -> None:
        outcomes.append(outcome)
        decided(outcome)
        if publishes:
            publisher.publish()

    def work(background: Executor) -> RunReport:
        left = transactions_max - len(outcomes) if transactions_max is not None else None
        return run(
            deployment.pipeline,
            attempt,
            transactions_max=left,
            progress=progress,
            decided=through,
            background=background,
        )

    with ThreadPoolExecutor(1) as background:
        last = deployment.with_new_columns(lambda: work(background))
    report = replace(last, decided=tuple(outcomes))
    due = (
        deployment.with_new_columns(lambda: publish_due(deployment, attempt, progress=progress))
        if publishes
        else {}
    )
    return Worked(attempt.owner.run_id, report, {**publisher.published, **due})


class BacklogPublisher:
    """Publishes what is due while a run works off a backlog, so that its states don't wait for its end.

    What goes wrong with that holds no transaction up: the publish at the run's end meets it again, and
    raises it there."""

    def __init__(self, deployment: Deployment, attempt: Attempt, *, progress: Progress = unwatched) -> None:
        self._deployment, self._attempt, self._progress = deployment, attempt, progress
        self._last_seconds = time.monotonic()
        self._failed = False
        self.published: dict[ShardId, Published] = {}

    def publish(self) -> None:
        """Publish what is due, if it was long enough ago that this was done."""
        if self._failed or time.monotonic() - self._last_seconds < BACKLOG_SECONDS:
            return
        for shard in self._deployment.shards:
            try:
                outcome = publish_if_due(self._deployment, self._attempt, shard, progress=self._progress)
            except TidemarkError:
                self._failed = True
                return
            if isinstance(outcome, Published):
                self.published[shard] = outcome
        self._last_seconds = time.monotonic()


def publish_now(
    deployment: Deployment, attempt: Attempt, shards: Sequence[ShardId]
) -> dict[ShardId, Published | UpToDate | NotDue]:
    """Bring states up to their logs, whatever their policies say; a shard without rows has no state."""
    return {
        shard: publish(deployment.control, deployment.state(), shard, token=attempt.token)
        for shard in shards
        if deployment.control.log(shard).head().upper > TXN_FIRST
    }


def publish_if_due(
    deployment: Deployment, attempt: Attempt, shard: ShardId, *, progress: Progress
) -> object | None:
    """Publish a shard if that is due. Whoever else does so at the same time, one of them has done it then."""
    if not is_due(deployment.control, shard, deployment.policy(shard)):
        return None
    progress(Txn(deployment.control.log(shard).head().upper - 1), f"publish {shard}")
    return publish(deployment.control, deployment.state(), shard, token=attempt.token)
