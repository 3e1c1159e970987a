"""Generations in the simulation: in every interleaving exactly one is in charge, and the tables are what its
rules make of the source, at every transaction (scenarios G1 to G18).

`make simulate` runs many more seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from tests.simulation.generations import GenerationSimulation, check
from tests.support.memory.generations import MemoryCorrector
from tidemark.core import log, seal
from tidemark.core.generation import Correction, PromotionOpen, Superseded
from tidemark.core.ids import ShardId
from tidemark.pipeline import candidates, promotion, reclock
from tidemark.pipeline.context import last_binding, undecided_promotion

SEEDS = 600
CHUNKS = 3
MUTANT_SEEDS_MAX = 3_000


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_one_generation_is_in_charge_and_the_tables_are_right_in_every_interleaving(chunk: int) -> None:
    size = SEEDS // CHUNKS
    found = [check(seed) for seed in range(chunk * size, (chunk + 1) * size)]
    promoted, skipped = sum(one.promoted > 0 for one in found), sum(one.skipped > 0 for one in found)
    assert promoted > size / 4, "promotions are to be seen"
    assert skipped > size / 20, "promotions that were given up are to be seen"
    assert sum(one.untouched > 0 for one in found) > size / 20, "shards that don't change are to be seen"
    assert sum(one.replaced > 0 for one in found) > size / 20, "replaced shards are to be seen"


def test_a_seed_replays_exactly() -> None:
    for seed in range(20):
        first, second = GenerationSimulation(seed), GenerationSimulation(seed)
        first.simulate()
        second.simulate()
        assert first.scheduler.steps == second.scheduler.steps
        assert first.seals == second.seals
        assert first.files == second.files


# Mutants.


@contextmanager
def readiness_of_an_older_revision() -> Iterator[None]:
    """Promote what was ready, whether or not it is the candidate that is there."""
    with patch.object(promotion, "require_there", lambda *_: None):
        yield


@contextmanager
def an_abort_that_asks_for_no_promotion() -> Iterator[None]:
    with patch.object(candidates, "_undecided", lambda _: None):
        yield


@contextmanager
def difference_of_another_cut() -> Iterator[None]:
    """Compute the difference before the promotion is bound, and seal it at the promotion."""
    promote = promotion.promote

    def early(pair: Any, attempt: Any, corrector: Any, shards: Any, **known: Any) -> Any:
        upper = pair.shadow.control.seals.head().upper
        found = {shard: corrector.difference(shard, upper=upper) for shard in shards}

        class Early:
            engine, settings, check = corrector.engine, corrector.settings, corrector.check

            def correct(self, shards: Any, *, replaced: Any, **known: Any) -> dict[Any, Correction]:
                whole = corrector.correct(tuple(replaced), replaced=replaced, **known)
                del known["watermark"]
                rest = (shard for shard in shards if shard not in replaced)
                return whole | {shard: corrector.stage(shard, found[shard], **known) for shard in rest}

        return promote(pair, attempt, Early(), shards, **known)

    with patch("tests.support.memory.generations.promote", early):
        yield


@contextmanager
def upper_read_once_at_the_start() -> Iterator[None]:
    """Follow up to what was sealed when the promotion began, and no further."""
    catch_up = promotion._catch_up
    followed: set[str] = set()

    def once(pair: Any, attempt: Any, progress: Any) -> None:
        if attempt.token not in followed:
            followed.add(attempt.token)
            catch_up(pair, attempt, progress)

    with patch.object(promotion, "_catch_up", once), unguarded_reads():
        yield


@contextmanager
def promoted_without_following() -> Iterator[None]:
    """Go back, or forward, with what the candidate happens to have."""
    with patch.object(promotion, "_catch_up", lambda *_: None), unguarded_reads():
        yield


@contextmanager
def unguarded_reads() -> Iterator[None]:
    """Tables that can be read as of a transaction that they don't have."""
    with patch("tests.support.memory.generations.readable_upper", lambda *_: 1_000):
        yield


