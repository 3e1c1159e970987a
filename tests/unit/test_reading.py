"""The shard reader's account: R1, R2, R3, R5 and R6. Checks Invariant 11 and Invariant 12."""

from __future__ import annotations

import pytest

from tidemark.core.errors import InvalidUsage, InvariantViolation
from tidemark.core.ids import Txn
from tidemark.core.log import NotYet, ReadPlan, plan_read
from tidemark.core.reading import Deliverable, Fetch, MissingPart, ReadAccount, ReadTxn
from tidemark.core.seal import Part


def part(txn: int, name: str = "x") -> Part:
    return Part(path=f"log/{txn}-{name}.parquet", rows=1, bytes=1000 + txn)


def account_of(*txns: int, ahead_parts_max: int = 100) -> ReadAccount:
    account = ReadAccount(ahead_parts_max=ahead_parts_max)
    for txn in txns:
        account.listed(Txn(txn), [part(txn)])
    return account


def take(account: ReadAccount, worker: str = "w1") -> Fetch:
    fetch = account.next_fetch(worker)
    assert fetch is not None
    return fetch


def take_all(account: ReadAccount, worker: str = "w1") -> dict[int, Fetch]:
    fetches = {}
    while (fetch := account.next_fetch(worker)) is not None:
        fetches[int(fetch.txn)] = fetch
    return fetches


def test_r1_a_missing_part_freezes_the_frontier_at_its_own_txn() -> None:
    """Invariant 11: 1 is delivered, 3 arrives well and doesn't move it, the report names the file."""
    account = account_of(1, 2, 3)
    fetches = take_all(account)
    assert account.missing(fetches[2], "no such file")
    assert account.fetched(fetches[3])
    assert account.frontier == 1
    assert account.fetched(fetches[1])
    assert account.frontier == 2
    assert account.deliverable() == Deliverable(Txn(1), Txn(2), (ReadTxn(Txn(1), (part(1),)),))
    assert account.frozen == MissingPart(Txn(2), part(2), "no such file")
    assert str(account.frozen) == "part log/2-x.parquet of txn 2 (1002 bytes) is missing: no such file"
    account.listed(Txn(4), [part(4)])
    account.fetched(take(account))
    assert account.frontier == 2
    with pytest.raises(InvalidUsage, match=r"upper 3 is outside what can be delivered, 1 to 2"):
        account.delivered(Txn(3))


def test_r1_the_lowest_of_several_missing_parts_is_reported() -> None:
    account = account_of(1, 2, 3)
    fetches = take_all(account)
    account.missing(fetches[3], "gone")
    account.missing(fetches[2], "short")
    account.fetched(fetches[1])
    assert [missing.txn for missing in account.missing_parts] == [2, 3]
    assert account.frozen == MissingPart(Txn(2), part(2), "short")


def test_r1_a_skipped_txn_is_delivered_without_parts_and_with_its_reason() -> None:
    account = ReadAccount(ahead_parts_max=10)
    account.listed(Txn(1), [part(1, "a"), part(1, "b"), part(1, "c")])
    account.listed(Txn(2), [part(2)])
    here, gone, _flying, later = (take(account) for _ in range(4))
    account.fetched(here)
    account.missing(gone, "gone")
    account.fetched(later)
    account.skipped(Txn(1), "lost disk, approved by ops")
    assert account.frozen is None
    txns = (ReadTxn(Txn(1), (), "lost disk, approved by ops"), ReadTxn(Txn(2), (part(2),)))
    assert account.deliverable() == Deliverable(Txn(1), Txn(3), txns)


def test_r1_only_a_txn_with_a_missing_part_is_skipped_and_only_with_a_reason() -> None:
    account = account_of(1, 2)
    with pytest.raises(InvalidUsage, match="can't be skipped"):
        account.skipped(Txn(1), "because")
    account.missing(take(account), "gone")
    with pytest.raises(InvalidUsage, match="can't be skipped"):
        account.skipped(Txn(1), "  ")
    with pytest.raises(InvalidUsage, match="can't be skipped"):
        account.skipped(Txn(2), "because")


