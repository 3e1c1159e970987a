"""A whole run in one process, as the command does it: the steps of each transaction in turn.

The steps are those that Airflow runs as tasks: `ingest` stages and measures, `validate` judges, `upsert`
seals, `checkpoint` acknowledges. A task does its step for all of the run's transactions. Here each
transaction goes through all steps before the next one begins, so a backlog becomes visible bit by bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

from tidemark.core.ids import TXN_NONE, Txn
from tidemark.core.log import UpperRelation
from tidemark.core.replay import Finding, InputGone, Verdict
from tidemark.core.seal import Evidence, Lost, SealOutcome
from tidemark.pipeline.checkpoint import checkpoint
from tidemark.pipeline.context import Attempt, Pipeline, seal_at
from tidemark.pipeline.ingest import Prefetch, Progress, found_by, gather_open, no_progress, upper_relation
from tidemark.pipeline.reclock import reclock
from tidemark.pipeline.replay import replay_plan
from tidemark.pipeline.upsert import bring_up_logs, drop_overtaken, seal_one, too_early, tries_in
from tidemark.pipeline.validate import (
    Confirm,
    Gated,
    Judged,
    open_case,
    pass_judgement,
    proof_case,
    record,
    unconfirmed,
)

Decided = Callable[[SealOutcome], None]
"""Called with each transaction's outcome after its checkpoint, before the next one begins."""


def no_callback(outcome: SealOutcome) -> None:
    """No-op callback."""


@dataclass(frozen=True, slots=True)
class RunReport:
    """The result of a run: the outcome of each transaction, the findings of proofs, and the checkpoint."""

    decided: tuple[SealOutcome, ...]
    findings: tuple[Finding, ...]
    checkpoint: Txn

    @property
    def dropped(self) -> int:
        """The number of transactions that another attempt decided first."""
        return sum(isinstance(outcome, Lost) for outcome in self.decided)


def finish(
    pipeline: Pipeline,
    attempt: Attempt,
    txn: Txn,
    *,
    found: Sequence[Evidence] | None = None,
    prefetch: Prefetch | None = None,
    confirm: Confirm = unconfirmed,
    progress: Progress = no_progress,
) -> SealOutcome:
    """Take one open transaction through all steps to its logs; `Lost` when another attempt has decided it.
    `found` is the run's evidence when it began."""
    if upper_relation(pipeline, txn) is UpperRelation.ABOVE:
        raise too_early(txn, pipeline.control.seals.head().upper)
    known = found_by(pipeline, attempt) if found is None else found
    on_it = [one for one in known if one.txn == txn]
    tries = tries_in(on_it).get(txn, {})
    evidence = gather_open(pipeline, attempt, txn, found=on_it, prefetch=prefetch, progress=progress)
    if evidence is None or (evidence.gone and upper_relation(pipeline, txn) is UpperRelation.BELOW):
        winner = seal_at(pipeline, txn)
        drop_overtaken(pipeline, attempt, winner, tries)
        outcome: SealOutcome = Lost(winner)
    else:
        progress(txn, "validate")
        case = open_case(pipeline, attempt, evidence)
        (judged,) = pass_judgement(pipeline, attempt, [case], confirm=confirm)
        if evidence.staged is None:
            raise InputGone(txn, what=evidence.gone)
        progress(txn, "upsert")
        outcome = seal_one(pipeline, attempt, evidence.staged, judged.gated, tries)
    bring_up_logs(pipeline)
    return outcome


def prove(
    pipeline: Pipeline,
    attempt: Attempt,
    txn: Txn,
    *,
    confirm: Confirm = unconfirmed,
    progress: Progress = no_progress,
) -> Finding:
    """Judge one sealed transaction by its current input and parts, which are read again each time."""
    case = proof_case(pipeline, attempt, txn, found=(), progress=progress)
    pass_judgement(pipeline, attempt, [case], confirm=confirm)
    return case.finding


def run(
    pipeline: Pipeline,
    attempt: Attempt,
    *,
    transactions_max: int | None = None,
    confirm: Confirm = unconfirmed,
    progress: Progress = no_progress,
    decided: Decided = no_callback,
    background: Executor | None = None,
) -> RunReport:
    """One run of a pipeline; any number of runs may work at once.

    With `transactions_max`, the rest stays open, and the next run finishes it first. With a `background`,
    each transaction of a backlog is staged there while the one before is committed."""
    plan = reclock(pipeline, attempt)
    todo = plan.finish[:transactions_max]
    found = found_by(pipeline, attempt) if todo else ()
    outcomes: list[SealOutcome] = []
    reached = TXN_NONE
    with Prefetch(pipeline, attempt, todo, background) as prefetch:
        for txn in todo:
            outcome = finish(
                pipeline,
                attempt,
                txn,
                found=found,
                prefetch=prefetch,
                confirm=confirm,
                progress=progress,
            )
            outcomes.append(outcome)
            progress(txn, "checkpoint")
            reached = checkpoint(pipeline)
            decided(outcome)
    if not todo:
        bring_up_logs(pipeline)  # A process may have died between a seal and its logs.
        reached = checkpoint(pipeline)
    findings = [prove(pipeline, attempt, txn, confirm=confirm, progress=progress) for txn in plan.prove]
    return RunReport(tuple(outcomes), tuple(findings), reached)


def replay(
    pipeline: Pipeline,
    attempt: Attempt,
    *,
    txn_from: Txn,
    txn_to: Txn,
    confirm: Confirm = unconfirmed,
    progress: Progress = no_progress,
) -> tuple[Finding, ...]:
    """Prove every sealed transaction of a range, one by one; a last one without a seal is finished.

    A transaction that this call finishes is proven by its own gate. One that another process sealed
    meanwhile, or that an old version of the seals did not show, is proven like the others."""
    findings: list[Finding] = []
    for step in replay_plan(pipeline, txn_from=txn_from, txn_to=txn_to):
        txn = step.binding.txn
        if step.seal is None and not isinstance(
            finish(pipeline, attempt, txn, confirm=confirm, progress=progress), Lost
        ):
            findings.append(Finding(txn, Verdict.IDENTICAL, why="finished now"))
            record(pipeline, attempt, Judged(Gated(findings[-1]), replayed=True))
        else:
            findings.append(prove(pipeline, attempt, txn, confirm=confirm, progress=progress))
    return tuple(findings)
