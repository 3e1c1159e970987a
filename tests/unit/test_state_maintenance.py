"""Tending a state: what holds a VACUUM back, and who gives way to a publisher."""

from __future__ import annotations

import pytest

from tests.support.memory.control import MemoryControl, MemoryWarehouse
from tests.support.memory.state import MemoryStatePlane
from tests.support.memory.versions import MemoryStates
from tidemark.core.checksum import Digest
from tidemark.core.ids import ShardId, Txn, WriterToken
from tidemark.core.lease import HolderToken, Lease, LeaseState
from tidemark.core.ledger import UPPER, Put
from tidemark.core.publish import BeingPublished, Published, StateCommit, StateStatus
from tidemark.pipeline.maintain import maintain_state, snapshot_held

A = ShardId("a")
RECORDS = [
    Published(number, number, StateCommit(Txn(txn), WriterToken(f"w{txn}"), Digest()))
    for number, txn in ((1, 2), (2, 5))
]


def lease(txn: int, state: LeaseState = LeaseState.LIVE) -> Lease:
    return Lease("reader", HolderToken("h"), Txn(txn), 1, 60.0, state)


@pytest.mark.parametrize(
    ("held", "kept_ms", "breaks"),
    [
        (lease(3), 500, True),  # Its snapshot, as of 2, was superseded longer ago than files are kept.
        (lease(3), 5_000, False),
        (lease(6), 500, False),  # Its snapshot is the newest publish.
        (lease(1), 500, True),  # It may read the log from the beginning, or the first snapshot.
        (lease(1), 5_000, False),
        (lease(3, LeaseState.RELEASED), 500, False),
    ],
)
def test_r4_a_lease_on_an_old_snapshot_holds_a_vacuum_back(held: Lease, kept_ms: int, breaks: bool) -> None:
    ledger = MemoryControl(MemoryWarehouse()).publishes(A)
    ledger.commit(ledger.head(), Put({UPPER: 3}, RECORDS, None))
    ledger.head()
    found = snapshot_held(ledger, [held], superseded_ms={2: 1_000}.get, now_ms=2_000, kept_ms=kept_ms)
    assert (found is held) is breaks
    assert (found is None) is not breaks


class Keeper:
    """Writes down what it was asked for."""

    def __init__(self, plane: MemoryStatePlane) -> None:
        self.plane = plane
        self.asked: list[str] = []

    def state_status(self, shard: ShardId, since: Published | None) -> StateStatus:
        return self.plane.state_status(shard, since)

    def merge(self, shard: ShardId, *, tombstones: int) -> None:
        self.asked.append("merge")

    def purge(self, shard: ShardId) -> None:
        self.asked.append("purge")

    def vacuum(self, shard: ShardId, *, tombstones: int) -> None:
        self.asked.append("vacuum")


class Overtaken(Keeper):
    """Publishes come in again and again while files are merged."""

    def merge(self, shard: ShardId, *, tombstones: int) -> None:
        raise BeingPublished("it was published meanwhile")


def test_a_state_that_is_published_meanwhile_is_left_for_the_next_time() -> None:
    warehouse = MemoryWarehouse()
    control, plane = MemoryControl(warehouse), MemoryStatePlane(warehouse, {}, MemoryStates())
    keeper, overtaken = Keeper(plane), Overtaken(plane)
    with pytest.raises(BeingPublished):
        maintain_state(control, overtaken, A, merge=True, purge=True, vacuum=True)
    assert overtaken.asked == []
    maintain_state(control, keeper, A, merge=True, purge=False, vacuum=True)
    assert keeper.asked == ["merge", "vacuum"]