def test_r1_the_pending_parts_of_a_skipped_txn_are_not_handed_out() -> None:
    account = ReadAccount(ahead_parts_max=10)
    account.listed(Txn(1), [part(1, "a"), part(1, "b")])
    account.missing(take(account), "gone")
    account.skipped(Txn(1), "approved")
    assert account.next_fetch("w1") is None
    account.listed(Txn(2), [part(2)])
    assert take(account).txn == 2


def test_r2_fetches_finished_in_any_order_are_counted_per_txn() -> None:
    account = ReadAccount(ahead_parts_max=10)
    account.listed(Txn(1), [part(1, "a"), part(1, "b")])
    account.listed(Txn(2), [part(2)])
    first, second, third = take(account), take(account, "w2"), take(account)
    account.fetched(third)
    account.fetched(second)
    assert account.frontier == 1
    assert account.deliverable() is None
    account.fetched(first)
    assert account.frontier == 3


def test_r2_empty_and_untouched_txns_are_stepped_over() -> None:
    account = ReadAccount(start=Txn(3), ahead_parts_max=10)
    assert account.deliverable() is None
    account.listed(Txn(5))
    assert account.deliverable() == Deliverable(Txn(3), Txn(6), (ReadTxn(Txn(5), ()),))
    account.listed(Txn(9), [part(9)])
    assert account.frontier == 9
    account.delivered(Txn(8))
    assert account.deliverable() == Deliverable(Txn(8), Txn(9), ())


def test_a_txn_is_listed_once_and_in_order() -> None:
    account = account_of(4)
    for txn in (3, 4):
        with pytest.raises(InvalidUsage, match=f"txn {txn} comes after 4"):
            account.listed(Txn(txn), [part(txn, "y")])


def test_a_part_belongs_to_one_txn_once() -> None:
    account = account_of(1)
    with pytest.raises(InvariantViolation, match="lists a part twice, or one of another txn"):
        account.listed(Txn(2), [part(1)])
    with pytest.raises(InvariantViolation, match="lists a part twice, or one of another txn"):
        account.listed(Txn(2), [part(2), part(2)])
    assert account.frontier == 1


def test_delivered_txns_are_not_delivered_again_and_the_upper_never_goes_back() -> None:
    account = account_of(1, 2)
    for fetch in take_all(account).values():
        account.fetched(fetch)
    account.delivered(Txn(2))
    assert account.deliverable() == Deliverable(Txn(2), Txn(3), (ReadTxn(Txn(2), (part(2),)),))
    account.delivered(Txn(3))
    account.delivered(Txn(3))
    assert account.deliverable() is None
    with pytest.raises(InvalidUsage, match=r"upper 2 is outside what can be delivered"):
        account.delivered(Txn(2))


def test_a_reader_looks_ahead_no_further_than_its_limit() -> None:
    account = account_of(1, 2, 3, 4, ahead_parts_max=2)
    fetches = take_all(account)
    assert list(fetches) == [1, 2]
    account.fetched(fetches[2])
    assert account.next_fetch("w1") is None
    account.fetched(fetches[1])
    # 3 is the frontier's own now, and exempt; 4 waits until something is delivered.
    assert list(take_all(account)) == [3]
    account.delivered(Txn(3))
    assert list(take_all(account)) == [4]


def test_the_limit_never_holds_back_the_frontiers_own_txn() -> None:
    account = ReadAccount(ahead_parts_max=1)
    account.listed(Txn(1), [part(1, name) for name in "abc"])
    for _ in range(3):
        account.fetched(take(account))
    assert account.frontier == 2


def test_the_limit_counts_a_skipped_txns_parts_no_more() -> None:
    account = ReadAccount(ahead_parts_max=2)
    account.listed(Txn(1), [part(1, "a"), part(1, "b")])
    for txn in (2, 3, 4):
        account.listed(Txn(txn), [part(txn)])
    account.fetched(take(account))
    account.missing(take(account), "gone")
    account.skipped(Txn(1), "approved")
    account.delivered(Txn(2))
    assert list(take_all(account)) == [2, 3]


