"""W1: a consumer's lease that is ahead of the history stops a run before it binds."""

from __future__ import annotations

from collections.abc import Sequence
from unittest.mock import patch

import pytest

from tests.support.memory.world import A, World, rec
from tidemark.core.history import HistoryLost
from tidemark.core.ids import Txn
from tidemark.core.lease import SUMMARY_RECORDS_MIN, HolderToken, Lease, Tenure
from tidemark.core.ledger import UPPER, Put
from tidemark.core.seal import Seal
from tidemark.pipeline.history import LEASES_LOOKED_AT, require_leases
from tidemark.pipeline.leases import Leases


def confirmed(world: World, txn: int, name: str = "sink") -> None:
    """Put a consumer's lease on record that has confirmed a transaction, with its link."""
    control = world.process().control
    control.seals.head()
    (seal,) = control.seals.read(Txn(txn), Txn(txn + 1))
    head = control.leases.head()
    lease = Lease(f"{name}/{A}", HolderToken("sink"), Txn(txn + 1), head.upper, 1.0, link=seal.link)
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


def test_regression_w1_what_an_idle_consumer_has_had_counts_however_busy_another_is() -> None:
    world = World()
    world.commit(rec("k", 1))
    version = world.warehouse.history.version
    world.commit(rec("k", 2))
    confirmed(world, 2, "idle")
    busy = Leases(world.process().control.leases)
    tenure = busy.take(f"busy/{A}", HolderToken("busy"), start=Txn(1))
    assert isinstance(tenure, Tenure)
    for _ in range(2 * SUMMARY_RECORDS_MIN):
        tenure = busy.renew(tenure)
    world.warehouse.history.restore(version)
    for ledger in (world.warehouse.log(A), world.warehouse.checkpoints):
        ledger.restore(ledger.version - 1)
    world.feed(rec("k", 3))
    with pytest.raises(HistoryLost, match=f"consumer idle/{A} has transaction 2"):
        world.run()
    assert world.warehouse.history.version == version


def test_consumers_that_the_history_is_ahead_of_are_not_all_looked_up() -> None:
    world = World()
    for number in range(4):
        world.commit(rec("k", number))
    for number in range(3 * LEASES_LOOKED_AT):
        confirmed(world, 1 + number % 4, f"c{number}")
    control = world.process().control
    reads: list[int] = []
    read = control.seals.read

    def counted(lower: int, upper: int) -> Sequence[Seal]:
        reads.append(lower)
        return read(lower, upper)

    with patch.object(control.seals, "read", counted):
        require_leases(control, control.seals.head().upper)
    assert len(reads) == LEASES_LOOKED_AT


def test_a_lease_that_the_history_knows_holds_nobody_up() -> None:
    world = World()
    world.commit(rec("k", 1))
    confirmed(world, 1)
    world.commit(rec("k", 2))
    assert world.sealed_upper == 3
