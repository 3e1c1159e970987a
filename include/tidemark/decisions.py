"""What people decide about a pipeline, for the command and the pages in Airflow: who, why, and what came of
it. Decisions are commits; what takes long is only requested here, and done by whoever is asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidemark.assemble import Deployment, new_token
from tidemark.core.binding import Owner
from tidemark.core.errors import InvalidUsage
from tidemark.core.ids import TXN_NONE, ShardId, Txn
from tidemark.core.journal import Event
from tidemark.core.shard import Paused
from tidemark.pipeline import overrule
from tidemark.pipeline.context import Attempt, note
from tidemark.pipeline.replay import bound_range
from tidemark.pipeline.upsert import LogReport

REASON_CHARACTERS_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Decider:
    """A person who decides, and why."""

    user: str
    reason: str
    attempt: Attempt

    @classmethod
    def of(cls, user: str, reason: str) -> Decider:
        """`InvalidUsage` without a reason: nothing is changed for none."""
        token = new_token()
        if len(reason) > REASON_CHARACTERS_MAX:
            raise InvalidUsage(f"the reason has {len(reason):,} characters", hint="say it in 1,000 at most")
        return cls(user, overrule.checked_reason(reason), Attempt(Owner(f"{user}-{token}"), token))


def skip(deployment: Deployment, by: Decider, txn: int) -> Txn:
    """Pass over an open transaction for good; returns the checkpoint."""
    bound_range(deployment.pipeline, txn_from=txn, txn_to=txn)
    return overrule.skip(deployment.pipeline, by.attempt, Txn(txn), reason=by.reason, user=by.user)


def accept(deployment: Deployment, by: Decider, txn: int) -> Txn:
    """Seal an open transaction although its gate is red; returns the checkpoint."""
    bound_range(deployment.pipeline, txn_from=txn, txn_to=txn)
    return deployment.with_new_columns(
        lambda: overrule.accept(deployment.pipeline, by.attempt, Txn(txn), reason=by.reason, user=by.user)
    )


def release(deployment: Deployment, by: Decider, shard: str) -> LogReport:
    """Let a paused shard's log pass the transaction that it waits at."""
    name = ShardId(deployment.config.shard(shard).name)
    return overrule.release(deployment.pipeline, by.attempt, name, reason=by.reason, user=by.user)


def released(report: LogReport) -> str:
    """What a release came to, in words."""
    if isinstance(report.end, Paused):
        end = f"it waits again, at {report.end.txn}: {report.end.reason}"
    else:
        end = f"it has everything up to {report.end.upper - 1}"
    return f"took in {len(report.appended)} transactions; {end}"


def request(deployment: Deployment, by: Decider, what: str, detail: Mapping[str, str], *, txn: int) -> None:
    """Put on record that somebody asked for work that others do: of a transaction, or of the pipeline."""
    if txn != TXN_NONE:
        bound_range(deployment.pipeline, txn_from=txn, txn_to=txn)
    said = {"what": what, "reason": by.reason, "user": by.user, **detail}
    note(deployment.pipeline, Event.REQUESTED, txn=Txn(txn), token=by.attempt.token, detail=said)
