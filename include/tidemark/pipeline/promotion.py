"""Promotion: decide the transaction that puts a candidate in charge (`core.generation`).

It can stop anywhere: until the seal nothing has happened, and after the seal anyone finishes it, as any other
transaction.

A shard that gets another key, type or order is replaced: all rows of the candidate are staged for it, and
nothing is compared (`replaced_shapes`).

Runs wait for an open promotion, so it compares the rows of as few shards as it can. A shard has the same rows
in both generations if every transaction has added the same rows to it, by the same settings (`unchanged`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Protocol

from tidemark.core.binding import Binding, Configuration, Step
from tidemark.core.checksum import Digest
from tidemark.core.errors import Determinate, InvalidUsage, TidemarkError
from tidemark.core.generation import (
    GRACE_SECONDS,
    Correction,
    correction_seal,
    decide_promotion,
    differing,
)
from tidemark.core.ids import TXN_FIRST, ShardId, Txn, WriterToken
from tidemark.core.ledger import Event, Head, Put
from tidemark.core.replay import DataDiffers, judge
from tidemark.core.seal import Decision, Lost, Seal, ShardParts, Staged, TooEarly
from tidemark.core.shape import Shape, Shapes, misfit, replaced_in
from tidemark.pipeline.candidates import require_there, skip_promotion
from tidemark.pipeline.checkpoint import checkpoint, paused_shards
from tidemark.pipeline.context import (
    Attempt,
    Pipeline,
    last_binding,
    note,
    seal_at,
    settle,
    undecided_promotion,
    watermark_below,
)
from tidemark.pipeline.generation import Shadow, comparisons, follow, followed_watermark, position
from tidemark.pipeline.history import is_in_a_log, require_logs
from tidemark.pipeline.ingest import Progress, no_progress
from tidemark.pipeline.run import finish
from tidemark.pipeline.upsert import bring_up_logs, is_sealed, put_seal
from tidemark.ports.source import BindsNothing

SEALS_AT_ONCE: Final = 1_000


class Corrector(Protocol):
    """Stages the difference between the rows of two generations."""

    @property
    def engine(self) -> str: ...

    def settings(self, configuration: Configuration, shard: ShardId) -> str | None:
        """The settings that decide what records become in a shard, as text. None where equal rows of every
        transaction, by equal settings, are not enough to say that its tables are equal."""
        ...

    def check(self, shards: Sequence[ShardId], *, upper: Txn, replaced: Collection[ShardId] = ()) -> None:
        """Compare the rows that a difference below `upper` would be read from with their digests. Of a
        replaced shard only the candidate's are read."""
        ...

    def correct(
        self,
        shards: Sequence[ShardId],
        *,
        txn: Txn,
        token: WriterToken,
        watermark: int | None,
        replaced: Collection[ShardId] = (),
    ) -> Mapping[ShardId, Correction]:
        """The differences between the rows of shards and the candidate's, both as of the transaction before
        `txn`, staged as parts of `txn`; of a replaced shard all rows of the candidate. `watermark` is the one
        that the promotion seals."""
        ...


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
        _check_tables(pair, corrector, shards)
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


def _check_tables(pair: Shadow, corrector: Corrector, shards: Sequence[ShardId]) -> None:
    """Check the tables that will be compared: a row that one of them has lost would pass for a difference, or
    hide one. Before anything is bound, as it takes as long as reading them, and no run should wait for it."""
    if pair.candidate.from_now:
        return
    upper = pair.shadow.control.seals.head().upper
    replaced = replaced_shapes(pair, shards)
    equal = unchanged(pair, corrector, shards, upper=upper) - replaced.keys()
    differ = [shard for shard in shards if shard not in equal]
    corrector.check(differ, upper=upper, replaced=replaced)


