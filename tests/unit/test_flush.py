"""The acknowledgement tracker, scenario by scenario (F1 to F13). Checks Invariant 10."""

from __future__ import annotations

import random

import pytest

from tidemark.core.checkpoint import Acknowledged, FlushPosition, FlushTracker, Lag, SourceTxn
from tidemark.core.errors import InvalidUsage, InvariantViolation
from tidemark.core.ids import ShardId

A, B, D = ShardId("a"), ShardId("b"), ShardId("d")


def at(txn: int, op: int = 10) -> FlushPosition:
    return FlushPosition(SourceTxn(txn), op)


class Told:
    """The scenarios' notation: T, F and remove answer with the acknowledged number, or None."""

    def __init__(self, tracker: FlushTracker | None = None) -> None:
        self.tracker = tracker or FlushTracker()

    def t(self, txn: int, *shards: ShardId, op: int = 10, now: float = 0.0) -> int | None:
        return number(self.tracker.committed(at(txn, op), shards, now_seconds=now))

    def f(self, shard: ShardId, txn: int, op: int = 10, now: float = 0.0) -> int | None:
        return number(self.tracker.flushed(shard, at(txn, op), now_seconds=now))

    def remove(self, shard: ShardId) -> int | None:
        return number(self.tracker.removed(shard))


def number(report: Acknowledged | None) -> int | None:
    return None if report is None else report.txn


def test_f1_a_commit_without_shards_is_acknowledged_at_once() -> None:
    assert Told().t(1) == 1


def test_f2_a_commit_with_a_shard_reports_nothing() -> None:
    assert Told().t(1, A) is None


def test_f3_a_flush_of_the_commit_position_acknowledges_it() -> None:
    tracker = FlushTracker()
    tracker.committed(at(1), [A], now_seconds=0)
    report = tracker.flushed(A, at(1), now_seconds=0)
    assert report == Acknowledged(SourceTxn(1), at(1))
    assert tracker.acknowledged == report


def test_f4_catching_up_acknowledges_the_keep_alives_behind_it() -> None:
    told = Told()
    assert (told.t(1, A), told.t(3), told.f(A, 1)) == (None, None, 3)
    assert told.tracker.acknowledged.position == at(3)


def test_f5_a_partial_flush_acknowledges_the_transaction_before() -> None:
    told = Told()
    assert (told.t(5, A), told.f(A, 5, 5)) == (None, 4)
    # Nobody has committed a transaction 4: the number is a bound, and has no position of its own.
    assert told.tracker.acknowledged.position is None


def test_f6_two_shards_lagging_in_turn() -> None:
    told = Told()
    assert (told.t(5, A, B), told.t(6, A, B)) == (None, None)
    flushes = [(A, 5, 10), (B, 5, 10), (A, 6, 3), (B, 6, 3), (B, 6, 10), (A, 6, 10)]
    assert [told.f(*flush) for flush in flushes] == [3, 4, None, 5, None, 6]


def test_f7_a_transaction_that_does_not_touch_a_shard_never_blocks_it() -> None:
    told = Told()
    assert told.t(7) == 7
    assert [told.t(10, A), told.t(11), told.t(12, B)] == [None, None, None]
    assert (told.f(A, 10), told.f(B, 12)) == (10, 12)


def test_f8_removing_the_only_lagging_shard_acknowledges() -> None:
    told = Told()
    assert (told.t(1, A), told.remove(A)) == (None, 1)


def test_f9_a_lagging_shard_blocks_the_others_until_it_is_removed() -> None:
    told = Told()
    assert (told.t(5, A, D), told.f(A, 5)) == (None, 3)
    assert (told.t(6, A), told.f(A, 6)) == (None, None)
    assert told.remove(D) == 6


def test_f10_an_untracked_flush_reports_nothing() -> None:
    told = Told()
    told.t(5, A)
    assert told.f(B, 5) is None
    assert told.remove(B) is None
    assert told.tracker.acknowledged.txn == 0


