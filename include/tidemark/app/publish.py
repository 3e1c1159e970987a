"""Publishing of the states that are due, during and after a run, or on request.

Spark starts only if a publish is due. Whether one is due changes only with the shard's log or its policy. So
after all shards were checked, a note records up to which transaction; the next check looks only at the shards
that later transactions touch. The note is a cache on this machine. Without it, or if it belongs to another
history, all shards are checked. Maintenance always checks all.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tidemark.app.deployment import Deployment
from tidemark.config.storage import cache_folder, is_uri
from tidemark.core.errors import TidemarkError
from tidemark.core.ids import TXN_FIRST, ShardId, Txn
from tidemark.core.publish import Published, UpToDate
from tidemark.core.seal import Lost, Sealed, SealOutcome
from tidemark.pipeline.checkpoint import advance_cut
from tidemark.pipeline.context import Attempt, unfinished
from tidemark.pipeline.ingest import Progress, no_progress
from tidemark.pipeline.publish import NotDue, is_due, publish
from tidemark.pipeline.run import Decided, RunReport, no_callback, run
from tidemark.pipeline.validate import unconfirmed

SEALS_LOOKED_AT_MAX: Final = 1_000
BACKLOG_SECONDS: Final = 60.0
"""How often a run of many transactions publishes: each publish delays the next transaction."""


def publish_due(
    deployment: Deployment, attempt: Attempt, *, every: bool = False, progress: Progress = no_progress
) -> dict[ShardId, Published]:
    """Publish every shard that is due; returns those that were published. Spark starts only if one is due.

    Without `every`, shards whose log has not moved since the last check of all are not checked."""
    done: dict[ShardId, Published] = {}
    asked = DueCheck(deployment)
    # Read this before the shards, so that the next check sees what others append meanwhile.
    upper = asked.upper()
    for shard in deployment.shards if every else asked.moved():
        outcome = publish_if_due(deployment, attempt, shard, progress=progress)
        if isinstance(outcome, Published):
            done[shard] = outcome
    advance_cut(deployment.control, deployment.shards)
    asked.note(upper)
    return done


class DueCheck:
    """This machine's note of the transaction up to which all shards were checked for due publishes."""

    def __init__(self, deployment: Deployment) -> None:
        self._shards = deployment.shards
        self._pipeline = deployment.pipeline
        place = f"{deployment.root}/publishes"
        folder = cache_folder(None if is_uri(place) else Path(place), uri=place)
        self._path = folder / "asked.json"

    def upper(self) -> Txn:
        """The first transaction that a log may lack: every log has all of its transactions below it."""
        behind = unfinished(self._pipeline)
        return min(behind.lowers.values(), default=Txn(behind.done + 1))

    def moved(self) -> Sequence[ShardId]:
        """The shards to check: those that transactions since the note touch; all without a valid note."""
        seals = self._pipeline.control.seals
        sealed_upper, asked = seals.head().upper, self._noted()
        if asked is None or not 0 <= sealed_upper - asked <= SEALS_LOOKED_AT_MAX:
            return self._shards
        touched = {shard for seal in seals.read(asked, sealed_upper) for shard in seal.shards}
        return [shard for shard in self._shards if shard in touched]

    def note(self, upper: Txn) -> None:
        """Record that all shards were checked below `upper`. If the note can't be written, the next check
        looks at all shards."""
        record = {"upper": upper, "seal": self._seal_below(upper), "settings": self._settings}
        text = json.dumps(record)
        aside = self._path.with_name(f".{os.getpid()}-{threading.get_ident()}.tmp")
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not self._path.exists() or self._path.read_text() != text:
                aside.write_text(text)
                aside.replace(self._path)

    def _noted(self) -> Txn | None:
        try:
            recorded = json.loads(self._path.read_text())
            upper = Txn(int(recorded["upper"]))
            same = (recorded["seal"], recorded["settings"]) == (self._seal_below(upper), self._settings)
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return upper if same else None

    @property
    def _settings(self) -> str:
        return self._pipeline.configuration.fingerprint

    def _seal_below(self, upper: Txn) -> str:
        """The token of the seal below `upper`, which tells one history from another."""
        return next((seal.token for seal in self._pipeline.control.seals.read(upper - 1, upper)), "")


