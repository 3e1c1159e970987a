"""Scenario W3 for Kafka: a consumer group that is ahead of the bindings, on a cluster that is given."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.sources.test_kafka_offers import GivenCluster, bound, ranges, source_on
from tidemark.core.errors import InvariantViolation

CLUSTER = {"t-0": (0, 9), "t-1": (0, 3)}


def offered(group: dict[str, int], last: Any, **given: Any) -> list[dict[str, tuple[int, int]]]:
    return [ranges(step) for step in source_on(GivenCluster(CLUSTER, group=group, **given)).offer(last)]


def test_w3_a_group_that_is_ahead_of_the_bindings_is_named_and_nothing_is_offered() -> None:
    named = "consumer group 'g' is at offset 7 of t-0, but only 5 is bound"
    with pytest.raises(InvariantViolation, match=named):
        offered({"t-0": 7}, bound({"t-0": 5, "t-1": 3}))


def test_w3_after_a_recovery_the_offsets_are_bound_again() -> None:
    last = replace(bound({"t-0": 5, "t-1": 3}), lost=True, epoch=1)
    assert offered({"t-0": 7}, last) == [{"t-0": (5, 9)}]


def test_s1_a_group_that_others_have_moved_out_of_the_topic_is_no_witness() -> None:
    last = bound({"t-0": 5, "t-1": 3})
    for group in ({"t-0": 1_000}, {"t-0": 5}, {"t-0": 1}, {"other-0": 8}, {}):
        assert offered(group, last) == [{"t-0": (5, 9)}]


def test_a_cluster_that_does_not_tell_its_groups_is_not_in_the_way() -> None:
    assert offered({}, bound({"t-0": 5, "t-1": 3}), is_closed=True) == [{"t-0": (5, 9)}]