def test_f10_a_repeated_or_late_lower_flush_reports_nothing_and_never_regresses() -> None:
    told = Told()
    told.t(5, A, B)
    assert told.f(A, 5, 5) == 3
    assert told.f(A, 5, 5) is None
    assert told.f(A, 4, 9) is None
    assert told.tracker.lagging() == (Lag(B, None, at(5), 0.0), Lag(A, at(5, 5), at(5), 0.0))
    assert (told.f(A, 5), told.f(B, 5)) == (None, 5)
    assert (told.f(B, 5), told.f(B, 3)) == (None, None)
    assert told.tracker.acknowledged.txn == 5


def test_f10_a_late_lower_flush_does_not_lower_what_the_shard_counts_as_flushed() -> None:
    told = Told()
    told.t(5, A)
    told.t(6, A)
    assert told.f(A, 6, 3) == 5
    assert told.f(A, 5, 10) is None
    assert told.tracker.lagging() == (Lag(A, at(6, 3), at(6), 0.0),)


def test_a_flush_beyond_the_wanted_position_completes() -> None:
    told = Told()
    told.t(5, A)
    assert told.f(A, 5, 11) == 5


@pytest.mark.parametrize("order", [(A, B), (B, A)], ids=["by_size", "by_timer"])
def test_f11_flushes_before_the_commit_fragment_give_one_report_at_the_commit(
    order: tuple[ShardId, ShardId],
) -> None:
    """By size, the big row's shard is flushed at once; by timer, both are, in any order."""
    tracker, last = FlushTracker(), {A: at(7, 0), B: at(7, 50)}
    tracker.received(A, last[A])
    tracker.received(B, last[B])
    assert [tracker.flushed(shard, last[shard], now_seconds=0) for shard in order] == [None, None]
    assert tracker.committed(at(7, 100), [A, B], now_seconds=1) == Acknowledged(SourceTxn(7), at(7, 100))
    assert tracker.lagging() == ()
    # Aligned: the flush of the commit itself, when it comes, is a repeat.
    assert tracker.flushed(A, at(7, 100), now_seconds=2) is None
    tracker.committed(at(8), [B], now_seconds=3)
    assert tracker.lagging() == (Lag(B, at(7, 100), at(8), 3),)


def test_f11_a_flush_between_rows_does_not_cover_the_later_ones() -> None:
    tracker = FlushTracker()
    tracker.received(A, at(7, 0))
    assert tracker.flushed(A, at(7, 0), now_seconds=0) is None
    tracker.received(A, at(7, 50))
    tracker.received(A, at(7, 20))
    assert tracker.committed(at(7, 100), [A], now_seconds=1) is None
    assert number(tracker.flushed(A, at(7, 20), now_seconds=2)) == 6
    assert tracker.flushed(A, at(7, 50), now_seconds=3) == Acknowledged(SourceTxn(7), at(7, 100))
    # A flush after the commit is aligned to it as well.
    tracker.committed(at(8), [A], now_seconds=4)
    assert tracker.lagging() == (Lag(A, at(7, 100), at(8), 4),)


def test_f11_without_received_rows_only_the_commits_own_op_completes() -> None:
    told = Told()
    told.f(A, 7, 50)
    assert told.t(7, A, op=100) is None
    assert (told.f(A, 7, 99), told.f(A, 7, 100)) == (6, 7)


def test_f11_a_shard_with_received_rows_is_touched_even_if_the_commit_does_not_list_it() -> None:
    tracker = FlushTracker()
    tracker.received(A, at(7, 50))
    assert tracker.committed(at(7, 100), now_seconds=0) is None
    assert number(tracker.flushed(A, at(7, 50), now_seconds=0)) == 7