@pytest.mark.parametrize(("start", "ahead"), [(0, 1), (1, 0)])
def test_an_account_needs_a_start_and_a_limit(start: int, ahead: int) -> None:
    with pytest.raises(InvalidUsage, match="must be 1 or more"):
        ReadAccount(start=Txn(start), ahead_parts_max=ahead)


@pytest.mark.parametrize("ending", ["fetched", "missing", "abandoned"])
def test_a_fetch_of_a_txn_that_was_skipped_is_in_flight_until_it_ends(ending: str) -> None:
    """Invariant 12: a skipped txn is delivered while a fetch of it is still under way."""
    account = ReadAccount(ahead_parts_max=10)
    account.listed(Txn(1), [part(1, "a"), part(1, "b")])
    gone, flying = take(account), take(account)
    account.missing(gone, "gone")
    account.skipped(Txn(1), "approved")
    account.delivered(Txn(2))
    assert account.delivered_upper == 2
    ends = {
        "fetched": lambda: account.fetched(flying),
        "missing": lambda: account.missing(flying, "gone too"),
        "abandoned": lambda: account.abandoned(flying),
    }
    assert ends[ending]()
    assert not ends[ending]()  # It has ended.
    assert account.frozen is None
    assert account.next_fetch("w1") is None


def test_r3_a_reader_shut_down_in_the_middle_hands_out_nothing_and_closes_after_its_fetches() -> None:
    account = ReadAccount(ahead_parts_max=10)
    account.listed(Txn(1), [part(1)])
    account.listed(Txn(2), [part(2, "a"), part(2, "b"), part(2, "c")])
    fetches = [take(account) for _ in range(3)]
    account.drain()
    assert account.next_fetch("w1") is None
    assert account.fetched(fetches[0])
    assert account.fetched(fetches[1])
    assert account.abandoned(fetches[2])
    # 2 is half fetched, so it isn't delivered; the next reader begins right there.
    assert account.deliverable() == Deliverable(Txn(1), Txn(2), (ReadTxn(Txn(1), (part(1),)),))
    account.delivered(Txn(2))
    assert account.delivered_upper == 2


def test_r6_what_a_worker_brings_after_it_was_given_up_is_dropped() -> None:
    account = account_of(1)
    dead = take(account, "w1")
    assert account.abandoned(dead)
    again = take(account, "w2")
    for late in (account.fetched(dead), account.missing(dead, "gone"), account.abandoned(dead)):
        assert late is False
    assert (account.frontier, account.frozen) == (1, None)
    assert account.next_fetch("w3") is None
    assert account.fetched(again)
    assert not account.fetched(again)
    assert account.frontier == 2


def test_r5_a_snapshot_covers_up_to_as_of_and_listening_starts_after_it() -> None:
    plan = plan_read(as_of=Txn(4), since=Txn(3), upper=Txn(5))
    assert plan == ReadPlan(Txn(4))
    assert [plan.covers(Txn(txn)) for txn in (1, 4, 5)] == [True, True, False]
    assert plan.listen_from == 5


def test_r5_as_of_0_is_an_empty_snapshot() -> None:
    plan = plan_read(as_of=Txn(0), since=Txn(1), upper=Txn(1))
    assert isinstance(plan, ReadPlan)
    assert (plan.listen_from, plan.covers(Txn(1))) == (1, False)


def test_r5_a_snapshot_of_what_has_not_happened_waits() -> None:
    assert plan_read(as_of=Txn(5), since=Txn(3), upper=Txn(5)) == NotYet(Txn(5), Txn(5))


def test_r5_a_snapshot_below_since_is_refused() -> None:
    assert plan_read(as_of=Txn(2), since=Txn(3), upper=Txn(5)) == ReadPlan(Txn(2))
    with pytest.raises(InvalidUsage, match="kept from 3 on: read as of 2 or later"):
        plan_read(as_of=Txn(1), since=Txn(3), upper=Txn(5))


@pytest.mark.parametrize(("as_of", "since"), [(-1, 1), (0, 0)])
def test_r5_a_plan_needs_transactions(as_of: int, since: int) -> None:
    with pytest.raises(InvalidUsage, match="is not a transaction"):
        plan_read(as_of=Txn(as_of), since=Txn(since), upper=Txn(5))
