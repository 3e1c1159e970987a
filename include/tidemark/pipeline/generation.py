"""Generations: a candidate that follows its pipeline.

The candidate is an ordinary pipeline with ledgers and tables of its own, in a shadow folder, so it runs the
same steps as any other: it stages, is validated, seals and appends. Only its bindings are copies: it adopts
those of the pipeline, under the same numbers, once their transactions are sealed (`follow`). So any number of
processes may follow at once, and one that dies leaves nothing to clean up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tidemark.core.binding import Binding, Owner, Step
from tidemark.core.errors import InvalidUsage, TidemarkError
from tidemark.core.generation import Candidate, Followed, followed, promoted, settings_now
from tidemark.core.ids import TXN_FIRST, Frontier, Txn
from tidemark.core.ledger import UPPER, Event, Head, Put
from tidemark.core.log import NextAppend, Paused
from tidemark.core.replay import Replayable
from tidemark.core.seal import Decision, Seal, skip_of
from tidemark.pipeline.candidates import candidates, require_there
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
    watermark_below,
)
from tidemark.pipeline.decide import accept, touch_seals
from tidemark.pipeline.ingest import Progress, no_progress
from tidemark.pipeline.run import finish
from tidemark.pipeline.upsert import bring_up_log, bring_up_logs, put_seal
from tidemark.ports.source import Source

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
            live.head()  # The first look may show an old version; the second never does.
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
    followed_watermark(pair, attempt, seal.txn, seal.base)
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


def followed_watermark(pair: Shadow, attempt: Attempt, txn: Txn, base: int | None) -> int | None:
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
