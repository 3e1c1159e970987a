"""A whole run: reclock, then each open transaction through ingest, validate and upsert, then the
checkpoint, and the proofs that a clear asked for. The command uses it as it is; Airflow runs the
same steps as tasks."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from itertools import zip_longest

from tidemark.core.errors import Determinate, TidemarkError
from tidemark.core.ids import TXN_NONE, Txn
from tidemark.core.replay import Finding, Verdict
from tidemark.core.seal import Lost, SealOutcome, Staged, TooEarly
from tidemark.core.shard import UpperRelation
from tidemark.pipeline.checkpoint import checkpoint
from tidemark.pipeline.context import Attempt, Pipeline, seal_at
from tidemark.pipeline.ingest import Prefetch, ingest, note_rejection, upper_relation
from tidemark.pipeline.reclock import reclock
from tidemark.pipeline.replay import note_finding, replay_plan, verify
from tidemark.pipeline.upsert import bring_up_logs, commit_staged
from tidemark.pipeline.validate import Judged, record, validate
from tidemark.ports.plane import Opinion

Progress = Callable[[Txn, str], None]
"""Told which transaction is in which phase, for people who watch."""


Decided = Callable[[SealOutcome], None]
"""Told of each transaction when it is through, before the next one begins."""


def no_progress(txn: Txn, phase: str) -> None:
    """Nobody watches."""


def no_callback(outcome: SealOutcome) -> None:
    """Nobody asks."""


@dataclass(frozen=True, slots=True)
class RunReport:
    """What a run came to: who decided each transaction, what was proven, where the checkpoint is."""

    decided: tuple[SealOutcome, ...]
    findings: tuple[Finding, ...]
    checkpoint: Txn

    @property
    def dropped(self) -> int:
        """Transactions that someone else had decided by the time we came to them."""
        return sum(isinstance(outcome, Lost) for outcome in self.decided)


def finish(
    pipeline: Pipeline,
    attempt: Attempt,
    txn: Txn,
    *,
    progress: Progress = no_progress,
    ahead: Prefetch | None = None,
    following: Txn | None = None,
) -> SealOutcome:
    """Take one open transaction through to its logs, or find that someone has.

    `ahead` may have staged it already, and is given the following one to stage meanwhile."""
    progress(txn, "ingest")
    outcome: Staged | SealOutcome = _staged(pipeline, attempt, txn, ahead)
    if isinstance(outcome, Staged):
        progress(txn, "validate")
        if ahead is not None:
            ahead.begin(following, after=outcome)
        gated = validate(pipeline, outcome)
        if gated.opinion != Opinion():
            # What the expectations say outlasts the run, also when nothing is sealed for it.
            record(pipeline, attempt, Judged(gated, replayed=False), token_of=outcome)
        progress(txn, "upsert")
        outcome = commit_staged(pipeline, attempt, outcome, gated)
    if isinstance(outcome, TooEarly):
        raise Determinate(
            f"transaction {txn} can't be decided before {outcome.upper}",
            hint="run the pipeline: a run finishes the lower transactions first",
        )
    bring_up_logs(pipeline)
    return outcome


def _staged(
    pipeline: Pipeline, attempt: Attempt, txn: Txn, ahead: Prefetch | None
) -> Staged | Lost | TooEarly:
    """What staging came to. Whoever has lost may find its parts swept while it writes them: that is a lost
    race, not an error (Invariant 4)."""
    try:
        staged = ahead.take(txn) if ahead is not None else None
        return staged or ingest(pipeline, attempt, txn)
    except (TidemarkError, OSError) as error:
        if upper_relation(pipeline, txn) is not UpperRelation.BELOW:
            note_rejection(pipeline, attempt, txn, error)
            raise
        return Lost(seal_at(pipeline, txn))


def run(
    pipeline: Pipeline,
    attempt: Attempt,
    *,
    transactions_max: int | None = None,
    progress: Progress = no_progress,
    decided: Decided = no_callback,
    background: Executor | None = None,
) -> RunReport:
    """One run of a pipeline; any number of them may work at once.

    With `transactions_max`, what is left over stays open, and the next run finishes it first. With a
    `background`, each transaction of a backlog is staged there while the one before is committed."""
    plan = reclock(pipeline, attempt)
    todo = plan.finish[:transactions_max]
    outcomes: list[SealOutcome] = []
    reached = TXN_NONE
    with Prefetch(pipeline, attempt, background) as ahead:
        for txn, following in zip_longest(todo, todo[1:]):
            outcome = finish(pipeline, attempt, txn, progress=progress, ahead=ahead, following=following)
            outcomes.append(outcome)
            progress(txn, "checkpoint")
            reached = checkpoint(pipeline)
            decided(outcome)
    if not todo:
        bring_up_logs(pipeline)  # Somebody may have died between a seal and its logs.
        reached = checkpoint(pipeline)
    findings = [
        finding
        for txn in plan.prove
        for finding in replay(pipeline, attempt, txn_from=txn, txn_to=txn, progress=progress)
    ]
    return RunReport(tuple(outcomes), tuple(findings), reached)


def replay(
    pipeline: Pipeline,
    attempt: Attempt,
    *,
    txn_from: Txn,
    txn_to: Txn,
    progress: Progress = no_progress,
) -> tuple[Finding, ...]:
    """Prove every sealed transaction of a range, one by one; a last one without a seal is finished.

    A transaction that its own gate has let through just now is proven by that; one that somebody
    else has sealed meanwhile, or before an old snapshot showed it, is proven like the others."""
    findings: list[Finding] = []
    for step in replay_plan(pipeline, txn_from=txn_from, txn_to=txn_to):
        binding, seal = step.binding, step.seal
        if seal is None:
            outcome = finish(pipeline, attempt, binding.txn, progress=progress)
            seal = outcome.winner if isinstance(outcome, Lost) else None
        if seal is None:
            findings.append(Finding(binding.txn, Verdict.IDENTICAL, why="finished now"))
            note_finding(pipeline, attempt, findings[-1])
        else:
            progress(binding.txn, "verify")
            findings.append(verify(pipeline, attempt, binding, seal))
    return tuple(findings)
