"""What the tasks do with a deployment: ranges that someone typed, and what counts as proven."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.memory.world import World, rec
from tidemark.app import reports, tasks
from tidemark.app.job import Order
from tidemark.core.errors import InvalidUsage

BILLIONS = 10**12


def deployed(world: World) -> Any:
    """A process's deployment, as far as the control plane goes."""
    pipeline = world.process()
    return SimpleNamespace(
        pipeline=pipeline,
        control=pipeline.control,
        config=SimpleNamespace(name="shop"),
        up_to_date=lambda work: work(),
        proposal="",
    )


def two_transactions() -> World:
    world = World()
    for value in (1, 2):
        world.commit(rec("k", value))
    return world


@pytest.mark.parametrize(
    ("txn_from", "txn_to", "fact"),
    [
        (1, BILLIONS, "transaction 3 is not bound: there are transactions 1 to 2"),
        (3, None, "transaction 3 is not bound: there are transactions 1 to 2"),
        (BILLIONS, None, f"transaction {BILLIONS} is not bound"),
        (2, 1, "transactions 2 to 1 are not a range"),
    ],
)
def test_a_range_that_is_not_all_bound_is_refused_before_anything_is_read(
    txn_from: int, txn_to: int | None, fact: str
) -> None:
    world = two_transactions()
    deployment = deployed(world)
    with pytest.raises(InvalidUsage, match=fact):
        tasks.replay_preview(deployment, txn_from=txn_from, txn_to=txn_to)
    for mode in ("verify", "repair"):
        with pytest.raises(InvalidUsage, match=fact):
            tasks.replay_range(deployment, world.attempt(), txn_from=txn_from, txn_to=txn_to, mode=mode)
    with pytest.raises(InvalidUsage, match=fact):
        reports.replay_report(deployment, world.attempt(), txn_from=txn_from, txn_to=txn_to or 0)


def test_nothing_bound_is_nothing_to_replay() -> None:
    with pytest.raises(InvalidUsage, match="nothing is bound yet"):
        tasks.replay_preview(deployed(World()), txn_from=1, txn_to=None)


@pytest.mark.parametrize("mode", ["verify", "repair"])
def test_a_replay_finishes_an_open_last_transaction_in_either_mode(mode: str) -> None:
    world = two_transactions()
    world.feed(rec("k", 3))
    tasks.reclock(deployed(world), world.attempt())
    assert (world.sealed_upper, len(world.bindings)) == (3, 3)
    findings, _ = tasks.replay_range(deployed(world), world.attempt(), txn_from=1, txn_to=None, mode=mode)
    assert [(one.txn, one.passed) for one in findings] == [(1, True), (2, True), (3, True)]
    assert world.sealed_upper == 4


def test_a_run_that_the_scheduler_has_forgotten_is_recognised_by_every_try_of_its_reclock() -> None:
    world = World()
    world.feed(rec("k", 1))
    run_id, dates = "scheduled__2026-01-01", ("monday", "monday", "friday", "friday")
    orders = [Order("p.yaml", run_id, f"w{number}", begun=begun) for number, begun in enumerate(dates)]
    told = [tasks.reclock(deployed(world), order.attempt) for order in orders]
    assert [one["recognised"] for one in told] == [False, False, True, True]
    assert [one["owned"]["ranges"] for one in told] == [[[1, 1]]] * 4
