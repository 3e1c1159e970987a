"""Frontiers. Checks Invariant 1: what is bound never moves back."""

from __future__ import annotations

import pytest

from tidemark.core.errors import InvalidUsage
from tidemark.core.ids import Frontier, FrontierRegressed, checked_successor


def test_a_partition_that_a_frontier_does_not_know_stands_at_zero() -> None:
    frontier = Frontier.of({"p0": 5})
    assert frontier["p0"] == 5
    assert frontier["p1"] == 0


def test_frontiers_that_are_each_ahead_somewhere_include_neither_the_other() -> None:
    left, right = Frontier.of({"p0": 2, "p1": 1}), Frontier.of({"p0": 1, "p1": 2})
    assert not left <= right
    assert not right <= left
    assert not left < Frontier(left.offsets)


def test_a_frontier_is_the_same_whatever_order_it_was_given_in() -> None:
    assert Frontier.of({"b": 1, "a": 2}) == Frontier.of({"a": 2, "b": 1})
    assert Frontier.of({"b": 1, "a": 2}).as_dict() == {"a": 2, "b": 1}


@pytest.mark.parametrize("offsets", [(("b", 1), ("a", 1)), (("a", 1), ("a", 2)), (("a", -1),)])
def test_a_frontier_is_valid_from_birth(offsets: tuple[tuple[str, int], ...]) -> None:
    with pytest.raises(InvalidUsage, match="frontier"):
        Frontier(offsets)


def test_s5_a_partition_that_went_back_is_a_permanent_error() -> None:
    with pytest.raises(
        FrontierRegressed, match=r"'p0' is bound up to 5, but in the source it ends at 3"
    ) as error:
        checked_successor(Frontier.of({"p0": 5}), Frontier.of({"p0": 3, "p1": 9}))
    assert (error.value.partition, error.value.bound, error.value.offered) == ("p0", 5, 3)
    assert isinstance(error.value, InvalidUsage), "a retry won't help"


def test_s5_a_partition_that_is_gone_is_a_permanent_error() -> None:
    with pytest.raises(FrontierRegressed, match="is gone"):
        checked_successor(Frontier.of({"p0": 5, "p1": 2}), Frontier.of({"p0": 9}))


def test_s5_a_new_partition_continues_what_is_bound() -> None:
    offered = Frontier.of({"p0": 5, "p1": 1})
    assert checked_successor(Frontier.of({"p0": 5}), offered) is offered
