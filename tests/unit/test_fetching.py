"""The fetch stage with real threads: R2 and R6. Invariants 11 and 12."""

from __future__ import annotations

import threading

import pytest

from tests.support.memory.control import MemoryControl
from tests.support.memory.ledger import Fault
from tests.support.memory.world import A, Script, World, rec
from tidemark.core.errors import Determinate
from tidemark.core.ids import Txn
from tidemark.core.reading import ReadAccount
from tidemark.core.seal import Part
from tidemark.pipeline.listing import fetch_all, readable_upper

WAIT_SECONDS_MAX = 600


def account_of(*parts_per_txn: int) -> ReadAccount:
    account = ReadAccount(ahead_parts_max=100)
    for txn, count in enumerate(parts_per_txn, start=1):
        account.listed(Txn(txn), [Part(f"{txn}/{number}", 1, 1) for number in range(count)])
    return account


def test_r2_fetches_that_end_in_any_order_are_counted_for_their_own_txn() -> None:
    account = account_of(2, 1, 1)
    later = threading.Barrier(2)  # The first part of 1 ends only after everything else has.
    ended: list[str] = []

    def look(txn: Txn, part: Part) -> str:
        if part.path == "1/0":
            later.wait(WAIT_SECONDS_MAX)
        ended.append(part.path)
        if len(ended) == 3:
            assert account.frontier == 1
            later.wait(WAIT_SECONDS_MAX)
        return ""

    fetch_all(account, look, workers=2)
    assert (ended[-1], account.frontier) == ("1/0", 4)


def test_r1_a_bad_part_stops_the_frontier_and_all_others_are_looked_at() -> None:
    account = account_of(1, 2, 1)
    fetch_all(account, lambda txn, part: "gone" if part.path == "2/1" else "", workers=3)
    assert account.frontier == 2
    assert [str(one) for one in account.missing_parts] == ["part 2/1 of txn 2 (1 bytes) is missing: gone"]
    ready = account.deliverable()
    assert ready is not None
    assert ready.upper == 2


def test_r3_an_error_is_raised_only_when_no_fetch_is_in_flight_any_more() -> None:
    account = account_of(3, 3)
    others = threading.Barrier(2)
    begun, ended = list[str](), list[str]()

    def look(txn: Txn, part: Part) -> str:
        begun.append(part.path)
        if part.path == "1/0":
            others.wait(WAIT_SECONDS_MAX)
            ended.append(part.path)
            raise Determinate("the store does not answer")
        if part.path == "1/1":
            others.wait(WAIT_SECONDS_MAX)
        ended.append(part.path)
        return ""

    with pytest.raises(Determinate, match="does not answer"):
        fetch_all(account, look, workers=2)
    assert sorted(ended) == sorted(begun)
    assert (account.frontier, account.missing_parts) == (1, ())


def test_r6_a_stop_hands_out_no_more_and_moves_nothing() -> None:
    account = account_of(1, 1)
    stop = threading.Event()
    stop.set()
    fetch_all(account, lambda txn, part: pytest.fail("it was told to stop"), workers=2, stop=stop)
    assert account.deliverable() is None


@pytest.mark.parametrize("calls", [("log.head",), ("seals.head",), ("log.head", "seals.head")])
def test_regression_a_reader_that_sees_an_old_version_first_does_not_take_it_for_a_loss(
    calls: tuple[str, ...],
) -> None:
    world = World()
    world.commit(rec("k", 1))
    script = Script()
    for call in calls:
        script.fault(call, Fault.STALE)
    assert readable_upper(MemoryControl(world.warehouse, script), A) == 2
