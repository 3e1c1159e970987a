"""A summary of the leases says what all records before it say, and saves reading them."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock, patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.memory.control import MemoryControl, MemoryWarehouse
from tidemark.core import lease as rules
from tidemark.core.errors import InvalidUsage, TidemarkError
from tidemark.core.ids import Txn
from tidemark.core.lease import HolderToken, Lease, LeaseSummary, Tenure, follow
from tidemark.pipeline.leases import Leases

NAMES = ("billing/orders", "audit/orders", "look", "glance")
STEPS = st.lists(
    st.tuples(st.sampled_from(["take", "renew", "release", "forget", "expire"]), st.sampled_from(NAMES)),
    max_size=40,
)


class Reader:
    """Processes that hold leases of one warehouse; some die, and others take over."""

    def __init__(self) -> None:
        self.warehouse, self.now, self.held = MemoryWarehouse(), 0.0, dict[str, Tenure]()
        self.watcher = self.process()

    def process(self) -> Leases:
        return Leases(MemoryControl(self.warehouse).leases, clock=lambda: self.now)

    def step(self, action: str, name: str) -> None:
        leases = self.process()
        match action:
            case "take":
                found = leases.take(name, HolderToken(f"h{self.now}"), start=Txn(1), ttl_seconds=60.0)
                if isinstance(found, Tenure):
                    self.held[name] = found
            case "renew" if name in self.held:
                further = Txn(self.held[name].lease.txn + 1)
                self.held[name] = leases.renew(self.held[name], txn=further)
            case "release" if name in self.held:
                leases.release(self.held.pop(name).lease)
            case "forget":
                leases.forget(name)
            case "expire":
                for _ in range(5):
                    self.now += 30.0
                    self.watcher.expire()
        self.now += 1.0


def as_recorded(warehouse: MemoryWarehouse) -> tuple[dict[str, Lease], dict[str, Txn], int]:
    """The leases that are needed, by every record from the first one on; and how many summaries there are."""
    last: dict[str, Lease] = {}
    began: dict[str, Txn] = {}
    ledger = MemoryControl(warehouse).leases
    records = ledger.read(1, ledger.head().upper)
    for record in records:
        if isinstance(record, Lease):
            follow(record, last=last, began=began)
    needed = {name: one for name, one in last.items() if one.is_kept}
    return needed, {name: began[name] for name in needed}, sum(isinstance(r, LeaseSummary) for r in records)


@given(STEPS)
def test_whoever_begins_at_a_summary_knows_what_all_records_say(steps: list[tuple[str, str]]) -> None:
    world = Reader()
    with patch.object(rules, "SUMMARY_RECORDS_MIN", 3):
        for action, name in steps:
            try:
                world.step(action, name)
            except TidemarkError:
                world.held.pop(name, None)
            needed, began, _ = as_recorded(world.warehouse)
            for leases in (world.process(), world.watcher):
                found = {one.name: one for one in leases.latest() if one.is_kept}
                assert found == needed
                assert {name: leases.began_at(name) for name in found} == began


def test_a_consumers_start_reads_the_same_however_long_others_have_read() -> None:
    world = Reader()
    read = []
    world.step("take", NAMES[0])
    for _ in range(3):
        for _ in range(3 * rules.SUMMARY_RECORDS_MIN):
            world.step("renew", NAMES[0])
        leases = world.process()
        ledger: Any = leases._ledger
        with patch.object(ledger, "read", Mock(wraps=ledger.read)) as asked:
            (lease,) = leases.latest()
        assert lease == world.held[NAMES[0]].lease
        ((lower, upper), _) = asked.call_args
        read.append(upper - lower)
    assert max(read) <= rules.SUMMARY_RECORDS_MIN + 1
    assert as_recorded(world.warehouse)[2] >= 6


def test_a_summary_that_leaves_a_lease_out_of_its_positions_is_none() -> None:
    lease = Lease("a/b", HolderToken("h"), Txn(1), 1, 60.0)
    with pytest.raises(InvalidUsage, match="has others than it began"):
        LeaseSummary(2, (lease,), {})