@contextmanager
def fence_read_before_the_commit_that_binds() -> Iterator[None]:
    mint = reclock.mint

    def checked_first(pipeline: Any, attempt: Any) -> Any:
        head = pipeline.control.bindings.head()
        if pipeline.generation < head.generation:
            raise Superseded(generation=pipeline.generation, newest=head.generation)
        undecided = undecided_promotion(pipeline.control, last_binding(pipeline, head))
        if undecided is not None:
            raise PromotionOpen(undecided)
        return mint(pipeline, attempt)

    unfenced = patch.object(reclock, "is_fenced", lambda *_, **__: False)
    with patch.object(reclock, "mint", checked_first), unfenced:
        yield


@contextmanager
def fence_against_older_generations_only() -> Iterator[None]:
    """A process that takes its file for the one in charge binds and seals."""

    def older(generation: int, *, newest: int, sealed_upper: int) -> bool:
        return generation < newest

    with patch.object(reclock, "is_fenced", older), patch.object(seal, "is_fenced", older):
        yield


@contextmanager
def fence_read_before_the_commit_that_seals() -> Iterator[None]:
    """Whoever was opened with an older generation seals all the same."""
    with patch.object(seal, "is_refused", lambda *_: False):
        yield


@contextmanager
def bound_above_an_open_promotion() -> Iterator[None]:
    with patch.object(reclock, "undecided_promotion", lambda *_: None):
        yield


@contextmanager
def shards_that_differ_are_not_compared() -> Iterator[None]:
    with patch.object(promotion, "unchanged", lambda _, __, shards, **___: set(shards)):
        yield


@contextmanager
def the_last_transaction_below_is_not_looked_at() -> Iterator[None]:
    unchanged = promotion.unchanged

    def early(*known: Any, upper: Any) -> Any:
        return unchanged(*known, upper=upper - 1)

    with patch.object(promotion, "unchanged", early):
        yield


@contextmanager
def an_earlier_promotion_is_overlooked() -> Iterator[None]:
    """Compare what transactions with input have made, and forget the rows of corrections."""
    differing = promotion.differing

    def of_input(live: seal.Seal, shadow: seal.Seal) -> set[ShardId]:
        return set() if live.decision is seal.Decision.CORRECTED else differing(live, shadow)

    with patch.object(promotion, "differing", of_input):
        yield


@contextmanager
def a_replaced_log_keeps_its_old_rows() -> Iterator[None]:
    """The whole new state stands beside what it replaces."""
    entry_of = log.entry_of
    kept = patch.object(log, "entry_of", lambda *known: replace(entry_of(*known), replaced=None))
    with kept:
        yield


@contextmanager
def a_replaced_shard_gets_only_the_difference() -> Iterator[None]:
    correct = MemoryCorrector.correct

    def difference(self: Any, shards: Any, **known: Any) -> Any:
        return correct(self, shards, **{**known, "replaced": ()})

    with patch.object(MemoryCorrector, "correct", difference):
        yield


@contextmanager
def a_replaced_shard_is_taken_for_equal() -> Iterator[None]:
    """Its transactions have the same rows in both generations, so nothing is staged for it."""
    corrected = promotion._corrected

    def without(pair: Any, attempt: Any, corrector: Any, shards: Any, *known: Any) -> Any:
        found = corrected(pair, attempt, corrector, shards, *known)
        return {one: correction for one, correction in found.items() if one not in known[-2]}

    with patch.object(promotion, "_corrected", without):
        yield


MUTANTS: tuple[Callable[[], Any], ...] = (
    readiness_of_an_older_revision,
    an_abort_that_asks_for_no_promotion,
    difference_of_another_cut,
    upper_read_once_at_the_start,
    promoted_without_following,
    fence_read_before_the_commit_that_binds,
    fence_read_before_the_commit_that_seals,
    fence_against_older_generations_only,
    bound_above_an_open_promotion,
    shards_that_differ_are_not_compared,
    the_last_transaction_below_is_not_looked_at,
    an_earlier_promotion_is_overlooked,
    a_replaced_log_keeps_its_old_rows,
    a_replaced_shard_gets_only_the_difference,
    a_replaced_shard_is_taken_for_equal,
)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_the_simulation_of_generations_notices_a_mistake(mutant: Callable[[], Any]) -> None:
    with ExitStack() as stack:
        stack.enter_context(mutant())
        stack.enter_context(pytest.raises(AssertionError, match="seed"))
        for seed in range(MUTANT_SEEDS_MAX):
            check(seed)
