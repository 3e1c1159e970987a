"""Scenario G23: a promotion compares the rows of the shards that may differ, and of no other."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest

from tests.support.memory.generations import SHARDS, GenerationWorld, settings
from tests.support.memory.world import A, B, rec
from tidemark.core.binding import Configuration
from tidemark.core.errors import Determinate
from tidemark.core.generation import Candidate
from tidemark.core.ids import ShardId, Txn
from tidemark.core.seal import Decision
from tidemark.pipeline import promotion
from tidemark.pipeline.decide import skip
from tidemark.pipeline.promotion import promote
from tidemark.pipeline.reclock import reclock
from tidemark.pipeline.recover import recover


def world_of_two(**rules: Any) -> GenerationWorld:
    """Transactions of both shards, of one, and one that is skipped."""
    world = GenerationWorld(**rules)
    world.commit(rec("k", 1), rec("gone", 1), rec("l", 2, table="b"))
    world.commit(rec("k", 2))
    world.commit(rec("l", 3, table="b"), rec("gone", None))
    return world


def compared(world: GenerationWorld, candidate: Candidate) -> tuple[ShardId, ...]:
    """The shards whose rows a promotion compares."""
    pair, corrector = world.pair(candidate)
    promote(pair, world.attempt(), corrector, SHARDS)
    return corrector.compared


def require_right(world: GenerationWorld, configuration: Configuration) -> None:
    for shard in SHARDS:
        assert world.state(shard) == world.recomputed(configuration, shard), shard


def test_g23_only_a_shard_that_may_differ_is_compared() -> None:
    world = world_of_two()
    rules = settings(1, times=10, of=["b"])
    assert compared(world, world.start(rules)) == (B,)
    require_right(world, rules)
    same = settings(2, times=10, of=["b"])
    assert compared(world, world.start(same)) == (B,), "what a promotion has corrected is compared"
    require_right(world, same)


def test_g23_equal_settings_and_rows_are_not_compared_and_a_skipped_transaction_has_none() -> None:
    world = world_of_two()
    world.feed(rec("bad", 1))
    reclock(world.opened(), world.attempt("gone"))
    skip(world.opened(), world.attempt(), Txn(4), reason="wrong")
    assert compared(world, world.start(settings(1))) == ()
    assert world.seals[-1].decision is Decision.CORRECTED


def test_g23_rows_that_an_engine_reads_otherwise_are_compared_under_equal_settings() -> None:
    world = world_of_two()
    world.engine_adds = 1
    candidate = world.start(settings(1))
    assert compared(world, candidate) == (A, B)
    assert world.state() == {("k",): 3}
    assert world.state(B) == {("l",): 4}


def test_g23_the_last_transaction_below_the_promotion_counts() -> None:
    """It is the only one that differs, and it is sealed after the candidate has followed."""
    world = world_of_two()
    candidate = world.start(settings(1))
    world.follow(candidate)
    world.commit(rec("l", 7, table="b"))
    world.engine_adds = 1
    assert compared(world, candidate) == (B,)
    assert world.state() == {("k",): 2}
    assert world.state(B) == {("l",): 8}


def test_g23_rows_of_an_earlier_promotion_under_the_same_settings_are_compared() -> None:
    """The transactions are again what they were before the promotion, and the tables are not."""
    world = world_of_two()
    world.engine_adds = 1
    world.replaced(settings(1))
    world.engine_adds = 0
    assert world.state() == {("k",): 3}
    assert compared(world, world.start(settings(2))) == (A, B)
    require_right(world, settings(2))


def test_g23_rows_by_other_settings_are_compared_whatever_their_digests_say() -> None:
    world = world_of_two()
    assert compared(world, world.start(settings(1, folds={"a": "x"}))) == (A,)
    assert compared(world, world.start(settings(2, folds={"a": "x"}))) == (A,), "read by x, sealed without"
    candidate = world.start(settings(3, folds={"a": "x", "b": "y"}), since=9)
    assert compared(world, candidate) == (A, B), "those to come count too"


def test_g23_settings_that_vary_between_the_transactions_of_one_generation_are_compared() -> None:
    """The file was changed under the same number, and back."""
    world = world_of_two()
    for rules in ({"folds": {"a": "x"}}, {}):
        world.feed(rec("k", 4))
        world.run(pipeline=world.made(world.warehouse, world.files, settings(0, **rules), None))
    assert compared(world, world.start(settings(1))) == (A,)


def changed_under_its_number(world: GenerationWorld, configuration: Configuration) -> None:
    """The file in charge is changed, and a transaction of the other shard is sealed with it."""
    world.feed(rec("l", 9, table="b"))
    world.run(pipeline=world.made(world.warehouse, world.files, configuration, None))


def test_g23_settings_in_charge_count_before_a_shard_has_rows_by_them() -> None:
    world = world_of_two()
    changed_under_its_number(world, settings(0, folds={"a": "x"}))
    assert compared(world, world.start(settings(1))) == (A,)


def test_g23_settings_that_the_candidate_has_read_a_transaction_by_count() -> None:
    """It reads the transactions out of its range by those of the generation before."""
    world = world_of_two(folds={"a": "x"})
    world.replaced(settings(1, folds={"a": "y"}))
    changed_under_its_number(world, settings(1, folds={"a": "x"}))
    assert compared(world, world.start(settings(2, folds={"a": "x"}), since=9)) == (A,)


def test_g23_a_shard_that_may_be_equal_only_by_its_values_is_compared_if_it_has_rows() -> None:
    world = world_of_two()
    pair, corrector = world.pair(world.start(settings(1)))
    with patch.object(corrector, "settings", lambda *_: None):
        promote(pair, world.attempt(), corrector, (*SHARDS, ShardId("empty")))
    assert corrector.compared == SHARDS


def test_g23_after_a_lost_transaction_every_shard_is_compared() -> None:
    """A compaction may have merged rows of it into a file, so a log has rows that no seal names."""
    world = world_of_two()
    world.commit(rec("k", 9))
    world.warehouse.history.restore(world.warehouse.history.version - 2)
    recover(world.opened(), world.attempt())
    world.run()
    assert [one.decision for one in world.seals[3:]] == [Decision.LOST, Decision.COMMITTED]
    assert compared(world, world.start(settings(1))) == SHARDS
    require_right(world, settings(1))


def test_g23_what_is_not_visible_is_not_taken_for_equal() -> None:
    world = world_of_two()
    pair, corrector = world.pair(world.start(settings(1)))
    live = pair.live.control.seals
    world.follow(pair.candidate)
    read = live.read
    with (
        patch.object(live, "read", lambda lower, upper: read(lower, min(upper, 3))),
        pytest.raises(Determinate, match="not all visible yet"),
    ):
        promotion.unchanged(pair, corrector, SHARDS, upper=world.seals[-1].txn + 1)  # type: ignore[arg-type]


def test_g23_a_promotion_that_skips_what_differs_would_be_wrong() -> None:
    world = world_of_two()
    rules = settings(1, times=10, of=["b"])
    with patch.object(promotion, "unchanged", lambda *_, **__: set(SHARDS)):
        assert compared(world, world.start(rules)) == ()
    with pytest.raises(AssertionError):
        require_right(world, rules)
