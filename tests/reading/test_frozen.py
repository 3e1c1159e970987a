"""What stops a reader, how much it delivers before, and what it says: without Spark. Invariant 11."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.support.shelf import SHARD, Shelf, flip_bit
from tidemark.app.consume import Consumer, leases_of
from tidemark.app.deployment import new_token
from tidemark.cli.app import app
from tidemark.core.checksum import Digest
from tidemark.core.errors import InvalidUsage
from tidemark.core.ids import ShardId, Txn, WriterToken
from tidemark.core.lease import HolderToken
from tidemark.core.log import Limits
from tidemark.core.publish import StateCommit
from tidemark.core.reading import Frozen, lease_name
from tidemark.delta.parts import DeltaParts
from tidemark.pipeline import listing
from tidemark.pipeline.consume import Reading, ShardReader
from tidemark.pipeline.freezes import skip_for_consumer
from tidemark.pipeline.leases import take_hold
from tidemark.pipeline.publish import put_record
from tidemark.ports.control import LogListing


class BusyParts(DeltaParts):
    """The files of a log that somebody changes each time before it is listed."""

    def __init__(self, root: str, before: Callable[[], None]) -> None:
        super().__init__(root)
        self._before = before
        self.looks = 0

    def listed(self, *args: Any, **options: Any) -> LogListing:
        self._before()
        self.looks += 1
        assert self.looks < 9, "it goes on listing for ever"
        return super().listed(*args, **options)


@contextmanager
def reading(shelf: Shelf, files: DeltaParts | None = None, **options: Any) -> Iterator[ShardReader]:
    works = shelf.again()
    token = new_token()
    name = lease_name("billing", SHARD)
    hold = take_hold(leases_of(works), name, HolderToken(token), wait_seconds=0)
    wanted = Reading("billing", SHARD, token, **options)
    try:
        yield ShardReader(works.pipeline, files or DeltaParts(works.root), hold, wanted, name="p")
    finally:
        hold.release()


def ranges(reader: ShardReader) -> Iterator[tuple[int, int]]:
    """Take and confirm all there is."""
    while (given := reader.next_range()) is not None:
        yield given.lower, given.upper
        reader.delivered(given)


def test_regression_a_batch_that_was_given_comes_again_as_it_was_whatever_the_limits_are_now(
    tmp_path: Path,
) -> None:
    """Once it came shorter. Its effect was done, and the longer one came later and did it again."""
    shelf = Shelf(tmp_path)
    shelf.append([("a", 1)], [("b", 2)], [("c", 3)])
    with reading(shelf) as reader:
        first = reader.next_range()
    shelf.append([("d", 4)])
    assert first is not None
    for limits in (Limits(txns_max=1), Limits()):
        with reading(shelf, limits=limits) as reader:
            given = reader.next_range()
            assert given is not None
            assert (given.lower, given.upper) == (first.lower, first.upper) == (1, 4)
    with reading(shelf, limits=Limits(txns_max=1)) as reader:
        assert list(ranges(reader)) == [(1, 4), (4, 5)]


def test_regression_nothing_of_a_batch_that_was_given_comes_again_until_a_lost_part_is_skipped(
    tmp_path: Path,
) -> None:
    shelf = Shelf(tmp_path)
    shelf.append([("a", 1)], [("b", 2)], [("c", 3)])
    with reading(shelf) as reader:
        assert reader.next_range() is not None
    shelf.parts_of(2)[0].unlink()
    for _ in range(2):
        with reading(shelf) as reader, pytest.raises(Frozen) as caught:
            reader.next_range()
        assert caught.value.freeze.txn == 2
        assert reader.frontier == 1
    works = shelf.works
    known: dict[str, Any] = {"reason": "x", "token": new_token()}
    for txn in (3, 4):
        with pytest.raises(InvalidUsage, match=r"is not known to be frozen|is at transaction 1, not 4"):
            skip_for_consumer(works.pipeline, leases_of(works), "billing", SHARD, txn=Txn(txn), **known)
    skip_for_consumer(works.pipeline, leases_of(works), "billing", SHARD, txn=Txn(2), **known)
    with reading(shelf) as reader:
        given = reader.next_range()
        assert given is not None
        assert (given.lower, given.upper, given.skipped) == (1, 4, {2: "x"})
        reader.delivered(given)
        assert reader.frontier == 4


def test_a_consumer_far_behind_lists_a_bounded_number_of_transactions_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "LISTED_TXNS_MAX", 30)
    shelf = Shelf(tmp_path)
    shelf.append(*([(f"k{n % 7}", n)] for n in range(100)))
    looked: list[tuple[int, int]] = []

    class Counted(DeltaParts):
        def listed(self, shard: ShardId, **options: Any) -> LogListing:
            found = super().listed(shard, **options)
            looked.append((options["lower"], len(found.files)))
            return found

    with reading(shelf, Counted(shelf.works.root), limits=Limits(txns_max=10)) as reader:
        given = list(ranges(reader))
    assert given == [(first, first + 10) for first in range(1, 100, 10)]
    assert looked[:4] == [(1, 30), (31, 30), (61, 30), (91, 10)]


def test_r1_a_freeze_is_told_though_writers_change_the_log_without_end(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    shelf.append([("a", 1)], [("b", 2)], [("c", 3)])
    shelf.parts_of(2)[0].unlink()
    busy = BusyParts(shelf.works.root, lambda: shelf.append([("more", 1)]))
    with reading(shelf, busy, limits=Limits(txns_max=3)) as reader:
        given = reader.next_range()
        assert given is not None
        assert (given.lower, given.upper) == (1, 2)
        reader.delivered(given)
        with pytest.raises(Frozen, match="frozen at txn 2"):
            reader.next_range()


def test_a_new_consumer_of_a_truncated_log_gets_nothing_before_its_snapshot_whenever_it_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf = Shelf(tmp_path)
    shelf.append([("a", 1)], [("b", 2)], [("c", 3)])
    leases_of(shelf.works).announce(consumers={}, window=Txn(4))
    with Consumer(shelf.again(), SHARD, "billing") as reader:
        assert list(reader.listen()) == [], "there is nothing yet, not even for a snapshot"
        monkeypatch.setattr(reader._stop, "wait", lambda seconds: shelf.append([("d", 4)]))
        with pytest.raises(InvalidUsage, match=r"below 4 .*\n?.*snapshot\(\) first"):
            next(reader.listen(follow=True))
        assert reader.frontier == 4


def published(shelf: Shelf, txn: int) -> None:
    shelf.works.control.seals.head()
    [seal] = shelf.works.control.seals.read(txn, txn + 1)
    commit = StateCommit(Txn(txn), WriterToken("publisher"), Digest(), link=seal.link)
    put_record(shelf.works.control, SHARD, version=1, commit=commit)


def test_r1_a_snapshot_freezes_at_a_part_that_it_needs_and_only_then(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    shelf.append([("a", 1)], [("b", 2)], [("c", 3)], [("d", 4)])
    published(shelf, 1)
    for lost in (1, 4):
        shelf.parts_of(lost)[0].unlink()
    with reading(shelf) as reader:
        given = reader.plan_snapshot(Txn(3))
        assert (given.lower, given.upper, given.tail) == (1, 4, 2), "the state has 1, and 4 comes later"
        reader.delivered(given)
        with pytest.raises(Frozen, match="frozen at txn 4") as caught:
            reader.plan_snapshot(None)
    assert "--mode repair" in caught.value.hint
    assert "skip" not in caught.value.hint, "without its rows there is no snapshot"


def test_r1_a_snapshot_that_failed_says_which_part_was_to_blame(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    shelf.append([("a", 1)], [(f"b{n}", n) for n in range(50)])
    flip_bit(shelf.parts_of(2)[0])
    with reading(shelf) as reader:
        given = reader.plan_snapshot(None)
        with pytest.raises(Frozen, match="frozen at txn 2"):
            reader.examine(given)
    with reading(shelf) as reader, pytest.raises(Frozen, match="frozen at txn 2"):
        reader.plan_snapshot(None)


def lose_last_commit(table: Path) -> None:
    """What a store does that forgets a file, or a backup that is older than the others."""
    max((table / "_delta_log").glob("*.json")).unlink()


@pytest.mark.parametrize("table", ["t/log", "_control/history"])
def test_r1_a_table_that_has_lost_commits_freezes_at_the_first_lost_txn_after_what_is_before_it(
    tmp_path: Path, table: str
) -> None:
    shelf = Shelf(tmp_path)
    shelf.append([("a", 1)], [("b", 2)])
    shelf.append([("c", 3)])
    lose_last_commit(Path(shelf.works.root) / table)
    with reading(shelf) as reader:
        given = reader.next_range()
        assert given is not None
        assert (given.lower, given.upper) == (1, 3)
        reader.delivered(given)
        with pytest.raises(Frozen, match="frozen at txn 3") as caught:
            reader.next_range()
    assert caught.value.freeze.path == ""
    assert "from a backup" in caught.value.hint
    (told,) = listed_consumers(shelf)
    assert told["frontier"] == 3
    assert told["frozen"].startswith("its listing: ")


@pytest.mark.parametrize("again", [False, True])
def test_w1_a_consumer_that_has_had_more_than_the_history_stops_instead_of_waiting(
    tmp_path: Path, again: bool
) -> None:
    """All tables were restored from one moment; once the number is there again, its rows are others."""
    shelf = Shelf(tmp_path)
    for number in (1, 2):
        shelf.append([("a", number)])
    with reading(shelf) as reader:
        given = reader.next_range()
        assert given is not None
        reader.delivered(given)
    for table in ("_control/history", "_control/checkpoints", "t/log"):
        lose_last_commit(Path(shelf.works.root) / table)
    told = "consumer 'billing' has transaction 2, and the history ends with 1"
    if again:
        other = Shelf.__new__(Shelf)
        other.__dict__ = {**shelf.__dict__, "works": shelf.again(), "fork": 100}
        other.append([("b", 9)], [("c", 9)])
        told = "consumer 'billing' has another transaction 2 than the history"
    with reading(shelf) as reader, pytest.raises(Frozen, match=told):
        reader.next_range()


def listed_consumers(shelf: Shelf) -> Any:
    shown = CliRunner().invoke(app, ["consumers", "list", str(shelf.root / "p.yaml"), "--json"])
    assert shown.exit_code == 0, shown.output
    return json.loads(shown.output)


@pytest.mark.parametrize("table", ["t/log", "_control/history", "_control/checkpoints"])
def test_r1_a_table_with_a_hole_freezes_at_once_and_the_consumers_are_still_listed(
    tmp_path: Path, table: str
) -> None:
    """Delta can't say what lies before the hole, so nobody can tell what to deliver."""
    shelf = Shelf(tmp_path)
    for number in range(3):
        shelf.append([("a", number)])
    sorted((Path(shelf.works.root) / table / "_delta_log").glob("*.json"))[-2].unlink()
    with reading(shelf) as reader, pytest.raises(Frozen, match="frozen at txn 1"):
        reader.next_range()
    (told,) = listed_consumers(shelf)
    assert (told["frontier"], told["lag"]) == (1, None)
    assert "has later entries" in told["frozen"]
