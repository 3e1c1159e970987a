"""Generations: start a candidate, let it follow the pipeline, promote it, or abort it.

The candidate is an ordinary pipeline with ledgers and tables of its own, in a shadow folder, so it runs the
same steps as any other: it stages, is validated, seals and appends. Only its bindings are copies: it adopts
those of the pipeline, under the same numbers, once their transactions are sealed (`follow`). So any number of
processes may follow at once, and one that dies leaves nothing to clean up.

`promote` is described in `core.generation`. It can stop anywhere: until the seal nothing has happened, and
after the seal anyone finishes it, as any other transaction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from tidemark.core.binding import Binding, Owner, Step
from tidemark.core.checksum import Digest
from tidemark.core.errors import Determinate, InvalidUsage, TidemarkError
from tidemark.core.frontier import Frontier
from tidemark.core.generation import (
    GRACE_SECONDS,
    Candidate,
    Correction,
    Followed,
    correction_seal,
    decide_promotion,
    followed,
    promoted,
    settings_now,
)
from tidemark.core.ids import TXN_FIRST, ShardId, Txn, WriterToken
from tidemark.core.journal import Event
from tidemark.core.ledger import UPPER, Head, Put
from tidemark.core.replay import DataDiffers, Replayable, judge
from tidemark.core.seal import Decision, Lost, Seal, Staged, TooEarly, skip_of
from tidemark.core.shard import NextAppend, Paused
from tidemark.pipeline.candidates import candidates, require_there, skip_promotion
from tidemark.pipeline.checkpoint import checkpoint, paused_shards
from tidemark.pipeline.context import (
    Attempt,
    Pipeline,
    binding_at,
    last_binding,
    note,
    seal_at,
    sealed_binding,
    settle,
    undecided_promotion,
    watermark_below,
)
from tidemark.pipeline.decide import accept, touch_seals
from tidemark.pipeline.history import is_in_a_log, require_logs
from tidemark.pipeline.ingest import Progress, no_progress
from tidemark.pipeline.run import finish
from tidemark.pipeline.upsert import bring_up_log, bring_up_logs, is_sealed, put_seal
from tidemark.ports.source import BindsNothing, Source

ADOPTED_AT_ONCE: Final = 1_000


class Recorded:
    """The `Source` of a candidate: the recorded input of the pipeline. It offers and acknowledges nothing."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def offer(self, last: Binding | None) -> Sequence[Step]:
        return ()

    def inspect(self, binding: Binding) -> str:
        return self._source.inspect(binding)

    def replayable(self, bindings: Sequence[Binding]) -> Sequence[Replayable]:
        return self._source.replayable(bindings)

    def acknowledge(self, frontier: Frontier) -> None:
        return


class Corrector(Protocol):
    """Stages the difference between the rows of two generations."""

    @property
    def engine(self) -> str: ...

    def correct(self, shard: ShardId, *, txn: Txn, token: WriterToken, watermark: int | None) -> Correction:
        """The difference between the shard's rows and the candidate's, both as of the transaction before
        `txn`, staged as parts of `txn`. `watermark` is the one that the promotion seals."""
        ...


# Following.


@dataclass(frozen=True, slots=True)
class Shadow:
    """A candidate beside its pipeline. `shadow` is the candidate's own pipeline, with ledgers and tables of
    its own. `target` is the pipeline as it will be: its own tables, with the candidate's configuration."""

    candidate: Candidate
    live: Pipeline
    shadow: Pipeline
    target: Pipeline


def adopt(pair: Shadow, owner: Owner) -> Txn:
    """Copy the bindings of the sealed transactions that the candidate does not have yet; returns the upper of
    its bindings. The candidate reads each with its own configuration or, outside of its range, with the one
    that is in charge of it now."""
    live = pair.live.control
    sealed_upper = live.seals.head().upper
    generation = live.candidates.head().generation
    known = (pair.candidate, *promoted(candidates(live), generation=generation))

    def decide(head: Head) -> Put[Binding, Txn] | Txn:
        if head.upper >= sealed_upper:
            return head.upper
        upper = min(sealed_upper, head.upper + ADOPTED_AT_ONCE)
        last = last_binding(pair.shadow, head)
        made: list[Binding] = []
        for seal in live.seals.read(head.upper, upper):
            bound = sealed_binding(pair.live, seal)
            settings = settings_now(known, seal) or bound.configuration
            copied = replace(
                bound, configuration=settings, owner=owner, epoch=head.epoch, lost=False, promotes=0
            )
            made.append(copied.linked(made[-1] if made else last))
        return Put(marks={UPPER: upper}, records=tuple(made), result=Txn(upper))

    upper = Txn(0)
    while upper < sealed_upper:
        upper = settle(pair.shadow.control.bindings, decide, what="the adoption of bindings")
    return upper


