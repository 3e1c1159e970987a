"""W1: a consumer's lease that is ahead of the history stops a run before it binds."""

from __future__ import annotations

import pytest

from tests.support.memory.world import A, World, rec
from tidemark.core.history import HistoryLost
from tidemark.core.ids import Txn
from tidemark.core.lease import HolderToken, Lease
from tidemark.core.ledger import UPPER, Put


def confirmed(world: World, txn: int) -> None:
    """Put a consumer's lease on record that has confirmed a transaction, with its link."""
    control = world.process().control
    control.seals.head()
    (seal,) = control.seals.read(Txn(txn), Txn(txn + 1))
    head = control.leases.head()
    lease = Lease(f"sink/{A}", HolderToken("sink"), Txn(txn + 1), head.upper, 1.0, link=seal.link)
    control.leases.commit(head, Put({UPPER: head.upper + 1}, (lease,), None))


def test_regression_w1_numbers_that_a_consumer_has_had_are_not_bound_again() -> None:
    world = World()
    world.commit(rec("k", 1))
    confirmed(world, 1)
    for ledger in (world.warehouse.history, world.warehouse.log(A), world.warehouse.checkpoints):
        ledger.restore(0)
    world.feed(rec("k", 2))
    with pytest.raises(HistoryLost, match=f"consumer sink/{A}"):
        world.run()
    assert world.warehouse.history.version == 0


def test_a_lease_that_the_history_knows_holds_nobody_up() -> None:
    world = World()
    world.commit(rec("k", 1))
    confirmed(world, 1)
    world.commit(rec("k", 2))
    assert world.sealed_upper == 3
