"""Decide: the decisions that people may make about a transaction, with a reason that stays on record.

- *skip*: pass over an open transaction; its seal is empty and has the reason.
- *accept*: seal an open transaction although its gate is red.
- *release*: let a paused shard's log pass the transaction that its gate held.
- *watermark*: judge the next transactions by a lower watermark than the seals have reached.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidemark.core.errors import InvalidUsage
from tidemark.core.ids import ShardId, Txn
from tidemark.core.ledger import GENERATION, Event, Head, Put
from tidemark.core.log import Paused, UpperRelation
from tidemark.core.replay import InputGone
from tidemark.core.seal import Lost, Seal, Sealed, SealOutcome, Staged, TooEarly, skip_of
from tidemark.pipeline.checkpoint import checkpoint
from tidemark.pipeline.context import (
    Attempt,
    Pipeline,
    attempts_at,
    binding_at,
    note,
    seal_at,
    settle,
    watermark_below,
)
from tidemark.pipeline.ingest import gather_open, is_usable, upper_relation
from tidemark.pipeline.upsert import LogReport, bring_up_log, bring_up_logs, commit_staged, put_seal
from tidemark.pipeline.validate import Gated, judged_in, open_case, pass_judgement


def checked_reason(reason: str) -> str:
    """The reason, stripped; `InvalidUsage` when it is empty. It stays on record forever."""
    if not reason.strip():
        raise InvalidUsage("no reason was given", hint="say why in a few words, for your colleagues")
    return reason.strip()


def skip(pipeline: Pipeline, attempt: Attempt, txn: Txn, *, reason: str, user: str = "") -> Txn:
    """Skip an open transaction for good; returns the checkpoint. `user` is the person who decides, for the
    journal."""
    binding = binding_at(pipeline, txn)
    upper = pipeline.control.seals.head().upper
    if txn > upper:
        _refuse_unless_ours(TooEarly(upper), txn)
    seal = skip_of(
        txn,
        token=attempt.token,
        generation=pipeline.generation,
        reason=checked_reason(reason),
        binding=binding.link,
        watermark=watermark_below(pipeline.control, txn),
    )
    _refuse_unless_ours(put_seal(pipeline, seal), txn)
    return _finished(pipeline, attempt, txn, Event.SKIPPED, _decision_detail(attempt, reason, user))


def accept(pipeline: Pipeline, attempt: Attempt, txn: Txn, *, reason: str, user: str = "") -> Txn:
    """Seal an open transaction as it is, whatever its gate says; returns the checkpoint.

    An attempt that the gate has judged is sealed as judged, without an engine. Where its parts are gone, or
    are not what was written, the transaction is staged and judged again."""
    checked_reason(reason)
    seen = judged_before(pipeline, txn) or _judged_now(pipeline, attempt, txn)
    outcome = commit_staged(pipeline, attempt, *seen, reason=reason.strip())
    _refuse_unless_ours(outcome, txn)
    return _finished(pipeline, attempt, txn, Event.ACCEPTED, _decision_detail(attempt, reason, user))


def _judged_now(pipeline: Pipeline, attempt: Attempt, txn: Txn) -> tuple[Staged, Gated]:
    """Stage an open transaction and have it judged, so that the gate's verdict is on record beside the
    decision to overrule it."""
    if upper_relation(pipeline, txn) is UpperRelation.ABOVE:
        _refuse_unless_ours(TooEarly(pipeline.control.seals.head().upper), txn)
    evidence = gather_open(pipeline, attempt, txn, found=())
    if evidence is None:
        raise _decided(seal_at(pipeline, txn))
    (judged,) = pass_judgement(pipeline, attempt, [open_case(pipeline, attempt, evidence)])
    if evidence.staged is None:
        raise InputGone(txn, what=evidence.gone)
    return evidence.staged, judged.gated


def judged_before(pipeline: Pipeline, txn: Txn) -> tuple[Staged, Gated] | None:
    """The try at an open transaction that the gate judged last, if its parts are there and matched what was
    written; the user's expectations may have failed. None when it has to be staged again."""
    if upper_relation(pipeline, txn) is not UpperRelation.AT:
        return None
    binding = binding_at(pipeline, txn)
    tries = {one.token: one for one in attempts_at(pipeline, binding) if not one.replayed}
    pipeline.control.journal.head()
    judged = [one for one in pipeline.control.journal.find(str(txn)) if one.event is Event.JUDGED]
    last = tries.get(judged[-1].token) if judged else None
    if last is None or last.staged is None or not is_usable(pipeline, binding, last):
        return None
    gated = judged_in(judged[-1]).gated
    return (last.staged, gated) if gated.finding.passed else None