def follow(
    pair: Shadow,
    attempt: Attempt,
    *,
    transactions_max: int | None = None,
    progress: Progress = no_progress,
) -> Iterator[Followed]:
    """Take the candidate through the transactions that the pipeline has sealed, one by one, and compare each
    with what the pipeline has made of it. `InvalidUsage` once the candidate is no more: its tables are
    removed then, so whatever failed meanwhile is no error of its own."""
    live = pair.live.control.candidates
    require_there(pair.live, pair.candidate, live.head())
    adopt(pair, attempt.owner)
    head = pair.shadow.control.seals.head().upper
    # Another process may have adopted more than the loaded version of the pipeline's history has.
    adopted = pair.shadow.control.bindings.head().upper
    upper = Txn(min(adopted, pair.live.control.seals.head().upper))
    if transactions_max is not None:
        upper = Txn(min(upper, head + transactions_max))
    for number in range(head, upper):
        txn = Txn(number)
        seal = seal_at(pair.live, txn)
        try:
            _follow(pair, attempt, seal, progress)
            bring_up_logs(pair.shadow)
            checkpoint(pair.shadow)
        except (TidemarkError, OSError):
            require_there(pair.live, pair.candidate, live.head())
            raise
        pair.shadow.control.seals.head()
        yield followed(seal, seal_at(pair.shadow, txn))
    if head == upper:
        # A process may have died between a seal and its logs, or before the checkpoint.
        bring_up_logs(pair.shadow)
        checkpoint(pair.shadow)
    _release_as_the_pipeline(pair)


def _release_as_the_pipeline(pair: Shadow) -> None:
    """Let through what the candidate holds, where the pipeline held it too and a person has released it."""
    live = pair.live.control
    for shard, paused in paused_shards(pair.shadow).items():
        end: NextAppend = paused
        while isinstance(end, Paused) and end.txn < live.seals.head().upper:
            there = seal_at(pair.live, end.txn).shards.get(shard)
            if there is None or not there.held or live.log(shard).head().upper <= end.txn:
                break
            end = bring_up_log(pair.shadow, shard, release=end.txn).end
            checkpoint(pair.shadow)


_PASSED: Final = {
    Decision.SKIPPED: "it is skipped in the pipeline",
    Decision.LOST: "it is lost in the pipeline",
    Decision.CORRECTED: "it promoted an earlier generation",
}


def _follow(pair: Shadow, attempt: Attempt, seal: Seal, progress: Progress) -> None:
    """Make a decided transaction in the candidate. What people decided in the pipeline stays decided."""
    _followed_watermark(pair, attempt, seal.txn, seal.base)
    binding = binding_at(pair.shadow, seal.txn)
    shadow = replace(pair.shadow, configuration=binding.configuration)
    passed = _PASSED.get(seal.decision)
    if passed is not None:
        if pair.shadow.control.seals.head().upper <= seal.txn:
            put_seal(
                shadow,
                skip_of(
                    seal.txn,
                    token=attempt.token,
                    generation=shadow.generation,
                    reason=f"{passed}: {seal.reason}",
                    binding=binding.link,
                    watermark=watermark_below(shadow.control, seal.txn),
                ),
            )
        return
    if pair.shadow.control.seals.head().upper > seal.txn:
        return
    if seal.decision is Decision.ACCEPTED:
        try:
            accept(shadow, attempt, seal.txn, reason=seal.reason)
        except InvalidUsage:
            if pair.shadow.control.seals.head().upper <= seal.txn:
                raise
        return
    finish(shadow, attempt, seal.txn, progress=progress)


def _followed_watermark(pair: Shadow, attempt: Attempt, txn: Txn, base: int | None) -> int | None:
    """The watermark below a transaction in the candidate. Where a person has set the pipeline's back to
    `base` there, the candidate's is set back too."""
    control = pair.shadow.control
    now = watermark_below(control, txn)
    reached = [one.watermark for one in pair.live.control.seals.read(txn - 1, txn)]
    if base is None or now is None or now <= base or not reached or reached[0] is None:
        return now
    if reached[0] <= base or control.seals.head().upper != txn:
        return now
    reason = {"reason": "it was set back in the pipeline", "run": attempt.owner.run_id}
    detail = {"from": str(now), "to": str(base), **reason}
    note(pair.shadow, Event.WATERMARK, txn=txn, token=attempt.token, detail=detail)
    touch_seals(pair.shadow, txn)
    return base


