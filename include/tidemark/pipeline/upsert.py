"""Upsert: seal the transaction, then bring each shard's log up to the seals.

The seal decides. An attempt that loses drops its own work, deletes its own parts and no others, and
finishes the winner's transaction (Invariants 2 and 4). It first compares its digests with the winner's: the
same number with other data is an error, never a skip (Invariant 8). The logs follow the seals by
compare-and-append, one transaction at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from tidemark.core.errors import Determinate, TidemarkError
from tidemark.core.ids import TXN_FIRST, ShardId, Txn, WriterToken
from tidemark.core.ledger import Event, Head, Put
from tidemark.core.log import (
    Appended,
    AppendOutcome,
    CaughtUp,
    LogEntry,
    Paused,
    UpperMismatch,
    UpperRelation,
    decide_append,
    next_append,
)
from tidemark.core.replay import DataDiffers, ExpectationsFailed, InputGone, judge_loser
from tidemark.core.seal import (
    BeingRecovered,
    Decision,
    Evidence,
    Fenced,
    Lost,
    Past,
    Seal,
    Sealed,
    SealOutcome,
    Staged,
    TooEarly,
    decide_seal,
    is_refused,
    seal_of,
    touch_mark,
)
from tidemark.core.shape import Misfit, Shapes
from tidemark.pipeline.context import (
    Attempt,
    Pipeline,
    binding_at,
    follows_watermark,
    note,
    seal_at,
    sealed_binding,
    settle,
    unfinished,
)
from tidemark.pipeline.history import (
    has_replacement,
    is_in_a_log,
    log_head,
    newest_recovery,
    require_history,
    require_shard,
)
from tidemark.pipeline.ingest import Progress, found_by, no_progress, upper_relation
from tidemark.pipeline.reclock import known_plan, owned_txns
from tidemark.pipeline.validate import Gated, last_judged
from tidemark.ports.control import Control


@dataclass(frozen=True, slots=True)
class LogReport:
    """The result of bringing one log up to the seals."""

    appended: tuple[Txn, ...]
    dropped: tuple[Txn, ...]
    end: CaughtUp | Paused


def put_seal(pipeline: Pipeline, seal: Seal) -> SealOutcome:
    """Seal the transaction, or return the seal that won.

    The shapes that the parts were made with go on record in the logs first, by put-if-absent. So of two
    pipeline files that disagree about a new shard or column one is refused, and a log can always append what
    is sealed."""
    try:
        return _put_seal(pipeline, seal)
    except Misfit:
        # A log that lacks the promotion which has replaced it has the shape of before.
        pipeline.control.seals.head()
        late = [shard for shard in seal.shards if not has_replacement(pipeline.control, shard)]
        if not late:
            raise
        for shard in late:
            bring_up_log(pipeline, shard)
        return _put_seal(pipeline, seal)


def _put_seal(pipeline: Pipeline, seal: Seal) -> SealOutcome:
    seals = pipeline.control.seals
    declared = _declared(pipeline, seal)
    if declared:
        _declare(pipeline, seal, declared)

    def decide(head: Head) -> Put[Seal, SealOutcome] | SealOutcome:
        if seal.txn == head.upper:
            _require_base(pipeline, seal)
        found = seal_at(pipeline, seal.txn) if seal.txn < head.upper else None
        past = _past(pipeline, seal) if seal.txn == head.upper else Past()
        shapes = {shard: pipeline.control.log(shard).shape() for shard in declared}
        recorded = {shard: shape for shard, shape in shapes.items() if shape is not None}
        return decide_seal(head=head, found=found, seal=seal, past=past, recorded=recorded, declared=declared)

    return cast("SealOutcome", settle(seals, decide, what=f"the seal of transaction {seal.txn}"))


def _past(pipeline: Pipeline, seal: Seal) -> Past:
    """The past that the seal would follow, at the version that it is decided on. `HistoryLost` where a log or
    a state already has later transactions, `LogLost` where a log is behind."""
    seals, control = pipeline.control.seals, pipeline.control
    last = require_history(pipeline.control)
    before = next(iter(seals.read(seal.txn - 1, seal.txn)), None)
    bound = control.bindings.read(seal.txn, seal.txn + 1)
    recovery = newest_recovery(control)
    touched = {shard: Txn(seals.mark(touch_mark(shard))) for shard in seal.shards}
    for shard in seal.shards:
        require_shard(control, shard, last)
    recovered = recovery is not None and recovery.was_decided(seal.txn)
    if recovered and seal.decision is Decision.SKIPPED and _is_logged(control, seal.txn):
        raise BeingRecovered(seal.txn)  # A log has its rows, so it can't be skipped.
    return Past(
        binding=bound[0].link if bound else 0,
        link=before.link if before is not None else 0,
        touched=touched,
        recovered=recovered,
        lost=bool(bound) and bound[0].lost,
        promotes=bound[0].promotes if bound else 0,
        proven=recovery.proven.get(seal.txn, 0) if recovery is not None else 0,
    )


def _is_logged(control: Control, txn: Txn) -> bool:
    """Whether any log has rows of a transaction."""
    logs = [control.log(shard) for shard in control.shards()]
    return any(log.head().upper > txn and log.read(txn, txn + 1) for log in logs)


def _require_base(pipeline: Pipeline, seal: Seal) -> None:
    """Check the watermark that the attempt was judged by. It depends on the transaction before, and is final
    once that one is sealed, unless a person sets it back. That touches the seals, so the check is repeated
    here."""
    if not follows_watermark(pipeline.control, seal):
        raise Determinate(
            f"transaction {seal.txn} was staged with another watermark than the seals have now",
            hint="clear the ingest task, or run the pipeline again, which stages it again",
        )


def _declare(pipeline: Pipeline, seal: Seal, shapes: Shapes) -> None:
    """Put the shapes on record in their logs, unless the seal would be fenced or has lost."""
    head = pipeline.control.seals.head()
    if seal.txn >= head.upper and not is_refused(seal, head):
        for shard, shape in shapes.items():
            pipeline.control.log(shard).declare(shape)


def _declared(pipeline: Pipeline, seal: Seal) -> Shapes:
    """The shapes of the shards that a seal has parts for, by the settings that the parts were made with. What
    replaces a shard brings its shape along."""
    if not seal.shards or seal.decision is Decision.LOST:
        return {}
    shapes = pipeline.shapes_of(sealed_binding(pipeline, seal).configuration)
    return {shard: shapes[shard] for shard in seal.shards if shard in shapes and shard not in seal.replaced}


def seal_judged(
    pipeline: Pipeline, attempt: Attempt, *, progress: Progress = no_progress
) -> tuple[SealOutcome, ...]:
    """Seal, in order, the transactions that this run staged and the gate let through, and bring the logs
    up."""
    tries_at = tries_in(found_by(pipeline, attempt))
    outcomes: list[SealOutcome] = []
    for txn, tries in sorted(tries_at.items()):
        if upper_relation(pipeline, txn) is UpperRelation.BELOW:
            outcomes += drop_overtaken(pipeline, attempt, seal_at(pipeline, txn), tries)
            continue
        progress(txn, "seal")
        staged, gated = last_judged(pipeline, txn, tries)
        outcomes.append(seal_one(pipeline, attempt, staged, gated, tries))
    left = set(known_plan(pipeline, attempt).finish).intersection(owned_txns(pipeline, attempt))
    if left:
        hint = "retry; if it stays so, clear the ingest task"
        raise Determinate(f"transaction {min(left)} is not staged", hint=hint)
    bring_up_logs(pipeline)
    return tuple(outcomes)


def tries_in(found: Sequence[Evidence]) -> dict[Txn, dict[WriterToken, Staged]]:
    """The tries that have staged each transaction, by token."""
    tries: dict[Txn, dict[WriterToken, Staged]] = {}
    for entry in found:
        if entry.staged is not None and not entry.replayed:
            tries.setdefault(entry.txn, {})[entry.token] = entry.staged
    return tries


def seal_one(
    pipeline: Pipeline, attempt: Attempt, staged: Staged, gated: Gated, tries: Mapping[WriterToken, Staged]
) -> SealOutcome:
    """Seal an attempt that the gate let through, or return the seal that won. The run's other tries are
    dropped."""
    outcome = commit_staged(pipeline, attempt, staged, gated)
    if isinstance(outcome, TooEarly):
        raise too_early(staged.txn, outcome.upper)
    others = {token: other for token, other in tries.items() if token != staged.token}
    winner = outcome.winner if isinstance(outcome, Lost) else outcome.seal
    drop_overtaken(pipeline, attempt, winner, others)
    return outcome


def too_early(txn: Txn, upper: Txn) -> Determinate:
    """The error that a transaction can't be sealed yet."""
    return Determinate(
        f"transaction {txn} can't be decided before {upper}",
        hint="run the pipeline, which finishes the lower transactions first",
    )


