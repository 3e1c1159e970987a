"""Publishing what is due: which shards' states follow their logs now.

Spark is started only when a shard's policy asks for it, so whoever finds nothing due is through at once.
Whether a publish is due changes only when a shard's log moves or its policy does. So who has asked all shards
notes up to which transaction that holds, and the next one asks only those that later transactions touch. The
note is a cache of this machine: without one, or with one of another history, all are asked, and so they are
by maintenance.
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
from tidemark.config.paths import cache_folder, is_uri
from tidemark.core.errors import TidemarkError
from tidemark.core.ids import TXN_FIRST, ShardId, Txn
from tidemark.core.publish import Published, UpToDate
from tidemark.core.seal import Lost, Sealed, SealOutcome
from tidemark.pipeline.context import Attempt, unfinished
from tidemark.pipeline.cuts import advance_cut
from tidemark.pipeline.ingest import Progress, no_progress
from tidemark.pipeline.publish import NotDue, is_due, publish
from tidemark.pipeline.run import Decided, RunReport, no_callback, run
from tidemark.pipeline.validate import unconfirmed

SEALS_LOOKED_AT_MAX: Final = 1_000
BACKLOG_SECONDS: Final = 60.0
"""During a run of many transactions the states follow once in so long: each publish holds the next one up."""


def publish_due(
    deployment: Deployment, attempt: Attempt, *, every: bool = False, progress: Progress = no_progress
) -> dict[ShardId, Published]:
    """Publish every shard whose policy asks for it; Spark is started only if one does. Without `every`, those
    that have not moved since they were all asked are taken as they were then."""
    done: dict[ShardId, Published] = {}
    asked = DueCheck(deployment)
    # Read before the shards are: what others append meanwhile is asked about by the next one.
    upper = asked.upper()
    for shard in deployment.shards if every else asked.moved():
        outcome = publish_if_due(deployment, attempt, shard, progress=progress)
        if isinstance(outcome, Published):
            done[shard] = outcome
    advance_cut(deployment.control, deployment.shards)
    asked.note(upper)
    return done


class DueCheck:
    """Up to which transaction all shards have been asked whether they are due, by this machine's note."""

    def __init__(self, deployment: Deployment) -> None:
        self._shards = deployment.shards
        self._pipeline = deployment.pipeline
        place = f"{deployment.root}/publishes"
        folder = cache_folder(None if is_uri(place) else Path(place), uri=place)
        self._path = folder / "asked.json"

    def upper(self) -> Txn:
        """The first transaction that some log may lack: below it, a shard's log has all that touches it."""
        behind = unfinished(self._pipeline)
        return min(behind.lowers.values(), default=Txn(behind.done + 1))

    def moved(self) -> Sequence[ShardId]:
        """The shards to ask: those that transactions touch from the note on, or all of them."""
        seals = self._pipeline.control.seals
        sealed_upper, asked = seals.head().upper, self._noted()
        if asked is None or not 0 <= sealed_upper - asked <= SEALS_LOOKED_AT_MAX:
            return self._shards
        touched = {shard for seal in seals.read(asked, sealed_upper) for shard in seal.shards}
        return [shard for shard in self._shards if shard in touched]

    def note(self, upper: Txn) -> None:
        """Note that all shards have been asked up to a transaction. Without a place for that, all are asked
        again."""
        said = {"upper": upper, "seal": self._seal_below(upper), "settings": self._settings}
        text = json.dumps(said)
        aside = self._path.with_name(f".{os.getpid()}-{threading.get_ident()}.tmp")
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not self._path.exists() or self._path.read_text() != text:
                aside.write_text(text)
                aside.replace(self._path)

    def _noted(self) -> Txn | None:
        try:
            told = json.loads(self._path.read_text())
            upper = Txn(int(told["upper"]))
            same = (told["seal"], told["settings"]) == (self._seal_below(upper), self._settings)
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return upper if same else None

    @property
    def _settings(self) -> str:
        return self._pipeline.configuration.fingerprint

    def _seal_below(self, upper: Txn) -> str:
        """Who sealed the transaction below, which tells one history from another."""
        return next((seal.token for seal in self._pipeline.control.seals.read(upper - 1, upper)), "")


@dataclass(frozen=True, slots=True)
class RunResult:
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
    progress: Progress = no_progress,
    decided: Decided = no_callback,
) -> RunResult:
    """One run of a pipeline, and the publishes that are due during it and at its end; the next transaction is
    staged while the one before is committed. Verdicts are documented where Great Expectations is loaded
    anyway: its import takes seconds, and each page a good part of one."""
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
        last = deployment.with_new_columns(lambda: work(background))
    report = replace(last, decided=tuple(outcomes))
    due = (
        deployment.with_new_columns(lambda: publish_due(deployment, attempt, progress=progress))
        if publishes
        else {}
    )
    return RunResult(attempt.owner.run_id, report, {**publisher.published, **due})


class BacklogPublisher:
    """Publishes what is due while a run works off a backlog, so that its states don't wait for its end.

    What goes wrong with that holds no transaction up: the publish at the run's end meets it again, and
    raises it there."""

    def __init__(self, deployment: Deployment, attempt: Attempt, *, progress: Progress = no_progress) -> None:
        self._deployment, self._attempt, self._progress = deployment, attempt, progress
        self._last_seconds = time.monotonic()
        self._failed = False
        self._touched: set[ShardId] = set()
        self.published: dict[ShardId, Published] = {}

    def publish(self, outcome: SealOutcome) -> None:
        """Publish what is due of what the run has touched, if it was long enough ago that this was done."""
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
    """Bring states up to their logs, whatever their policies say; a shard without rows has no state."""
    done = {
        shard: publish(deployment.control, deployment.state(), shard, token=attempt.token)
        for shard in shards
        if deployment.control.log(shard).head().upper > TXN_FIRST
    }
    advance_cut(deployment.control, deployment.shards)
    return done


def publish_if_due(
    deployment: Deployment, attempt: Attempt, shard: ShardId, *, progress: Progress
) -> object | None:
    """Publish a shard if that is due. Whoever else does so at the same time, one of them has done it then."""
    if not is_due(deployment.control, shard, deployment.policy(shard)):
        return None
    progress(Txn(deployment.control.log(shard).head().upper - 1), f"publish {shard}")
    return publish(deployment.control, deployment.state(), shard, token=attempt.token)