@dataclass(frozen=True, slots=True)
class Position:
    """How far a candidate is: the last transaction that it has, and the last one that is sealed."""

    txn: Txn
    sealed: Txn
    open: int

    @property
    def behind(self) -> int:
        return self.sealed - self.txn


def position(pair: Shadow) -> Position:
    sealed = pair.live.control.seals.head().upper
    bound = pair.live.control.bindings.head().upper
    return Position(Txn(pair.shadow.control.seals.head().upper - 1), Txn(sealed - 1), bound - sealed)


def comparisons(pair: Shadow, *, lower: Txn = TXN_FIRST, upper: Txn | None = None) -> list[Followed]:
    """What both generations made of each transaction that the candidate has."""
    sealed = min(pair.shadow.control.seals.head().upper, pair.live.control.seals.head().upper)
    end = sealed if upper is None else min(upper, sealed)
    live = pair.live.control.seals.read(lower, end)
    shadow = pair.shadow.control.seals.read(lower, end)
    return [followed(one, other) for one, other in zip(live, shadow, strict=True)]


# Promotion.


@dataclass(frozen=True, slots=True)
class Promotion:
    """The result of a promotion: its transaction, and the rows that each shard got corrected; none where
    another try of the run has done it."""

    txn: Txn
    generation: int
    corrections: Mapping[ShardId, Correction] = field(default_factory=dict)


class NotReady(InvalidUsage):
    """A candidate that may not be promoted as it is."""


def promote(
    pair: Shadow,
    attempt: Attempt,
    corrector: Corrector,
    shards: Sequence[ShardId],
    *,
    grace_seconds: float = GRACE_SECONDS,
    user: str = "",
    progress: Progress = no_progress,
) -> Promotion:
    """Promote a candidate.

    It follows up to the last sealed transaction before anything is bound, so that runs wait only for what is
    sealed meanwhile, and for the difference."""
    outcome = _done_before(pair, attempt)
    if outcome is None:
        _catch_up(pair, attempt, progress)
        bound = _bind(pair, attempt, grace_seconds)
        try:
            outcome = _decide(pair, attempt, corrector, shards, bound, progress)
        except Exception:
            # No run should wait for a promotion that has failed. The error itself tells more than another
            # one here.
            with suppress(TidemarkError, OSError):
                skip_promotion(pair.live, bound, attempt)
            raise
    _note_promotion(pair, attempt, outcome.txn, user)
    bring_up_logs(pair.target)
    checkpoint(pair.target)
    return outcome


def _done_before(pair: Shadow, attempt: Attempt) -> Promotion | None:
    """The promotion that an earlier try of this run has sealed; None if there is none."""
    control, generation = pair.live.control, pair.candidate.generation
    upper = control.seals.head().upper
    for one in control.bindings.find(attempt.owner.identity):
        if one.promotes != generation or one.txn >= upper:
            continue
        if seal_at(pair.live, one.txn).decision is Decision.CORRECTED:
            return Promotion(one.txn, generation)
    return None


def _note_promotion(pair: Shadow, attempt: Attempt, txn: Txn, user: str) -> None:
    """Note a promotion in the journal, unless an earlier try has."""
    journal = pair.live.control.journal
    journal.head()
    if any(entry.event is Event.PROMOTED for entry in journal.find(str(txn))):
        return
    detail = {
        "generation": str(pair.candidate.generation),
        "reason": pair.candidate.reason,
        "run": attempt.owner.run_id,
        **({"user": user} if user else {}),
    }
    note(pair.live, Event.PROMOTED, txn=txn, token=attempt.token, detail=detail)


def _catch_up(pair: Shadow, attempt: Attempt, progress: Progress) -> None:
    """Follow up to the last sealed transaction, and check that the candidate may be promoted there."""
    if pair.candidate.from_now:
        return
    for _ in follow(pair, attempt, progress=progress):
        pass
    require_ready(pair)


def _bind(pair: Shadow, attempt: Attempt, grace_seconds: float) -> Binding:
    live, candidate = pair.live, pair.candidate
    bindings = live.control.bindings

    def decide(head: Head) -> Put[Binding, Binding] | Binding:
        require_logs(live.control)
        last = last_binding(live, head)
        if last is None:
            hint = "run the pipeline: it begins with this generation"
            raise InvalidUsage("nothing is bound yet", hint=hint)
        require_there(live, candidate, head)
        return decide_promotion(
            head=head,
            last=last,
            undecided=undecided_promotion(live.control, last),
            candidate=candidate,
            nothing=_nothing(live, last),
            owner=attempt.owner,
            grace_seconds=grace_seconds,
        )

    return settle(bindings, decide, what=f"the promotion of generation {candidate.generation}")