def test_f11_rows_of_an_abandoned_transaction_ask_for_nothing() -> None:
    tracker = FlushTracker()
    tracker.received(A, at(7, 50))
    tracker.received(B, at(8, 5))
    tracker.flushed(B, at(8, 5), now_seconds=0)
    assert number(tracker.committed(at(8), [B], now_seconds=0)) == 8
    tracker.received(A, at(9, 50))
    assert number(tracker.committed(at(10), now_seconds=0)) == 10


def test_f11_a_shard_removed_in_an_open_transaction_is_not_waited_for() -> None:
    tracker = FlushTracker()
    tracker.received(A, at(7, 50))
    assert tracker.removed(A) is None
    assert number(tracker.committed(at(7, 100), now_seconds=0)) == 7


def test_f12_a_stall_begins_after_the_grace() -> None:
    told = Told()
    told.t(5, A, now=100)
    assert told.tracker.stalled(now_seconds=200, grace_seconds=100) == ()
    assert told.tracker.stalled(now_seconds=201, grace_seconds=100) == (Lag(A, None, at(5), 100),)


def test_f12_new_traffic_does_not_reset_a_stall() -> None:
    told = Told()
    told.t(5, A, now=100)
    told.t(6, A, B, now=150)
    stalled = told.tracker.stalled(now_seconds=201, grace_seconds=100)
    assert stalled == (Lag(A, None, at(6), 100),)


def test_f12_a_partial_flush_resets_a_stall_and_a_repeat_of_it_does_not() -> None:
    told = Told()
    told.t(5, A, now=100)
    told.f(A, 5, 3, now=150)
    told.f(A, 5, 3, now=240)
    assert told.tracker.stalled(now_seconds=250, grace_seconds=100) == ()
    assert told.tracker.stalled(now_seconds=251, grace_seconds=100) == (Lag(A, at(5, 3), at(5), 150),)


def test_f12_a_shard_that_caught_up_is_timed_anew() -> None:
    told = Told()
    told.t(5, A, now=100)
    told.f(A, 5, now=110)
    told.t(6, A, now=300)
    assert told.tracker.stalled(now_seconds=400, grace_seconds=100) == ()


def test_f13_idle_keep_alives_never_pass_an_unflushed_transaction() -> None:
    told = Told()
    told.t(5, A)
    assert [told.t(txn) for txn in range(6, 20)] == [None] * 14
    assert told.tracker.acknowledged.txn == 0
    assert told.f(A, 5) == 19


def test_lagging_names_who_holds_the_acknowledgement_back_furthest_first() -> None:
    told = Told()
    told.t(5, A, B, now=1)
    told.t(6, A, B, D, now=2)
    told.f(A, 5, now=3)
    assert told.tracker.lagging() == (
        Lag(B, None, at(6), 1),
        Lag(A, at(5), at(6), 3),
        Lag(D, None, at(6), 2),
    )


def test_rebuilt_from_durable_facts_it_goes_on_where_it_stood() -> None:
    told = Told(FlushTracker(acknowledged=SourceTxn(4), flushed={A: at(6, 10), B: at(5, 3)}))
    assert told.t(4, A) is None  # the source sends the last acknowledged one again
    assert told.t(5, A, B) is None
    assert told.t(6, A, B) is None
    # Floor 5 for b: 4 is what was acknowledged before, so only a full flush advances.
    assert told.f(B, 5, 10) is None
    assert told.f(B, 6, 10) == 6


def test_a_resent_transaction_changes_nothing() -> None:
    told = Told()
    told.t(5, A)
    told.t(6, A, B)
    told.tracker.received(A, at(5, 99))
    assert [told.t(5, A), told.t(6, A, B), told.t(6, B)] == [None, None, None]
    assert (told.f(A, 6), told.f(B, 6)) == (4, 6)


def test_a_resent_transaction_does_not_bring_a_removed_shard_back() -> None:
    told = Told()
    told.t(1, A)
    assert told.remove(A) == 1
    assert (told.t(1, A), told.tracker.lagging()) == (None, ())
    assert told.t(2) == 2