@dataclass(frozen=True, slots=True)
class RunResult:
    """A run's report, and the states that it published."""

    run_id: str
    report: RunReport
    published: Mapping[ShardId, Published]


def run_and_publish(
    deployment: Deployment,
    attempt: Attempt,
    *,
    transactions_max: int | None = None,
    publishes: bool = True,
    progress: Progress = no_progress,
    decided: Decided = no_callback,
) -> RunResult:
    """Run a pipeline once, and publish what is due during the run and at its end.

    The next transaction is staged while the previous one is committed. Verdicts are documented only if the
    pipeline has expectations, so that Great Expectations is loaded anyway: its import takes seconds, and each
    page a good part of one."""
    publisher = BacklogPublisher(deployment, attempt, progress=progress)
    outcomes: list[SealOutcome] = []

    def through(outcome: SealOutcome) -> None:
        outcomes.append(outcome)
        decided(outcome)
        if publishes:
            publisher.publish(outcome)

    def work(background: Executor) -> RunReport:
        left = transactions_max - len(outcomes) if transactions_max is not None else None
        return run(
            deployment.pipeline,
            attempt,
            transactions_max=left,
            confirm=deployment.confirm if deployment.has_expectations else unconfirmed,
            progress=progress,
            decided=through,
            background=background,
        )

    with ThreadPoolExecutor(1) as background:
        last = deployment.up_to_date(lambda: work(background))
    report = replace(last, decided=tuple(outcomes))
    due = (
        deployment.up_to_date(lambda: publish_due(deployment, attempt, progress=progress))
        if publishes
        else {}
    )
    return RunResult(attempt.owner.run_id, report, {**publisher.published, **due})


class BacklogPublisher:
    """Publishes what is due during a long run, so that the states don't wait for its end.

    An error does not stop the run's transactions: the publish at the run's end raises it again."""

    def __init__(self, deployment: Deployment, attempt: Attempt, *, progress: Progress = no_progress) -> None:
        self._deployment, self._attempt, self._progress = deployment, attempt, progress
        self._last_seconds = time.monotonic()
        self._failed = False
        self._touched: set[ShardId] = set()
        self.published: dict[ShardId, Published] = {}

    def publish(self, outcome: SealOutcome) -> None:
        """Publish the due shards that the run has touched, at most once per `BACKLOG_SECONDS`."""
        match outcome:
            case Sealed(seal) | Lost(seal):
                self._touched.update(seal.shards)
        if self._failed or time.monotonic() - self._last_seconds < BACKLOG_SECONDS:
            return
        try:
            for shard in [shard for shard in self._deployment.shards if shard in self._touched]:
                done = publish_if_due(self._deployment, self._attempt, shard, progress=self._progress)
                if isinstance(done, Published):
                    self.published[shard] = done
            advance_cut(self._deployment.control, self._deployment.shards)
        except TidemarkError:
            self._failed = True
            return
        self._touched.clear()
        self._last_seconds = time.monotonic()


def publish_now(
    deployment: Deployment, attempt: Attempt, shards: Sequence[ShardId]
) -> dict[ShardId, Published | UpToDate | NotDue]:
    """Publish shards regardless of their policies. A shard with an empty log is left out."""
    done = {
        shard: _publish(deployment, attempt, shard)
        for shard in shards
        if deployment.control.log(shard).head().upper > TXN_FIRST
    }
    advance_cut(deployment.control, deployment.shards)
    return done


def publish_if_due(
    deployment: Deployment, attempt: Attempt, shard: ShardId, *, progress: Progress
) -> object | None:
    """Publish a shard if it is due; None if it is not. If several processes try at once, one succeeds."""
    if not is_due(deployment.control, shard, deployment.policy(shard)):
        return None
    progress(Txn(deployment.control.log(shard).head().upper - 1), f"publish {shard}")
    return _publish(deployment, attempt, shard)


def _publish(deployment: Deployment, attempt: Attempt, shard: ShardId) -> Published | UpToDate | NotDue:
    generation = deployment.config.generation
    return publish(deployment.control, deployment.state(), shard, token=attempt.token, generation=generation)
