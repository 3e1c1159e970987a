"""Leases and the floor they give to maintenance: R4, and R3's hand-over. Checks Invariant 12."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from tidemark.core.errors import Determinate, InvalidUsage, InvariantViolation
from tidemark.core.ids import Txn
from tidemark.core.lease import (
    SINCE,
    Acquired,
    AlreadyEnded,
    HeldByOther,
    HolderToken,
    Lease,
    LeaseLost,
    LeaseState,
    Observation,
    Tenure,
    decide_acquire,
    decide_expire,
    decide_release,
    decide_renew,
    decide_since,
    floor,
    observe,
    since_of,
)
from tidemark.core.ledger import Head, Put

TTL = 60.0
ME, RIVAL = HolderToken("me"), HolderToken("rival")


class Book:
    """A ledger of leases, as small as can be: every put is applied to the head it was decided on."""

    def __init__(self) -> None:
        self.records: list[Lease] = []
        self.marks: dict[str, int] = {}

    @property
    def head(self) -> Head:
        return Head(len(self.records), dict(self.marks))

    def current(self, name: str = "orders") -> Lease | None:
        return next((lease for lease in reversed(self.records) if lease.name == name), None)

    @property
    def live(self) -> list[Lease]:
        last = {lease.name: lease for lease in self.records}
        return [lease for lease in last.values() if lease.is_live]

    def commit(self, decision: Any) -> Any:
        assert isinstance(decision, Put), decision
        self.marks = self.head.moved(decision.marks)
        self.records.extend(decision.records)
        return decision.result

    def acquire(self, holder: HolderToken = ME, *, start: int = 1, seen: Observation | None = None) -> Any:
        return decide_acquire(
            head=self.head,
            current=self.current(),
            name="orders",
            holder=holder,
            start=Txn(start),
            ttl_seconds=TTL,
            observation=seen,
        )

    def acquired(self, holder: HolderToken = ME, *, start: int = 1, seen: Observation | None = None) -> Lease:
        result = self.commit(self.acquire(holder, start=start, seen=seen))
        assert isinstance(result, Acquired)
        return result.lease

    def renew(self, tenure: Tenure, *, now: float, txn: int | None = None) -> Any:
        return decide_renew(
            head=self.head,
            tenure=tenure,
            current=self.current(tenure.lease.name),
            now_seconds=now,
            txn=None if txn is None else Txn(txn),
        )


def stopped(lease: Lease) -> Observation:
    """What an observer knows after it saw the lease stand still for longer than it lasts."""
    seen = observe(None, lease, now_seconds=0)
    for now in (30, 60, 61):
        assert not seen.expires(lease)
        seen = observe(seen, lease, now_seconds=now)
    assert seen.expires(lease)
    return seen


def test_a_new_name_is_acquired_at_its_start() -> None:
    book = Book()
    result = book.commit(book.acquire(start=7))
    assert result == Acquired(Lease("orders", ME, Txn(7), 1, TTL))
    assert (result.lease.number, result.lease.key) == (1, "orders")
    assert book.head.upper == 2


def test_losing_the_race_for_a_name_is_a_value_with_the_winner() -> None:
    book = Book()
    theirs = book.acquired(RIVAL)
    assert book.acquire(ME) == HeldByOther(theirs)


def test_acquiring_again_after_a_lost_reply_keeps_the_txn() -> None:
    book = Book()
    book.acquired(start=7)
    result = book.commit(book.acquire(start=3))
    assert result == Acquired(Lease("orders", ME, Txn(7), 2, TTL), taken_from=None)


def test_each_write_has_a_new_epoch_even_after_an_end() -> None:
    book = Book()
    first = book.acquired()
    book.commit(decide_release(head=book.head, lease=first, current=book.current()))
    second = book.acquired(start=5)
    assert (first.epoch, second.epoch, second.txn) == (1, 3, 5)


def test_a_start_that_maintenance_has_removed_is_refused() -> None:
    book = Book()
    book.marks[SINCE] = 5
    with pytest.raises(InvalidUsage, match="can't hold txn 4: the oldest retained transaction is 5"):
        book.acquire(start=4)
    assert book.acquired(start=5).txn == 5


def test_a_live_lease_below_since_is_a_broken_promise() -> None:
    book = Book()
    book.acquired(start=4)
    book.marks[SINCE] = 5
    with pytest.raises(InvariantViolation, match="holds txn 4, but the oldest retained transaction is 5"):
        book.acquire()


def test_a_renewal_keeps_the_txn_and_an_advance_moves_it() -> None:
    book = Book()
    tenure = Tenure(book.acquired(start=2), 0)
    renewed = book.commit(book.renew(tenure, now=TTL))
    assert renewed == Lease("orders", ME, Txn(2), 2, TTL)
    advanced = book.commit(book.renew(Tenure(renewed, TTL), now=70, txn=9))
    assert advanced == Lease("orders", ME, Txn(9), 3, TTL)


def test_an_advance_whose_reply_was_lost_stays_advanced() -> None:
    book = Book()
    tenure = Tenure(book.acquired(start=2), 0)
    book.commit(book.renew(tenure, now=1, txn=9))
    assert book.commit(book.renew(tenure, now=2)).txn == 9


def test_a_hold_never_goes_back() -> None:
    book = Book()
    tenure = Tenure(book.acquired(start=5), 0)
    with pytest.raises(InvalidUsage, match="can't go back from txn 5 to 4"):
        book.renew(tenure, now=1, txn=4)


def test_r4_a_holder_stopped_past_its_deadline_gets_a_typed_error_at_its_next_delivery() -> None:
    tenure = Tenure(Book().acquired(start=5), 100)
    tenure.check(now_seconds=160)
    with pytest.raises(LeaseLost, match="not renewed for 61 seconds, and it lasts 60") as caught:
        tenure.check(now_seconds=161)
    assert isinstance(caught.value, Determinate)
    assert caught.value.lease == tenure.lease


def test_r4_a_holder_stopped_past_its_deadline_gets_a_typed_error_at_its_next_renewal() -> None:
    book = Book()
    tenure = Tenure(book.acquired(start=5), 100)
    with pytest.raises(LeaseLost, match="not renewed for 61 seconds"):
        book.renew(tenure, now=161)
    assert book.current() == tenure.lease


def test_r4_a_holder_whose_lease_was_taken_is_told_by_whom() -> None:
    """Its own clock may have stood still with it, so the ledger is asked too."""
    book = Book()
    tenure = Tenure(book.acquired(start=5), 100)
    taken = book.acquired(RIVAL, seen=stopped(tenure.lease))
    assert taken.txn == 5
    with pytest.raises(LeaseLost, match="lease 'orders' of me at txn 5 is lost: rival has taken it"):
        book.renew(tenure, now=101)


def test_r4_a_holder_whose_lease_was_expired_is_told_so() -> None:
    book = Book()
    tenure = Tenure(book.acquired(start=5), 100)
    book.commit(decide_expire(head=book.head, current=tenure.lease, observation=stopped(tenure.lease)))
    with pytest.raises(LeaseLost, match="it was expired"):
        book.renew(tenure, now=101)


def test_r4_a_holder_whose_lease_is_not_there_is_told_so() -> None:
    tenure = Tenure(Book().acquired(start=5), 100)
    with pytest.raises(LeaseLost, match="it is not there"):
        Book().renew(tenure, now=101)


def test_a_lost_lease_survives_pickling() -> None:
    error = LeaseLost(Book().acquired(), "why")
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert (type(again), str(again), again.lease, again.why) == (LeaseLost, str(error), error.lease, "why")


def test_r3_the_next_reader_takes_an_expired_lease_over_where_it_stands() -> None:
    book = Book()
    old = book.acquired(RIVAL, start=5)
    result = book.commit(book.acquire(ME, start=1, seen=stopped(old)))
    assert result == Acquired(Lease("orders", ME, Txn(5), 2, TTL), taken_from=old)


def test_r3_a_release_ends_the_lease_and_a_second_one_is_no_error() -> None:
    book = Book()
    lease = book.acquired()
    ended = book.commit(decide_release(head=book.head, lease=lease, current=book.current()))
    assert (ended.state, ended.epoch) == (LeaseState.RELEASED, 2)
    assert decide_release(head=book.head, lease=lease, current=ended) == AlreadyEnded(ended)
    assert decide_release(head=book.head, lease=lease, current=None) == AlreadyEnded(None)


def test_r3_a_release_never_ends_a_rivals_lease() -> None:
    book = Book()
    mine = book.acquired()
    theirs = book.acquired(RIVAL, seen=stopped(mine))
    assert decide_release(head=book.head, lease=mine, current=theirs) == AlreadyEnded(theirs)


def test_a_lease_expires_only_after_it_was_seen_unchanged_for_longer_than_its_ttl() -> None:
    book = Book()
    lease = book.acquired()
    seen = observe(None, lease, now_seconds=1000)
    for now in (1020, 1040, 1060):
        seen = observe(seen, lease, now_seconds=now)
    assert decide_expire(head=book.head, current=lease, observation=seen) == HeldByOther(lease)
    seen = observe(seen, lease, now_seconds=1061)
    ended = book.commit(decide_expire(head=book.head, current=lease, observation=seen))
    assert ended.state is LeaseState.EXPIRED
    assert not seen.expires(ended)


def test_a_renewal_starts_the_observation_anew() -> None:
    book = Book()
    lease = book.acquired()
    seen = stopped(lease)
    renewed = book.commit(book.renew(Tenure(lease, 0), now=1))
    assert not seen.expires(renewed)
    again = observe(seen, renewed, now_seconds=1000)
    assert again == Observation("orders", renewed.epoch, 1000, 0.0)


def test_an_observation_of_another_name_expires_nothing() -> None:
    lease = Book().acquired()
    other = Lease("stock", RIVAL, Txn(1), lease.epoch, TTL)
    assert not stopped(other).expires(lease)
    assert observe(stopped(other), lease, now_seconds=5).unchanged_seconds == 0


def test_a_clock_that_jumps_back_never_expires_a_lease() -> None:
    lease = Book().acquired()
    seen = observe(None, lease, now_seconds=1000)
    for now in (400, 100, 0, -900):
        seen = observe(seen, lease, now_seconds=now)
    assert seen.unchanged_seconds == 0


def test_a_clock_that_jumps_ahead_counts_for_half_a_ttl_at_most() -> None:
    lease = Book().acquired()
    seen = observe(None, lease, now_seconds=0)
    for now, expires in [(1e9, False), (2e9, False), (3e9, True)]:
        seen = observe(seen, lease, now_seconds=now)
        assert seen.expires(lease) is expires


def test_r4_the_floor_names_the_holder_for_the_dry_run() -> None:
    leases = [Lease("orders", ME, Txn(6), 1, TTL), Lease("stock", RIVAL, Txn(4), 2, TTL)]
    result = floor(leases, consumers={"state": Txn(5)}, window=Txn(9))
    assert result.txn == 4
    assert [str(need) for need in result.held_by] == ["lease stock of rival needs txn 4"]
    assert [str(need) for need in result.needs[1:]] == [
        "consumer state needs txn 5",
        "lease orders of me needs txn 6",
        "window retention needs txn 9",
    ]


def test_the_floor_is_held_by_everyone_who_stands_at_it() -> None:
    result = floor([Lease("orders", ME, Txn(5), 1, TTL)], consumers={"state": Txn(5)}, window=Txn(5))
    assert [need.kind for need in result.held_by] == ["consumer", "lease", "window"]


def test_r4_maintenance_under_a_live_lease_keeps_what_it_needs() -> None:
    """Invariant 12: however late the holder, its lease counts until its end is recorded."""
    book = Book()
    lease = book.acquired(start=3)
    seen = stopped(lease)
    assert floor(book.live, consumers={}, window=Txn(9)).txn == 3
    book.commit(decide_expire(head=book.head, current=lease, observation=seen))
    assert floor(book.live, consumers={}, window=Txn(9)).txn == 9


def test_an_ended_lease_holds_nothing() -> None:
    ended = Lease("orders", ME, Txn(3), 1, TTL, LeaseState.RELEASED)
    assert floor([ended], consumers={}, window=Txn(9)).txn == 9


def test_since_follows_the_floor_and_never_goes_back() -> None:
    book = Book()
    assert since_of(book.head) == 1
    low, high = (floor([], consumers={}, window=Txn(window)) for window in (4, 7))
    assert book.commit(decide_since(head=book.head, floor=high)) == 7
    assert since_of(book.head) == 7
    assert decide_since(head=book.head, floor=low) == 7
    assert decide_since(head=book.head, floor=high) == 7


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "No Name"}, "is not a name"),
        ({"holder": ""}, "no holder"),
        ({"txn": 0}, "txn 0"),
        ({"epoch": 0}, "epoch 0"),
        ({"ttl_seconds": 0.0}, "not a positive time"),
        ({"ttl_seconds": float("inf")}, "not a positive time"),
        ({"ttl_seconds": float("nan")}, "not a positive time"),
    ],
)
def test_a_lease_is_valid_from_birth(fields: dict[str, Any], message: str) -> None:
    good: dict[str, Any] = {"name": "orders", "holder": "me", "txn": 1, "epoch": 1, "ttl_seconds": 1.0}
    with pytest.raises(InvalidUsage, match=message):
        Lease(**{**good, **fields})
