"""A whole run: reclock, then each open transaction through ingest, validate and upsert, then the
checkpoint, and the proofs that a clear asked for. The command uses it as it is; Airflow runs the
same steps as tasks."""

from __future__ import annotations

from dataclasses import dataclass

from tidemark.core.errors import Determinate
from tidemark.core.ids import Txn
from tidemark.core.replay import Finding, Verdict
from tidemark.core.seal import Lost, Sealed, SealOutcome, TooEarly
from tidemark.pipeline.checkpoint import checkpoint
from tidemark.pipeline.context import Attempt, Pipeline
from tidemark.pipeline.ingest import Dropped, ingest
from tidemark.pipeline.reclock import reclock
from tidemark.pipeline.replay import replay_plan, verify
from tidemark.pipeline.upsert import bring_up_logs, commit_staged
from tidemark.pipeline.validate import validate


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


def finish(pipeline: Pipeline, attempt: Attempt, txn: Txn) -> SealOutcome:
    """Take one open transaction through to its logs, or find that someone has."""
    staged = ingest(pipeline, attempt, txn)
    match staged:
        case Dropped(_, decided):
            outcome: SealOutcome = decided
        case TooEarly():
            outcome = staged
        case _:
            outcome = commit_staged(pipeline, attempt, staged, validate(pipeline, staged))
    if isinstance(outcome, TooEarly):
        raise Determinate(
            f"transaction {txn} can't be decided before {outcome.upper}",
            hint="retry: the run will finish the lower transactions first",
        )
    if isinstance(outcome, Sealed | Lost):
        bring_up_logs(pipeline)
    return outcome


def run(pipeline: Pipeline, attempt: Attempt) -> RunReport:
    """One run of a pipeline. Any number of them may work at once."""
    plan = reclock(pipeline, attempt)
    decided: list[SealOutcome] = []
    for txn in plan.finish:
        decided.append(finish(pipeline, attempt, txn))
        checkpoint(pipeline)
    bring_up_logs(pipeline)  # A run with nothing to finish may still find logs behind their seals.
    reached = checkpoint(pipeline)
    findings = [
        finding for txn in plan.prove for finding in replay(pipeline, attempt, txn_from=txn, txn_to=txn)
    ]
    return RunReport(tuple(decided), tuple(findings), reached)


def replay(pipeline: Pipeline, attempt: Attempt, *, txn_from: Txn, txn_to: Txn) -> tuple[Finding, ...]:
    """Prove every sealed transaction of a range, one by one; a last one without a seal is finished.

    A transaction that its own gate has let through just now is proven by that."""
    findings: list[Finding] = []
    for step in replay_plan(pipeline, txn_from=txn_from, txn_to=txn_to):
        if step.seal is None:
            finish(pipeline, attempt, step.binding.txn)
            findings.append(Finding(step.binding.txn, Verdict.IDENTICAL, why="finished now"))
        else:
            findings.append(verify(pipeline, attempt, step.binding, step.seal))
    return tuple(findings)
