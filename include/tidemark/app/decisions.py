"""Decisions of people about a pipeline: skip, accept, release, abort, requests for work, and a recovery.

The command and the pages in Airflow use them. Each is recorded with its user and reason. A decision is a
commit; long work is only requested here, as a journal entry.

A recovery is for a pipeline that has lost commits. Entries that were never completely written are set aside
first. Then the history and the logs are brought forward (`pipeline.recover`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from tidemark.app.deployment import Deployment, new_token
from tidemark.app.generation import Generations
from tidemark.config import PipelineConfig
from tidemark.core.binding import Owner
from tidemark.core.errors import InvalidUsage
from tidemark.core.generation import Candidate
from tidemark.core.ids import TXN_NONE, ShardId, Txn
from tidemark.core.ledger import Event
from tidemark.core.log import Paused, UpperRelation
from tidemark.core.replay import DataDiffers, ExpectationsFailed
from tidemark.delta.head import DamagedEntry, damaged_entries, set_aside
from tidemark.pipeline import candidates, decide
from tidemark.pipeline.context import Attempt, note
from tidemark.pipeline.ingest import Progress, gather_open, no_progress, upper_relation
from tidemark.pipeline.reclock import known_plan
from tidemark.pipeline.recover import plan as planned
from tidemark.pipeline.recover import recover as recovered
from tidemark.pipeline.replay import bound_range
from tidemark.pipeline.upsert import LogReport, seal_judged
from tidemark.pipeline.validate import Judged, open_case, pass_judgement

REASON_CHARACTERS_MAX = 1_000
QUARANTINE_ROWS: Final = "quarantine"
"""The request to quarantine the rows of a transaction that don't meet an expectation."""
_VERDICT: Final = "verdict number"


@dataclass(frozen=True, slots=True)
class Decider:
    """A person who decides, with the reason."""

    user: str
    reason: str
    attempt: Attempt

    @classmethod
    def of(cls, user: str, reason: str) -> Decider:
        """A new decider. `InvalidUsage` if the reason is empty or too long."""
        token = new_token()
        if len(reason) > REASON_CHARACTERS_MAX:
            raise InvalidUsage(f"the reason has {len(reason):,} characters", hint="use 1,000 at most")
        return cls(user, decide.checked_reason(reason), Attempt(Owner(f"{user}-{token}"), token))


def skip(deployment: Deployment, by: Decider, txn: int) -> Txn:
    """Skip an open transaction permanently; returns the checkpoint."""
    bound_range(deployment.pipeline, txn_from=txn, txn_to=txn)
    return decide.skip(deployment.pipeline, by.attempt, Txn(txn), reason=by.reason, user=by.user)


def accept(deployment: Deployment, by: Decider, txn: int) -> Txn:
    """Seal an open transaction although its gate is red; returns the checkpoint."""
    bound_range(deployment.pipeline, txn_from=txn, txn_to=txn)
    return deployment.up_to_date(
        lambda: decide.accept(deployment.pipeline, by.attempt, Txn(txn), reason=by.reason, user=by.user)
    )


def release(deployment: Deployment, by: Decider, shard: str) -> LogReport:
    """Let a paused shard's log continue past the transaction that it is paused at."""
    name = ShardId(deployment.config.shard(shard).name)
    return decide.release(deployment.pipeline, by.attempt, name, reason=by.reason, user=by.user)


def released(report: LogReport) -> str:
    """The outcome of a release, for people."""
    if isinstance(report.end, Paused):
        end = f"it is paused again at {report.end.txn}: {report.end.reason}"
    else:
        end = f"it has all transactions up to {report.end.upper - 1}"
    count = len(report.appended)
    return f"appended {count} transaction{'' if count == 1 else 's'}; {end}"


