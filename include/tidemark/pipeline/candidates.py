"""Candidates: which configuration is in charge, which candidate there is, and waiting for its promotion.

A candidate's start and its end are records of the history, so of two starts one wins, and an end can't pass a
promotion that is bound. A run that meets an open promotion waits for it; past its time it skips it, and then
nothing has happened.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable
from typing import Final

from tidemark.core.binding import Binding, Configuration
from tidemark.core.errors import InvalidUsage
from tidemark.core.generation import (
    Candidate,
    PromotionOpen,
    current,
    decide_abort,
    decide_start,
    in_charge,
    promoted,
)
from tidemark.core.history import BOUND, CANDIDATES, SEALED
from tidemark.core.ids import TXN_FIRST, Txn, WriterToken
from tidemark.core.ledger import Head, Put
from tidemark.core.seal import skip_of
from tidemark.pipeline.checkpoint import checkpoint
from tidemark.pipeline.context import (
    Attempt,
    Pipeline,
    settle,
    undecided_promotion,
    watermark_below,
)
from tidemark.pipeline.run import finish
from tidemark.pipeline.upsert import bring_up_logs, put_seal
from tidemark.ports.control import Control, ReportsCommitTime

POLL_SECONDS: Final = 0.2


# Which configuration is in charge.


def candidates(control: Control) -> tuple[Candidate, ...]:
    """All records of candidates, by the newest version of the history."""
    upper = control.candidates.head().upper
    return tuple(control.candidates.read(TXN_FIRST, upper))


def candidate_of(control: Control) -> Candidate | None:
    """The candidate that is there; None when there is none."""
    return current(candidates(control), generation=control.candidates.head().generation)


def configuration_in_charge(control: Control, *, below: Txn | None = None) -> Configuration | None:
    """The configuration in charge, or the one that was before the transaction `below` was sealed; None when
    nothing is bound yet by the generation in charge."""
    head = control.bindings.head()
    upper, generation = head.upper, head.generation
    sealed_upper = Txn(max(TXN_FIRST, control.bindings.mark(SEALED)))
    if below is not None:
        upper, sealed_upper = below, min(below, sealed_upper)
        generation = control.seals.read(Txn(below - 1), below)[0].generation
    while upper > TXN_FIRST:
        lower = max(TXN_FIRST, upper - 4)
        bound = control.bindings.read(lower, upper)
        seals = control.seals.read(lower, min(upper, sealed_upper))
        found = in_charge(bound, seals, generation=generation)
        if found is not None:
            return found
        upper = Txn(lower)
    return None


def last_reread(control: Control) -> Txn:
    """The last promotion of a candidate that has read the past again; the first transaction if there is none.
    The generation never falls, so its first seal is the promotion's."""
    generation = control.candidates.head().generation
    known = promoted(candidates(control), generation=generation) if generation else ()
    reread = next((one.generation for one in known if not one.from_now), 0)
    if not reread:
        return TXN_FIRST
    seals = range(TXN_FIRST, control.seals.head().upper)
    at = bisect_left(seals, reread, key=lambda txn: control.seals.read(Txn(txn), Txn(txn + 1))[0].generation)
    return Txn(TXN_FIRST + at)


# Start and abort.


def start(control: Control, new: Candidate) -> Candidate:
    """Record a candidate; `InvalidUsage` when there is one already or its generation is not a new one."""

    def decide(head: Head) -> Put[Candidate, Candidate] | Candidate:
        known = control.candidates.read(TXN_FIRST, head.upper)
        return decide_start(
            head=head,
            last=known[-1] if known else None,
            found=current(known, generation=head.generation),
            new=new,
            generation=head.generation,
        )

    return settle(control.candidates, decide, what=f"the start of generation {new.generation}")


def abort(control: Control, candidate: Candidate, *, token: WriterToken, reason: str) -> Candidate:
    """Record that a candidate has ended; its shadow folder may be removed after that. A promotion that is
    bound and not decided has to be decided first."""

    def decide(head: Head) -> Put[Candidate, Candidate] | Candidate:
        known = control.candidates.read(TXN_FIRST, head.upper)
        undecided = _undecided(control)
        if undecided is not None:
            raise PromotionOpen(undecided)
        return decide_abort(
            head=head,
            found=current(known, generation=head.generation),
            last=known[-1] if known else None,
            start=candidate.start,
            token=token,
            reason=reason,
        )

    return settle(control.candidates, decide, what=f"the end of generation {candidate.generation}")


def _undecided(control: Control) -> Binding | None:
    """The open promotion in the loaded version of the history."""
    upper = max(TXN_FIRST, control.bindings.mark(BOUND))
    bound = control.bindings.read(upper - 1, upper)
    return undecided_promotion(control, bound[0] if bound else None)


def require_there(live: Pipeline, candidate: Candidate, head: Head) -> None:
    """`InvalidUsage` unless this very candidate is there, in the loaded version of the history. A later start
    may have the same generation."""
    upper = max(TXN_FIRST, live.control.candidates.mark(CANDIDATES))
    there = current(live.control.candidates.read(TXN_FIRST, upper), generation=head.generation)
    if there is None or there.start != candidate.start:
        raise InvalidUsage(
            f"generation {candidate.generation} is no candidate any more",
            hint="`tidemark generation status` shows what is",
        )


# Waiting for a promotion, and giving it up.


def is_overdue(control: Control, bound: Binding, *, now_seconds: float) -> bool:
    """Whether runs have waited long enough for a promotion. Its time is that of its commit; a wrong clock can
    only end the wait too early, and then the promotion has not happened."""
    at = control.bindings.written_at(bound.txn) if isinstance(control.bindings, ReportsCommitTime) else None
    return at is None or now_seconds - at.timestamp() > bound.grace_seconds


def await_promotion(
    live: Pipeline,
    attempt: Attempt,
    bound: Binding,
    *,
    clock: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Wait until a promotion is decided; past its time, skip it. Then later transactions go on. Where clocks
    differ, the wait is no longer than that either."""
    began = clock()
    while live.control.seals.head().upper <= bound.txn:
        now = clock()
        waited = not 0 <= now - began <= bound.grace_seconds
        if waited or is_overdue(live.control, bound, now_seconds=now):
            give_up(live, attempt, bound)
            return
        sleep(POLL_SECONDS)


def give_up(live: Pipeline, attempt: Attempt, bound: Binding) -> None:
    """Skip a promotion that was not decided in time. Transactions below it that are still open are finished
    first: a promotion must not wait for a run that waits for it."""
    for number in range(live.control.seals.head().upper, bound.txn):
        finish(live, attempt, Txn(number))
    skip_promotion(live, bound, attempt)
    bring_up_logs(live)
    checkpoint(live)


def skip_promotion(live: Pipeline, bound: Binding, attempt: Attempt) -> None:
    """Skip a promotion, if everything below it is decided."""
    if live.control.seals.head().upper != bound.txn:
        return
    seal = skip_of(
        bound.txn,
        token=attempt.token,
        generation=live.generation,
        reason=f"the promotion of generation {bound.promotes} was not decided",
        binding=bound.link,
        watermark=watermark_below(live.control, bound.txn),
    )
    put_seal(live, seal)