def _nothing(live: Pipeline, last: Binding) -> Step:
    if isinstance(live.source, BindsNothing):
        return live.source.nothing_after(last, lost=False)
    return Step(last.upper)


def _decide(
    pair: Shadow,
    attempt: Attempt,
    corrector: Corrector,
    shards: Sequence[ShardId],
    bound: Binding,
    progress: Progress,
) -> Promotion:
    """Decide everything below the promotion, then the promotion itself, by its seal."""
    live, txn = pair.live, bound.txn
    for number in range(live.control.seals.head().upper, txn):
        finish(live, attempt, Txn(number), progress=progress)
    bring_up_logs(live)
    checkpoint(live)
    _catch_up(pair, attempt, progress)
    base = watermark_below(live.control, txn)
    from_now = pair.candidate.from_now
    watermark = base if from_now else _followed_watermark(pair, attempt, txn, base)
    corrections = _corrected(pair, attempt, corrector, shards, bound, watermark, progress)
    parts = {shard: one.parts for shard, one in corrections.items() if one.parts is not None}
    seal = correction_seal(
        bound,
        token=attempt.token,
        candidate=pair.candidate,
        shards=parts,
        engine="" if from_now else corrector.engine,
        watermark=watermark,
        base=base,
    )
    progress(txn, "promote")
    outcome = put_seal(pair.target, seal)
    if isinstance(outcome, Lost):
        if not is_in_a_log(live.control, txn, attempt.token):
            live.plane.discard(txn, attempt.token)
        if outcome.winner.decision is Decision.CORRECTED:
            return Promotion(txn, pair.candidate.generation)
        raise Determinate(
            f"transaction {txn} was {outcome.winner.decision} meanwhile: {outcome.winner.reason}",
            hint="nothing has changed; promote again",
        )
    if isinstance(outcome, TooEarly):
        raise Determinate(f"transaction {outcome.upper} is still open", hint="promote again")
    return Promotion(txn, pair.candidate.generation, corrections)


def _corrected(
    pair: Shadow,
    attempt: Attempt,
    corrector: Corrector,
    shards: Sequence[ShardId],
    bound: Binding,
    watermark: int | None,
    progress: Progress,
) -> dict[ShardId, Correction]:
    """The differences of all shards, staged under the attempt's token and read back."""
    if pair.candidate.from_now:
        return {}
    txn, target = bound.txn, pair.target
    progress(txn, "correct")
    found = {
        shard: corrector.correct(shard, txn=txn, token=attempt.token, watermark=watermark) for shard in shards
    }
    refused = [f"shard {shard}: {one.refused}" for shard, one in found.items() if one.refused]
    parts = {shard: one.parts for shard, one in found.items() if one.parts is not None}
    staged = Staged(txn, attempt.token, Digest(), parts, corrector.engine)
    finding = judge(txn, recorded=staged.digests, found=target.plane.read_back(staged) if parts else {})
    if refused or (parts and not finding.passed):
        target.plane.discard(txn, attempt.token)
    if refused:
        raise NotReady(
            f"generation {pair.candidate.generation} can't be promoted: {'; '.join(refused)}",
            hint="nothing has changed; abort the candidate, or change its file and start again",
        )
    # The parts may have been swept, because the promotion was skipped meanwhile: then its seal says so.
    if parts and not finding.passed and not is_sealed(pair.live, txn):
        raise DataDiffers(finding)
    return found


def require_ready(pair: Shadow) -> None:
    """`NotReady` unless the candidate has every sealed transaction, has read the same records for each, and
    no shard of either generation waits for a release."""
    found = position(pair)
    if found.behind < 0:
        raise NotReady(
            f"generation {pair.candidate.generation} has transaction {found.txn}, and the pipeline's history"
            f" ends with {found.sealed}",
            hint="the history was set back; recover it, abort the candidate and start again",
        )
    if found.behind:
        raise NotReady(
            f"generation {pair.candidate.generation} is {found.behind} transactions behind",
            hint="let it follow first",
        )
    other = [one.txn for one in comparisons(pair) if not one.source_equal]
    if other:
        raise NotReady(
            f"generation {pair.candidate.generation} has read other records for transactions"
            f" {', '.join(map(str, other[:10]))}",
            hint="the input has changed since; restore it, abort the candidate and start again",
        )
    for which, pipeline in (("the pipeline", pair.live), ("the candidate", pair.shadow)):
        waits = paused_shards(pipeline)
        if waits:
            shard, paused = next(iter(waits.items()))
            raise NotReady(
                f"shard {shard} of {which} waits at transaction {paused.txn}: {paused.reason}",
                hint="release it first" if pipeline is pair.live else "change the file, and start again",
            )