def request(deployment: Deployment, by: Decider, what: str, detail: Mapping[str, str], *, txn: int) -> None:
    """Record a person's request for work on a transaction, or (`TXN_NONE`) on the whole pipeline."""
    if txn != TXN_NONE:
        bound_range(deployment.pipeline, txn_from=txn, txn_to=txn)
    request_detail = {"what": what, "reason": by.reason, "user": by.user, **detail}
    note(deployment.pipeline, Event.REQUESTED, txn=Txn(txn), token=by.attempt.token, detail=request_detail)


def abort(deployment: Deployment, by: Decider, identity: str) -> Candidate:
    """End the candidate generation that a person has looked at, and remove its tables. The request is
    recorded first, with the user: the end of a candidate itself records only a reason."""
    generations = Generations(deployment)
    found = generations.required(identity)
    request(deployment, by, "abort", {"candidate": identity}, txn=TXN_NONE)
    reason = f"{by.reason} ({by.user})"
    ended = candidates.abort(deployment.control, found, token=by.attempt.token, reason=reason)
    generations.clean()
    return ended


def verdict_number(deployment: Deployment, txn: int) -> int:
    """The journal number of the gate's last verdict on an open transaction; 0 without one."""
    journal = deployment.control.journal
    journal.head()
    judged = [entry.number for entry in journal.find(str(txn)) if entry.event is Event.JUDGED]
    return judged[-1] if judged else 0


def require_seen(deployment: Deployment, txn: Txn, asked: Mapping[str, int]) -> None:
    """`InvalidUsage` if an open transaction was judged again since a person was asked about it."""
    if verdict_number(deployment, txn) != asked[str(txn)]:
        raise InvalidUsage(
            f"transaction {txn} has a newer verdict than the one in question",
            hint="clear this task to decide about the newest verdict",
        )


def request_quarantine(deployment: Deployment, by: Decider, asked: Mapping[str, int]) -> list[Txn]:
    """Record that a person wants the rows of red transactions quarantined that don't meet an expectation;
    `quarantine_red` does it. Returns the transactions that are still open.

    `asked` has, for each transaction, the number of the verdict that the person saw; `InvalidUsage` if one
    was judged again meanwhile."""
    pipeline = deployment.pipeline
    txns = sorted(Txn(int(one)) for one in asked)
    found = [txn for txn in txns if upper_relation(pipeline, txn) is not UpperRelation.BELOW]
    for txn in found:
        require_seen(deployment, txn, asked)
    for txn in found:
        request(deployment, by, QUARANTINE_ROWS, {_VERDICT: str(asked[str(txn)])}, txn=txn)
    return found


def quarantine_red(
    deployment: Deployment, attempt: Attempt, *, progress: Progress = no_progress
) -> tuple[Judged, ...]:
    """Stage the transactions again for which `request_quarantine` was recorded, with the rows in quarantine
    that don't meet an expectation, and judge them; returns the verdicts.

    A request is for the verdict that the person saw: once the transaction is judged again, it is done."""
    aside = deployment.setting_aside()
    if aside is None:
        raise InvalidUsage(
            "no expectation is about single rows, so none can be quarantined", hint="accept, skip or fail"
        )
    judged: list[Judged] = []
    for txn in known_plan(aside.pipeline, attempt).finish:
        if upper_relation(aside.pipeline, txn) is UpperRelation.ABOVE:
            with suppress(ExpectationsFailed, DataDiffers):
                seal_judged(aside.pipeline, attempt)
        if _wants_quarantine(deployment, txn):
            judged += aside.up_to_date(partial(_judged_aside, aside, attempt, txn, progress))
    return tuple(judged)


def _judged_aside(aside: Deployment, attempt: Attempt, txn: Txn, progress: Progress) -> tuple[Judged, ...]:
    evidence = gather_open(aside.pipeline, attempt, txn, found=(), progress=progress)
    if evidence is None:
        return ()
    cases = [open_case(aside.pipeline, attempt, evidence)]
    return pass_judgement(aside.pipeline, attempt, cases, confirm=aside.confirm)