def drop_overtaken(
    pipeline: Pipeline, attempt: Attempt, winner: Seal, tries: Mapping[WriterToken, Staged]
) -> list[SealOutcome]:
    """Drop, once, every try at a decided transaction except the winner. Each is recorded with its winner, and
    its parts are deleted."""
    others = {token: staged for token, staged in tries.items() if token != winner.token}
    if not others:
        return []
    pipeline.control.journal.head()
    entries = pipeline.control.journal.find(str(winner.txn))
    dropped = {entry.token for entry in entries if entry.event is Event.LOST}
    overtaken = [staged for token, staged in others.items() if token not in dropped]
    for staged in overtaken:
        drop_lost(pipeline, attempt, staged, winner)
    return [Lost(winner) for _ in overtaken]


def commit_staged(
    pipeline: Pipeline,
    attempt: Attempt,
    staged: Staged,
    gated: Gated,
    *,
    reason: str = "",
) -> SealOutcome:
    """Seal an attempt that passed the gate, or that a person accepted for a reason; drop it if another was
    first."""
    refusal = refused(pipeline, staged, gated, reason)
    # A losing attempt's parts may have been swept; that is a lost race, not a red gate.
    if refusal is not None and not is_sealed(pipeline, staged.txn):
        raise refusal
    seal = seal_of(staged, generation=pipeline.generation, held=gated.opinion.held, reason=reason)
    outcome = put_seal(pipeline, seal)
    match outcome:
        case Lost(winner):
            drop_lost(pipeline, attempt, staged, winner)
        case Sealed() | TooEarly():
            pass
    return outcome