def replaced_shapes(pair: Shadow, shards: Sequence[ShardId]) -> Shapes:
    """The shards that the promotion replaces, each with its new shape: their logs don't take rows of the
    candidate's shape. `NotReady` where nobody has agreed to that."""
    declared = pair.target.shapes_of(pair.candidate.configuration)
    found: dict[ShardId, Shape] = {}
    for shard in (shard for shard in shards if shard in declared):
        recorded = pair.live.control.log(shard).shape()
        why = misfit(shard, recorded=recorded, declared=declared[shard])
        if recorded is None or why is None:
            continue
        differs = replaced_in(recorded=recorded, declared=declared[shard])
        agreed = shard in pair.candidate.replaces and not pair.candidate.from_now
        if not agreed or not differs or declared[shard].grows:
            raise NotReady(
                f"generation {pair.candidate.generation} can't be promoted: {why.fact}",
                hint=f"abort the candidate, and start it with `--replace {shard}`, or with another file",
            )
        found[shard] = declared[shard]
    return found


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
    watermark = base if from_now else followed_watermark(pair, attempt, txn, base)
    replaced = replaced_shapes(pair, shards)
    corrections = _corrected(pair, attempt, corrector, shards, bound, watermark, replaced, progress)
    empty = {shard: ShardParts((), Digest()) for shard in replaced}
    parts = empty | {shard: one.parts for shard, one in corrections.items() if one.parts is not None}
    seal = correction_seal(
        bound,
        token=attempt.token,
        candidate=pair.candidate,
        shards=parts,
        engine="" if from_now else corrector.engine,
        watermark=watermark,
        base=base,
        replaced=replaced,
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
    replaced: Shapes,
    progress: Progress,
) -> dict[ShardId, Correction]:
    """The differences of all shards, staged under the attempt's token and read back; of those that are
    replaced, all rows."""
    if pair.candidate.from_now:
        return {}
    txn, target = bound.txn, pair.target
    equal = unchanged(pair, corrector, shards, upper=txn) - replaced.keys()
    compared = [shard for shard in shards if shard not in equal]
    progress(txn, f"compare {len(compared)} of {len(shards)} shards")
    found = {
        **dict.fromkeys(equal, Correction()),
        **corrector.correct(compared, txn=txn, token=attempt.token, watermark=watermark, replaced=replaced),
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


def unchanged(pair: Shadow, corrector: Corrector, shards: Sequence[ShardId], *, upper: Txn) -> set[ShardId]:
    """The shards whose tables are equal in both generations below `upper`, without a look at their rows.

    Both generations have read the same records (`require_ready`). A shard is unchanged if each transaction
    has added the same rows to it in both, by the sealed digests, and if all its rows in both, and those to
    come, are made by the same settings. So no rule could make another row of a record, and what is left to
    differ (another engine, a setting that gives another value each time) shows in the digests."""
    found = set(shards)
    made_by: dict[Configuration, set[ShardId]] = {}
    for lower in range(TXN_FIRST, upper, SEALS_AT_ONCE):
        end = Txn(min(upper, lower + SEALS_AT_ONCE))
        live, shadow = (_sealed(one, Txn(lower), end) for one in (pair.live, pair.shadow))
        for (one, settings), (other, other_settings) in zip(live, shadow, strict=True):
            if Decision.LOST in (one.decision, other.decision):
                return set()  # A log may have rows of it that no seal names.
            found -= differing(one, other)
            for known in (settings, other_settings):
                made_by.setdefault(known, set()).update(one.shards, other.shards)
    found -= _made_otherwise(pair, corrector, made_by)
    return found


def _made_otherwise(
    pair: Shadow, corrector: Corrector, made_by: Mapping[Configuration, set[ShardId]]
) -> set[ShardId]:
    """The shards with rows that settings have made which are not those of both generations now."""
    touched = {shard for shards in made_by.values() for shard in shards}
    now = {shard: corrector.settings(pair.candidate.configuration, shard) for shard in touched}
    return {
        shard
        for settings, shards in [*made_by.items(), (pair.live.configuration, touched)]
        for shard in shards
        if now[shard] is None or corrector.settings(settings, shard) != now[shard]
    }


def _sealed(pipeline: Pipeline, lower: Txn, upper: Txn) -> list[tuple[Seal, Configuration]]:
    """Sealed transactions, each with the settings that it was sealed with."""
    bound = pipeline.control.bindings.read(lower, upper)
    seals = pipeline.control.seals.read(lower, upper)
    if not len(bound) == len(seals) == upper - lower:
        raise Determinate(f"transactions {lower} to {upper - 1} are not all visible yet", hint="retry")
    return [
        (seal, binding.under(seal.configuration).configuration)
        for seal, binding in zip(seals, bound, strict=True)
    ]


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
