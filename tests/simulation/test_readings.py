"""Consumers have each transaction once, in order and whole, whatever maintenance, deaths and clocks do, and
maintenance removes nothing that anyone needs (Invariants 11 and 12)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import patch

import pytest

from tests.simulation.readings import check
from tidemark.core import lease, maintenance
from tidemark.core.lease import Floor, Lease

SEEDS = 300
MUTANT_SEEDS_MAX = 2_000


def test_each_consumer_has_everything_once_and_whole_whatever_maintenance_does() -> None:
    found = [check(seed) for seed in range(SEEDS)]
    assert sum(one.read_merged > 0 for one in found) > SEEDS / 10, "merged files are to be read"
    assert sum(one.truncated > 1 for one in found) > SEEDS / 10, "truncation is to be seen"
    assert sum(one.repeated > 0 for one in found) > SEEDS / 10, "batches are to be given again"


def test_a_seed_replays_exactly() -> None:
    for seed in range(20):
        first, second = check(seed), check(seed)
        assert first.scheduler.steps == second.scheduler.steps
        assert first.sink == second.sink


def floor_without_leases(leases: Sequence[Lease], **known: Any) -> Floor:
    return lease.floor((), **known)


def held_back_by_no_lease(*args: Any, **known: Any) -> Any:
    return maintenance.held_back(*args, **{**known, "held_from": None})


def without_a_fence(_: Lease) -> None:
    return None


MISTAKES: dict[str, tuple[str, Callable[..., Any]]] = {
    "truncation asks no lease": ("tidemark.pipeline.leases.floor", floor_without_leases),
    "files are deleted under a lease": ("tidemark.pipeline.maintain.held_back", held_back_by_no_lease),
    "a batch may be longer the next time": (
        "tidemark.pipeline.consume.batch_fence",
        without_a_fence,
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_the_simulation_of_readings_notices_a_mistake(name: str) -> None:
    with patch(*MISTAKES[name]), pytest.raises(AssertionError, match="seed"):
        deque((check(seed) for seed in range(MUTANT_SEEDS_MAX)), maxlen=0)
