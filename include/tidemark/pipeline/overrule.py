"""Overrule: what people may decide about a transaction, with a reason that stays on record.

- *skip*: pass over an open transaction; its seal is empty and says why.
- *accept*: seal an open transaction although its gate is red.
- *release*: let a paused shard's log pass the transaction that its gate held.
- *watermark*: judge what comes from a lower watermark on than the seals have reached.
"""

from __future__ import annotations

from tidemark.core.errors import InvalidUsage
from tidemark.core.ids import ShardId, Txn
from tidemark.core.journal import Event
from tidemark.core.ledger import GENERATION, Head, Put
from tidemark.core.seal import Lost, Seal, Sealed, SealOutcome, Staged, TooEarly, skip_of
from tidemark.core.shard import Paused
from tidemark.pipeline.checkpoint import checkpoint
from tidemark.pipeline.context import Attempt, Pipeline, binding_at, note, seal_at, watermark_below
from tidemark.pipeline.ingest import ingest
from tidemark.pipeline.settle import settle
from tidemark.pipeline.upsert import LogReport, bring_up_log, bring_up_logs, commit_staged, put_seal
from tidemark.pipeline.validate import validate
from tidemark.pipeline.verdicts import Judged, record


def checked_reason(reason: str) -> str:
    """A reason that says something; it is kept for ever."""
    if not reason.strip():
        raise InvalidUsage("no reason was given", hint="say why, in a few words that a colleague understands")
    return reason.strip()


def skip(pipeline: Pipeline, attempt: Attempt, txn: Txn, *, reason: str) -> Txn:
    """Pass over an open transaction for good; returns the checkpoint."""
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
    return _finished(pipeline, attempt, txn, Event.SKIPPED, reason)


def accept(pipeline: Pipeline, attempt: Attempt, txn: Txn, *, reason: str) -> Txn:
    """Seal an open transaction as it is, whatever its gate says; returns the checkpoint."""
    checked_reason(reason)
    outcome: Staged | SealOutcome = ingest(pipeline, attempt, txn)
    if isinstance(outcome, Staged):
        gated = validate(pipeline, outcome)
        # What the gate said outlasts the decision to overrule it.
        record(pipeline, attempt, Judged(gated, replayed=False), token_of=outcome)
        outcome = commit_staged(pipeline, attempt, outcome, gated, reason=reason.strip())
    _refuse_unless_ours(outcome, txn)
    return _finished(pipeline, attempt, txn, Event.ACCEPTED, reason)


def release(pipeline: Pipeline, attempt: Attempt, shard: ShardId, *, reason: str) -> LogReport:
    """Let a paused shard go on; returns what its log has taken in."""
    end = bring_up_log(pipeline, shard).end
    if not isinstance(end, Paused):
        raise InvalidUsage(f"shard {shard!r} is not paused", hint="its log has everything that is sealed")
    detail = {"shard": shard, "reason": checked_reason(reason), "run": attempt.owner.run_id}
    # The reason is on record before its effect: who finds the rows can always find out why.
    note(pipeline, Event.RELEASED, txn=end.txn, token=attempt.token, detail=detail)
    report = bring_up_log(pipeline, shard, release=end.txn)
    checkpoint(pipeline)
    return report


def set_watermark_back(pipeline: Pipeline, attempt: Attempt, to: int, *, reason: str) -> Txn:
    """Have the records of the next transactions judged from a lower watermark on, after a wrong sequence has
    moved it; returns the first of these transactions.

    The journal has the reason before the effect. The seals are touched after it, so that whoever is about to
    seal looks at the watermark once more; a transaction that came between keeps what it was staged with, and
    the next one is asked for."""
    control, said = pipeline.control, checked_reason(reason)
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
                hint="records move it on; max_advance says how far in one transaction",
            )
        detail = {"from": str(now), "to": str(to), "reason": said, "run": attempt.owner.run_id}
        note(pipeline, Event.WATERMARK, txn=txn, token=attempt.token, detail=detail)
        if _touch_seals(pipeline, txn) or seal_at(pipeline, txn).base == to:
            return txn


def _touch_seals(pipeline: Pipeline, upper: Txn) -> bool:
    """Have every seal that is decided on now decided again; False where the seals have passed the upper."""

    def decide(head: Head) -> Put[Seal, bool] | bool:
        if head.upper != upper:
            return False
        return Put(marks={GENERATION: head.generation}, records=(), result=True)

    return settle(pipeline.control.seals, decide, what="a touch of the seals")


def _refuse_unless_ours(outcome: SealOutcome, txn: Txn) -> None:
    match outcome:
        case Lost(winner):
            raise InvalidUsage(
                f"transaction {txn} is already {winner.decision}, by {winner.token}",
                hint="what is sealed stays; a later transaction can mend the rows",
            )
        case TooEarly(upper):
            raise InvalidUsage(
                f"transaction {txn} can't be decided before {upper}", hint=f"decide {upper} first, or run"
            )
        case Sealed():
            return


def _finished(pipeline: Pipeline, attempt: Attempt, txn: Txn, event: Event, reason: str) -> Txn:
    detail = {"reason": reason.strip(), "run": attempt.owner.run_id}
    note(pipeline, event, txn=txn, token=attempt.token, detail=detail)
    bring_up_logs(pipeline)
    return checkpoint(pipeline)