def release(
    pipeline: Pipeline, attempt: Attempt, shard: ShardId, *, reason: str, user: str = ""
) -> LogReport:
    """Let a paused shard go on; returns what its log has appended."""
    end = bring_up_log(pipeline, shard).end
    if not isinstance(end, Paused):
        raise InvalidUsage(f"shard {shard!r} is not paused", hint="its log has every sealed transaction")
    detail = {"shard": shard, **_decision_detail(attempt, checked_reason(reason), user)}
    # The reason is on record before its effect, so the rows never appear without it.
    note(pipeline, Event.RELEASED, txn=end.txn, token=attempt.token, detail=detail)
    report = bring_up_log(pipeline, shard, release=end.txn)
    checkpoint(pipeline)
    return report


def set_watermark_back(pipeline: Pipeline, attempt: Attempt, to: int, *, reason: str) -> Txn:
    """Judge the records of the next transactions by a lower watermark, after a wrong sequence has raised it;
    returns the first of these transactions.

    The journal has the reason before the effect. The seals are touched after it, so a pending seal checks the
    watermark once more. A transaction that was sealed in between keeps the watermark that it was staged with,
    and the loop goes on with the next one."""
    control, checked = pipeline.control, checked_reason(reason)
    while True:
        txn = control.seals.head().upper
        now = watermark_below(control, txn)
        if now is None:
            raise InvalidUsage("there is no watermark", hint="only shards with a lateness have one")
        if now == to:
            return txn
        if now < to:
            raise InvalidUsage(
                f"the watermark is {now}, and can only be set back, not to {to}",
                hint="records advance it; max_advance limits how far in one transaction",
            )
        detail = {"from": str(now), "to": str(to), "reason": checked, "run": attempt.owner.run_id}
        note(pipeline, Event.WATERMARK, txn=txn, token=attempt.token, detail=detail)
        if touch_seals(pipeline, txn) or seal_at(pipeline, txn).base == to:
            return txn


def touch_seals(pipeline: Pipeline, upper: Txn) -> bool:
    """Make every pending decision about a seal start again; False when the seals have passed the upper."""

    def decide(head: Head) -> Put[Seal, bool] | bool:
        if head.upper != upper:
            return False
        return Put(marks={GENERATION: head.generation}, records=(), result=True)

    return settle(pipeline.control.seals, decide, what="a touch of the seals")


def _refuse_unless_ours(outcome: SealOutcome, txn: Txn) -> None:
    match outcome:
        case Lost(winner):
            raise _decided(winner)
        case TooEarly(upper):
            raise InvalidUsage(
                f"transaction {txn} can't be decided before {upper}",
                hint=f"decide {upper} first, or run the pipeline",
            )
        case Sealed():
            return


def _decided(winner: Seal) -> InvalidUsage:
    return InvalidUsage(
        f"transaction {winner.txn} is already {winner.decision}, by {winner.token}",
        hint="a seal is final; correct the rows by a later transaction",
    )


def _decision_detail(attempt: Attempt, reason: str, user: str) -> Mapping[str, str]:
    by = {"user": user} if user else {}
    return {"reason": reason.strip(), "run": attempt.owner.run_id, **by}


def _finished(pipeline: Pipeline, attempt: Attempt, txn: Txn, event: Event, detail: Mapping[str, str]) -> Txn:
    note(pipeline, event, txn=txn, token=attempt.token, detail=detail)
    bring_up_logs(pipeline)
    return checkpoint(pipeline)