@pytest.mark.parametrize("txn", [4, 5])
def test_rows_resent_while_a_later_transaction_is_open_are_passed_over(txn: int) -> None:
    told = Told()
    told.t(4, A)
    told.t(5, A)
    told.tracker.received(A, at(6, 1))
    told.tracker.received(A, at(txn, 1))
    told.t(6)
    assert told.f(A, 6, 1) == 6


def test_a_shard_removed_and_made_again_starts_without_a_flushed_position() -> None:
    told = Told()
    told.f(A, 7)
    told.remove(A)
    assert told.t(7, A) is None
    assert told.tracker.lagging() == (Lag(A, None, at(7), 0.0),)


def test_a_shard_that_was_caught_up_long_ago_counts_as_flushed_to_the_transaction_before() -> None:
    told = Told()
    told.t(1, A)
    assert told.f(A, 1) == 1
    told.t(9, A, B)
    assert told.f(B, 9) == 7


def test_a_resent_transaction_with_other_data_is_an_error() -> None:
    told = Told()
    told.t(6, A)
    with pytest.raises(InvariantViolation, match=r"6 was committed at 6\.10 for \['a'\], and again at 6\.11"):
        told.t(6, A, op=11)
    with pytest.raises(InvariantViolation, match="again at"):
        told.t(6, A, B)


def test_two_open_source_transactions_are_refused() -> None:
    tracker = FlushTracker()
    tracker.received(A, at(7, 0))
    with pytest.raises(InvalidUsage, match="6 arrived while 7 is open"):
        tracker.received(A, at(6, 0))
    with pytest.raises(InvalidUsage, match="6 arrived while 7 is open"):
        tracker.committed(at(6), [A], now_seconds=0)


def test_a_commit_before_its_own_rows_is_refused() -> None:
    tracker = FlushTracker()
    tracker.received(A, at(7, 101))
    with pytest.raises(InvalidUsage, match=r"commit at 7\.100 is before the row at 7\.101 of shard a"):
        tracker.committed(at(7, 100), [A], now_seconds=0)


def test_a_row_may_stand_at_the_commits_own_op() -> None:
    tracker = FlushTracker()
    tracker.received(A, at(7, 100))
    assert tracker.committed(at(7, 100), [A], now_seconds=0) is None
    assert number(tracker.flushed(A, at(7, 100), now_seconds=0)) == 7


@pytest.mark.parametrize(("txn", "op"), [(0, 1), (-1, 1), (1, -1)])
def test_a_position_starts_at_transaction_1_and_op_0(txn: int, op: int) -> None:
    with pytest.raises(InvalidUsage, match="not a position of the source"):
        at(txn, op)


def test_a_negative_acknowledgement_is_refused() -> None:
    with pytest.raises(InvalidUsage, match="is negative"):
        FlushTracker(acknowledged=SourceTxn(-1))


def test_the_heap_keeps_bounded_garbage() -> None:
    """Two shards stay behind while a thousand transactions pass: their old entries must not pile up."""
    told = Told()
    told.t(1, A, B)
    told.t(2000, A, B)
    for txn in range(2, 1002):
        told.f(B, txn)
        assert len(told.tracker._heap) <= 2 * 2 + 64 + 1
    assert told.f(A, 1500) == 1000
    assert told.remove(B) == 1499


def test_many_lagging_shards_agree_with_a_scan_over_all_of_them() -> None:
    """Enough flushes in a shuffled order that the heap is rebuilt many times over."""
    rng, told = random.Random(7), Told()
    floors = {ShardId(f"s{number}"): 0 for number in range(200)}
    told.t(1, *floors)
    told.t(10**6, *floors)
    shards = list(floors)
    for _ in range(5_000):
        shard = rng.choice(shards)
        floors[shard] += rng.randint(1, 5)
        told.f(shard, floors[shard])
        assert told.tracker.acknowledged.txn == max(0, min(floors.values()) - 1)
    assert told.tracker.acknowledged.txn > 10