def _wants_quarantine(deployment: Deployment, txn: Txn) -> bool:
    """Whether a person has asked for it after the last verdict on a transaction."""
    last = verdict_number(deployment, txn)
    return any(
        entry.event is Event.REQUESTED
        and entry.detail["what"] == QUARANTINE_ROWS
        and entry.detail[_VERDICT] == str(last)
        for entry in deployment.control.journal.find(str(txn))
    )


def decide_red(
    deployment: Deployment, attempt: Attempt, by: Decider, asked: Mapping[str, int], *, accepts: bool
) -> list[Txn]:
    """Accept or skip red transactions of a run; returns those that this call decided.

    `asked` has, for each transaction, the number of the verdict that the person saw. Lower transactions that
    passed the gate are sealed first. A transaction that is already decided is left unchanged; `InvalidUsage`
    if one was judged again meanwhile."""
    pipeline = deployment.pipeline
    decided: list[Txn] = []
    for txn in sorted(Txn(int(one)) for one in asked):
        if upper_relation(pipeline, txn) is UpperRelation.ABOVE:
            with suppress(ExpectationsFailed, DataDiffers):
                seal_judged(pipeline, attempt)
        if upper_relation(pipeline, txn) is UpperRelation.BELOW:
            continue
        require_seen(deployment, txn, asked)
        (accept if accepts else skip)(deployment, by, txn)
        decided.append(txn)
    return decided


@dataclass(frozen=True, slots=True)
class Planned:
    """The plan of a recovery, for people and machines. `entries` are damaged; while there are any, the rest
    is not known, because nothing above a damaged entry can be read. `copied` says that the warehouse is a
    copy."""

    pipeline: str
    needed: bool
    epoch: int | None = None
    entries: Sequence[DamagedEntry] = ()
    proven_by: Sequence[str] = ()
    read_again: Sequence[Txn] = ()
    lost: Sequence[Txn] = ()
    open: Sequence[Txn] = ()
    next_txn: Txn | None = None
    logs: Mapping[ShardId, Sequence[Txn]] = field(default_factory=dict)
    damaged: Mapping[ShardId, Sequence[Txn]] = field(default_factory=dict)
    resumes: bool = False
    copied: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a recovery. `changed` is false if there was nothing to do."""

    pipeline: str
    changed: bool
    epoch: int
    entries: Sequence[DamagedEntry]
    read_again: Sequence[Txn]
    lost: Mapping[Txn, str]
    logs: Mapping[ShardId, Sequence[Txn]]
    damaged: Mapping[ShardId, Sequence[Txn]]


def root_of(config: PipelineConfig) -> str:
    return f"{config.warehouse_location}/{config.name}"


def plan(config: PipelineConfig, opened: Callable[[], Deployment]) -> Planned:
    """Plan a recovery. Changes nothing."""
    entries = damaged_entries(root_of(config))
    if entries:
        return Planned(config.name, needed=True, entries=entries)
    deployment = opened()
    found = planned(deployment.unchecked)
    made = found.plan
    return Planned(
        config.name,
        needed=found.is_needed,
        epoch=found.epoch + int((made.is_needed and not found.resumes) or bool(found.copied)),
        proven_by=tuple(str(one) for one in made.witnesses) if made.is_needed else (),
        read_again=made.again,
        lost=made.lost,
        open=made.open if made.is_needed else (),
        next_txn=made.first,
        logs=found.logs,
        damaged=found.damaged,
        resumes=found.resumes,
        copied=found.copied,
    )


def recover(
    config: PipelineConfig,
    opened: Callable[[], Deployment],
    attempt: Attempt,
    *,
    restored: bool = False,
    adopt: bool = False,
    progress: Progress = no_progress,
) -> Report:
    """Recover the pipeline and report the result."""
    entries = damaged_entries(root_of(config))
    set_aside(root_of(config), entries)
    deployment = opened()
    done = recovered(deployment.pipeline, attempt, restored=restored, adopt=adopt, progress=progress)
    return Report(
        config.name,
        changed=done.changed or bool(entries),
        epoch=done.epoch,
        entries=entries,
        read_again=done.again,
        lost=done.lost,
        logs=done.appended,
        damaged=done.damaged,
    )
