"""The shard reader on real tables: R1 to R6, filters, snapshots, effects. Invariants 11 and 12."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import ArithmeticException
from pyspark.sql import SparkSession

from tests.support.shelf import (
    SHARD,
    Shelf,
    changes_in,
    cut_short,
    expected,
    flip_bit,
)
from tests.support.waiting import SECONDS_MAX
from tidemark.app.consume import Batch, Consumer, leases_of
from tidemark.app.deployment import new_token
from tidemark.core.errors import Determinate, InvalidUsage
from tidemark.core.ids import Txn
from tidemark.core.lease import LeaseLost
from tidemark.core.ledger import Event
from tidemark.core.log import Limits
from tidemark.core.reading import Frozen
from tidemark.pipeline.freezes import skip_for_consumer
from tidemark.pipeline.publish import publish

pytestmark = pytest.mark.spark

TTL = 30.0


@pytest.fixture
def shelf(spark: SparkSession, tmp_path: Path) -> Shelf:
    return Shelf(tmp_path, lambda: spark)


def consumer(shelf: Shelf, name: str = "billing", **options: Any) -> Consumer:
    works = shelf.again(shelf.works.session)
    return Consumer(works, SHARD, name, **{"ttl_seconds": TTL, **options})


def taken(shelf: Shelf, name: str = "billing", **options: Any) -> list[tuple[int, int]]:
    """Listen to all there is, check every batch against what was written, and tell the ranges."""
    with consumer(shelf, name, **options) as reader:
        return [checked(shelf, batch) for batch in reader.listen()]


def consume(shelf: Shelf, handle: Callable[[Batch], object], **options: Any) -> None:
    with consumer(shelf, **options) as reader:
        for batch in reader.listen():
            handle(batch)


def checked(shelf: Shelf, batch: Batch) -> tuple[int, int]:
    assert changes_in(batch.frame) == expected(shelf.written, batch.lower, batch.upper)
    return batch.lower, batch.upper


def frontier(shelf: Shelf, name: str = "billing") -> int:
    lease = leases_of(shelf.works).current(f"{name}/{SHARD}")
    assert lease is not None
    return lease.txn


def test_batches_are_consecutive_and_the_next_process_goes_on_where_the_last_one_stood(shelf: Shelf) -> None:
    shelf.append([("a", 1), ("b", 1)], [("a", None)], [], [("c", 3)])
    assert taken(shelf, limits=Limits(txns_max=1)) == [(1, 2), (2, 4), (4, 5)]
    assert taken(shelf) == []
    shelf.append([("d", 4)])
    assert taken(shelf) == [(5, 6)]
    # Another consumer has a frontier of its own.
    assert taken(shelf, "audit") == [(1, 6)]


@pytest.mark.parametrize("damage", [Path.unlink, cut_short, flip_bit], ids=["gone", "cut", "flipped"])
def test_r1_a_part_that_cant_be_read_freezes_at_its_txn_and_what_is_before_it_is_delivered(
    shelf: Shelf, damage: Any
) -> None:
    shelf.append([("a", 1)], [(f"b{n}", n) for n in range(50)], [("c", 3)])
    (part,) = shelf.parts_of(2)
    whole, size = part.read_bytes(), part.stat().st_size
    damage(part)
    got: list[int] = []
    for _ in range(3):  # It stays frozen, however often it is tried, though the part of 3 is well.
        with pytest.raises(Frozen) as caught:
            # A flipped bit is found in here, by Spark's own read.
            consume(shelf, lambda batch: got.extend(txn for txn, *_ in changes_in(batch.frame)))
    # A batch up to 3 was given where the damage showed only while it was read, and comes again whole.
    given = damage is flip_bit
    assert got == ([] if given else [1])
    freeze = caught.value.freeze
    assert (freeze.txn, freeze.bytes, freeze.is_named) == (2, size, True)
    assert part.name in freeze.path
    assert freeze.holders[0].startswith("billing/t of ")
    assert frontier(shelf) == (1 if given else 2)
    assert len([e for e in journal(shelf, 2) if e.event is Event.FROZEN]) == 1
    part.write_bytes(whole)
    shelf.append([("d", 4)])
    assert taken(shelf) == ([(1, 4), (4, 5)] if given else [(2, 5)])


def journal(shelf: Shelf, txn: int) -> Any:
    shelf.works.control.journal.head()
    return shelf.works.control.journal.find(str(txn))


def give_up(shelf: Shelf, txn: int, reason: str) -> None:
    works = shelf.works
    skip_for_consumer(
        works.pipeline, leases_of(works), "billing", SHARD, txn=Txn(txn), reason=reason, token=new_token()
    )


def test_r1_a_frozen_txn_is_passed_over_with_a_reason_by_one_consumer_only(shelf: Shelf) -> None:
    shelf.append([("a", 1)], [("b", 2)], [("c", 3)])
    shelf.parts_of(2)[0].unlink()
    with pytest.raises(Frozen):
        taken(shelf)
    with pytest.raises(InvalidUsage, match="is at transaction 2"):
        give_up(shelf, 3, "no reason at all")
    give_up(shelf, 2, "b is not needed")
    del shelf.written[2]
    with consumer(shelf) as reader:
        batches = [(batch.skipped, checked(shelf, batch)) for batch in reader.listen()]
    assert batches == [({2: "b is not needed"}, (2, 4))]
    with pytest.raises(Frozen):
        taken(shelf, "audit")


def test_r1_a_txn_that_the_log_no_longer_lists_freezes_the_listing(shelf: Shelf) -> None:
    shelf.append([("a", 1)], [("b", 2)])
    for entry in (shelf.log / "_delta_log").glob("*1.json"):
        entry.unlink()
    with pytest.raises(Frozen, match="ends before txn 1, and checkpoint 2 is past it") as caught:
        taken(shelf)
    assert (caught.value.freeze.txn, caught.value.freeze.path) == (1, "")


def test_r3_who_leaves_in_the_middle_delivers_nothing_of_the_batch_and_lets_go(shelf: Shelf) -> None:
    shelf.append([("a", 1)], [("b", 2)], [("c", 3)])
    with pytest.raises(ZeroDivisionError):
        consume(shelf, lambda batch: 1 // (2 - batch.txn), limits=Limits(txns_max=1))
    assert frontier(shelf) == 2
    # The lease was released, so nobody has to wait; the batch comes again with the same end.
    assert taken(shelf, wait_seconds=0) == [(2, 3), (3, 4)]


def test_r3_stop_ends_the_listening_before_the_next_batch(shelf: Shelf) -> None:
    shelf.append([("a", 1)], [("b", 2)])
    with consumer(shelf, limits=Limits(txns_max=1)) as reader:
        for batch in reader.listen(follow=True):
            assert batch.txn == 1
            reader.stop()
    assert frontier(shelf) == 2


def test_r4_a_second_process_waits_and_follows_one_that_stands_still(shelf: Shelf) -> None:
    shelf.append([("a", 1)], [("b", 2)])

    def stands_still(batch: Batch) -> None:
        assert batch.txn == 1
        with pytest.raises(Determinate, match="is held by"):
            taken(shelf, wait_seconds=0)
        assert stuck._hold is not None
        stuck._hold._ended.set()  # Its renewing thread is gone, as after a SIGSTOP.
        assert taken(shelf, wait_seconds=200) == [(1, 2), (2, 3)]

    with consumer(shelf, limits=Limits(txns_max=1), ttl_seconds=6) as stuck:
        batches = stuck.listen()
        stands_still(next(batches))
        with pytest.raises(LeaseLost):
            next(batches)
    assert frontier(shelf) == 3


def test_r5_a_snapshot_and_listening_after_it_give_everything_exactly_once(shelf: Shelf) -> None:
    shelf.append([("a", 1), ("b", 1)], [("a", 2)], [("b", None)], [("c", 4)], [("a", 5)])
    with consumer(shelf) as reader:
        first = reader.snapshot(as_of=3)
        assert first.is_snapshot
        assert changes_in(first.frame) == [(3, "a", 2)]
        rest = [change for batch in reader.listen() for change in changes_in(batch.frame)]
    assert rest == [(4, "c", 4), (5, "a", 5)]


def test_r5_a_snapshot_that_was_not_confirmed_is_given_again_as_of_the_same_txn(shelf: Shelf) -> None:
    shelf.append([("a", 1)], [("b", 2)])
    with consumer(shelf) as reader:
        assert reader.snapshot().txn == 2
    shelf.append([("c", 3)])
    with consumer(shelf) as reader:
        with pytest.raises(InvalidUsage, match="2 was delivered to it"):
            reader.snapshot(as_of=3)
        assert reader.snapshot().txn == 2
        assert [batch.lower for batch in reader.listen()] == [3]
        with pytest.raises(InvalidUsage, match="it has 3"):
            reader.snapshot(as_of=1)


def test_a_new_consumer_of_a_truncated_log_has_to_take_a_snapshot_first(shelf: Shelf) -> None:
    shelf.append([("a", 1)], [("b", 2)], [("c", 3)])
    works = shelf.works  # Truncation never passes what is published.
    publish(works.control, works.state(), SHARD, token=new_token())
    leases_of(works).announce(consumers={}, window=3)
    with pytest.raises(InvalidUsage, match=r"call snapshot\(\) first"):
        taken(shelf)
    assert taken(shelf, "late", start=3) == [(3, 4)]
    with consumer(shelf) as reader:
        with pytest.raises(InvalidUsage, match="can't take a snapshot as of 2"):
            reader.snapshot(as_of=2)
        assert changes_in(reader.snapshot(as_of=3).frame) == [(3, "a", 1), (3, "b", 2), (3, "c", 3)]
        shelf.append([("d", 4)])
        assert [(batch.lower, batch.upper) for batch in reader.listen()] == [(4, 5)]
        assert not reader.is_new


def test_an_effect_keyed_by_its_batch_is_done_once_however_often_the_batch_comes(
    shelf: Shelf, tmp_path: Path
) -> None:
    shelf.append([("a", 1)], [("b", 2)], [("c", 3)], [("d", 4)])
    target = str(tmp_path / "target")

    def work(txns_max: int, *, dies_after: int) -> None:
        with consumer(shelf, limits=Limits(txns_max=txns_max)) as reader:
            for number, batch in enumerate(reader.listen(), start=1):
                batch.frame.write.format("delta").options(**batch.once).mode("append").save(target)
                if number == dies_after:
                    raise ZeroDivisionError

    # Each time it dies after its write and before its frontier moves, and the next one would cut otherwise.
    for txns_max, dies_after in ((1, 2), (3, 2), (4, 1)):
        with pytest.raises(ZeroDivisionError):
            work(txns_max, dies_after=dies_after)
    shelf.append([("e", 5)])
    work(4, dies_after=0)
    found = shelf.works.session().read.format("delta").load(target)
    assert changes_in(found) == expected(shelf.written, 1, 6)


def test_a_filter_opens_only_parts_that_may_have_a_row_and_keeps_deletes(shelf: Shelf) -> None:
    shelf.append([("a", 1), ("b", 2)], [("c", 30)], [("d", 4), ("e", None)], [("f", 50)])
    shelf.parts_of(1)[0].unlink()  # Nothing in it is wanted, so it is not missed.
    with consumer(shelf, where=[("v", ">", 20)]) as reader:
        found = [change for batch in reader.listen() for change in changes_in(batch.frame)]
    assert found == [(2, "c", 30), (3, "e", None), (4, "f", 50)]
    with consumer(shelf, "by_key", where=[("k", ">=", "d")]) as reader:
        found = [change for batch in reader.listen() for change in changes_in(batch.frame)]
    assert found == [(3, "d", 4), (3, "e", None), (4, "f", 50)]
    with pytest.raises(InvalidUsage, match="has no column 'w'"):
        taken(shelf, "other", where=[("w", "=", 1)])


def test_an_error_of_the_consumers_own_stays_its_own(shelf: Shelf) -> None:
    shelf.append([("a", 0)])
    with pytest.raises(ArithmeticException, match="DIVIDE_BY_ZERO"):
        consume(shelf, lambda batch: batch.frame.selectExpr("1 / v").collect())
    assert frontier(shelf) == 1


def test_r6_one_consumers_shutdown_moves_no_other_and_no_wake_up_is_lost(shelf: Shelf) -> None:
    shelf.append([("a", 1)])
    got: list[int] = []
    ready = threading.Event()

    def follow() -> None:
        with consumer(shelf, "follower") as reader:
            for batch in reader.listen(follow=True, poll_seconds=0.05):
                got.append(batch.txn)
                ready.set()
                if batch.txn == 2:
                    reader.stop()

    thread = threading.Thread(target=follow)
    thread.start()
    assert ready.wait(SECONDS_MAX)
    with pytest.raises(ZeroDivisionError):
        consume(shelf, lambda batch: 1 // (1 - batch.txn))
    assert frontier(shelf) == 1
    shelf.append([("b", 2)])
    thread.join(SECONDS_MAX)
    assert got == [1, 2]
    assert (frontier(shelf, "follower"), frontier(shelf)) == (3, 1)


def test_hundreds_of_small_transactions_come_in_a_few_bounded_batches(shelf: Shelf) -> None:
    for first in range(0, 300, 100):
        shelf.append(*([(f"k{n % 7}", n)] for n in range(first, first + 100)))
    assert taken(shelf, limits=Limits(txns_max=120)) == [(1, 121), (121, 241), (241, 301)]
    assert taken(shelf, "by_rows", start=201, limits=Limits(rows_max=70)) == [(201, 271), (271, 301)]