def is_sealed(pipeline: Pipeline, txn: Txn) -> bool:
    """Whether a transaction is decided. The loaded version of the seals may be an old one, so an open
    transaction is looked at twice."""
    return any(upper_relation(pipeline, txn) is UpperRelation.BELOW for _ in range(2))


def refused(pipeline: Pipeline, staged: Staged, gated: Gated, reason: str) -> TidemarkError | None:
    """Why an attempt may not be sealed; None if it may."""
    if not gated.finding.passed and not reason:
        return DataDiffers(gated.finding)
    if gated.opinion.failed and not reason:
        return ExpectationsFailed(staged.txn, gated.opinion.failed)
    # The input is checked once more: input that changed while it was being read must not be sealed.
    gone = pipeline.source.inspect(binding_at(pipeline, staged.txn))
    return InputGone(staged.txn, what=gone) if gone else None


def drop_lost(pipeline: Pipeline, attempt: Attempt, staged: Staged, winner: Seal) -> None:
    """Record the lost race with its winner, and delete our own parts. `DataDiffers` where the winner has
    other data; `Fenced` where another generation has read the same records by its own settings."""
    finding = judge_loser(winner, staged)
    fenced = winner.generation != pipeline.generation and winner.configuration != staged.configuration
    detail = {"winner": winner.token, "verdict": str(finding.verdict), "run": attempt.owner.run_id}
    note(pipeline, Event.LOST, txn=staged.txn, token=staged.token, detail=detail)
    if not is_in_a_log(pipeline.control, staged.txn, staged.token):
        pipeline.plane.discard(staged.txn, staged.token)
    if fenced:
        raise Fenced(winner.txn, generation=pipeline.generation, newest=winner.generation)
    if finding.mismatches:
        raise DataDiffers(finding)


def bring_up_log(
    pipeline: Pipeline, shard: ShardId, *, lower: Txn = TXN_FIRST, release: Txn | None = None
) -> LogReport:
    """Append every sealed transaction that the shard's log has not passed, in order.

    The log's upper is read again for each one; a seal is read once. Below `lower` the log is known to lack
    nothing, so a shard that was idle for long does not read the history. `release` names a held transaction
    to let through."""
    appended: list[Txn] = []
    dropped: list[Txn] = []
    seals: list[Seal] = []
    begins = read_upper = TXN_FIRST
    while True:
        upper = log_head(pipeline.control, shard).upper
        sealed_upper = pipeline.control.seals.head().upper
        first = max(upper, lower)
        if not begins <= first <= read_upper:
            seals, begins, read_upper = [], first, first
        seals += pipeline.control.seals.read(read_upper, sealed_upper)
        read_upper = max(read_upper, sealed_upper)
        entry = next_append(shard, upper=first, seals=seals[first - begins :], release=release)
        if not isinstance(entry, LogEntry):
            return LogReport(tuple(appended), tuple(dropped), entry)
        match put_entry(pipeline, shard, expected=upper, entry=entry):
            case Appended(txn):
                appended.append(txn)
            case UpperMismatch():
                dropped.append(entry.txn)


def put_entry(pipeline: Pipeline, shard: ShardId, *, expected: Txn, entry: LogEntry) -> AppendOutcome:
    """Append one sealed transaction to one log, if the log's upper is still `expected`."""
    log = pipeline.control.log(shard)

    def decide(head: Head) -> Put[LogEntry, AppendOutcome] | AppendOutcome:
        found = next(iter(log.read(entry.txn, entry.txn + 1)), None)
        return decide_append(head=head, expected=expected, found=found, entry=entry)

    what = f"the append of transaction {entry.txn} to {shard}"
    return cast("AppendOutcome", settle(log, decide, what=what))


def bring_up_logs(pipeline: Pipeline) -> dict[ShardId, LogReport]:
    """Bring up every log that may be behind its seals."""
    require_history(pipeline.control)
    lowers = unfinished(pipeline).lowers
    return {shard: bring_up_log(pipeline, shard, lower=lower) for shard, lower in lowers.items()}
