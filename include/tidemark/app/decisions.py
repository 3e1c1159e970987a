"""Decisions of people about a pipeline: skip, accept, release, and requests for work.

The command and the pages in Airflow use them. Each is recorded with its user and reason. A decision is a
commit; long work is only requested here, as a journal entry.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from tidemark.app.deployment import Deployment, new_token
from tidemark.core.binding import Owner
from tidemark.core.errors import InvalidUsage
from tidemark.core.ids import TXN_NONE, ShardId, Txn
from tidemark.core.journal import Event
from tidemark.core.replay import DataDiffers, ExpectationsFailed
from tidemark.core.shard import Paused, UpperRelation
from tidemark.pipeline import decide
from tidemark.pipeline.context import Attempt, note
from tidemark.pipeline.ingest import upper_relation
from tidemark.pipeline.replay import bound_range
from tidemark.pipeline.upsert import LogReport, seal_judged

REASON_CHARACTERS_MAX = 1_000


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
            raise InvalidUsage(f"the reason has {len(reason):,} characters", hint="say it in 1,000 at most")
        return cls(user, decide.checked_reason(reason), Attempt(Owner(f"{user}-{token}"), token))


def skip(deployment: Deployment, by: Decider, txn: int) -> Txn:
    """Skip an open transaction permanently; returns the checkpoint."""
    bound_range(deployment.pipeline, txn_from=txn, txn_to=txn)
    return decide.skip(deployment.pipeline, by.attempt, Txn(txn), reason=by.reason, user=by.user)


def accept(deployment: Deployment, by: Decider, txn: int) -> Txn:
    """Seal an open transaction although its gate is red; returns the checkpoint."""
    bound_range(deployment.pipeline, txn_from=txn, txn_to=txn)
    return deployment.with_new_columns(
        lambda: decide.accept(deployment.pipeline, by.attempt, Txn(txn), reason=by.reason, user=by.user)
    )


def release(deployment: Deployment, by: Decider, shard: str) -> LogReport:
    """Let a paused shard's log continue past the transaction that it is paused at."""
    name = ShardId(deployment.config.shard(shard).name)
    return decide.release(deployment.pipeline, by.attempt, name, reason=by.reason, user=by.user)


def released(report: LogReport) -> str:
    """The outcome of a release, for people."""
    if isinstance(report.end, Paused):
        end = f"it waits again, at {report.end.txn}: {report.end.reason}"
    else:
        end = f"it has everything up to {report.end.upper - 1}"
    return f"took in {len(report.appended)} transactions; {end}"


def request(deployment: Deployment, by: Decider, what: str, detail: Mapping[str, str], *, txn: int) -> None:
    """Record a person's request for work on a transaction, or (`TXN_NONE`) on the whole pipeline."""
    if txn != TXN_NONE:
        bound_range(deployment.pipeline, txn_from=txn, txn_to=txn)
    said = {"what": what, "reason": by.reason, "user": by.user, **detail}
    note(deployment.pipeline, Event.REQUESTED, txn=Txn(txn), token=by.attempt.token, detail=said)


def verdict_number(deployment: Deployment, txn: int) -> int:
    """The journal number of the gate's last verdict on an open transaction; 0 without one."""
    journal = deployment.control.journal
    journal.head()
    judged = [entry.number for entry in journal.find(str(txn)) if entry.event is Event.JUDGED]
    return judged[-1] if judged else 0


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
        if verdict_number(deployment, txn) != asked[str(txn)]:
            raise InvalidUsage(
                f"transaction {txn} was judged again since it was asked about",
                hint="clear this task to be asked about what there is now",
            )
        (accept if accepts else skip)(deployment, by, txn)
        decided.append(txn)
    return decided
