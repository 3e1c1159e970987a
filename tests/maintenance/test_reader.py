"""Readers of a log that maintenance has changed: what is lost is named whole, and given up by name only."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.maintenance.rig import ROW, LightDeployment, Row, feed, log_folder, terms, wanted_rows
from tests.support.light import SHARD
from tidemark.app import maintenance
from tidemark.app.deployment import new_token
from tidemark.core.binding import Owner
from tidemark.core.errors import InvalidUsage
from tidemark.core.ids import ShardId, Txn, WriterToken
from tidemark.core.lease import HolderToken
from tidemark.core.ledger import Event
from tidemark.core.reading import Frozen, lease_name
from tidemark.core.seal import Part
from tidemark.delta.parts import DeltaParts
from tidemark.pipeline.consume import Range, Reading, ShardReader
from tidemark.pipeline.context import Attempt
from tidemark.pipeline.freezes import skip_for_consumer
from tidemark.pipeline.leases import Leases, take_hold
from tidemark.pipeline.repair import repair

MERGED, FED = 12, 14


@pytest.fixture
def merged(tmp_path: Path) -> Path:
    """Fourteen transactions, of which the first twelve are in one file."""
    feed(tmp_path, first=0, files=MERGED)
    maintenance.maintain(LightDeployment(tmp_path), WriterToken("maintainer"), terms())
    feed(tmp_path, first=MERGED, files=FED - MERGED)
    return tmp_path


def merged_file(root: Path) -> Path:
    (found,) = log_folder(root).glob("_txns-*/*/*.parquet")
    return found


@contextmanager
def reading(root: Path, files: DeltaParts | None = None, *, start: int = 1) -> Iterator[ShardReader]:
    deployment = LightDeployment(root)
    hold = take_hold(
        Leases(deployment.control.leases),
        lease_name("billing", SHARD),
        HolderToken(new_token()),
        start=Txn(start),
        wait_seconds=1,
    )
    wanted = Reading("billing", SHARD, new_token())
    try:
        yield ShardReader(
            deployment.pipeline, files or DeltaParts(deployment.root), hold, wanted, name="race"
        )
    finally:
        hold.release()


def rows_in(root: Path, given: Range) -> Counter[Row]:
    rows = (
        row
        for part in given.parts
        for row in pq.ParquetFile(log_folder(root) / part.path).read(columns=list(ROW)).to_pylist()
    )
    asked = (row for row in rows if given.lower <= row["_txn"] < given.upper)
    return Counter(tuple(row[name] for name in ROW) for row in asked)


def frozen(root: Path, *, start: int = 1) -> Frozen:
    with reading(root, start=start) as reader, pytest.raises(Frozen) as caught:
        reader.next_range()
    return caught.value


def give_up(root: Path, txn: int, last: int | None = None) -> tuple[Txn, ...]:
    deployment = LightDeployment(root)
    return skip_for_consumer(
        deployment.pipeline,
        Leases(deployment.control.leases),
        "billing",
        SHARD,
        txn=Txn(txn),
        last=None if last is None else Txn(last),
        reason="known loss",
        token=new_token(),
    )


def test_r1_a_merged_file_that_is_gone_freezes_naming_every_transaction_in_it(merged: Path) -> None:
    merged_file(merged).unlink()
    freeze = frozen(merged, start=5).freeze
    assert (freeze.txn, freeze.last) == (5, MERGED)
    assert "with all transactions up to 12" in str(freeze)


def test_r1_what_is_lost_together_is_given_up_by_name_or_not_at_all(merged: Path) -> None:
    merged_file(merged).unlink()
    frozen(merged, start=5)
    for last in (None, 7, FED):
        with pytest.raises(InvalidUsage, match="5 to 12 are lost together"):
            give_up(merged, 5, last)
    assert frozen(merged).freeze.txn == 5
    lost = list(range(5, MERGED + 1))
    assert give_up(merged, 5, MERGED) == tuple(lost)
    with reading(merged) as reader:
        given = reader.next_range()
        assert given is not None
        assert (given.lower, given.upper) == (5, FED + 1)
        assert given.skipped == dict.fromkeys(lost, "known loss")
        assert rows_in(merged, given) == wanted_rows(merged, since=MERGED + 1)
        reader.delivered(given)
    journal = LightDeployment(merged).control.journal
    journal.head()
    for txn in lost:
        assert [one.event for one in journal.find(str(txn))].count(Event.PASSED_OVER) == 1


def test_r1_giving_up_one_transaction_gives_up_none_that_it_is_merged_with_later(tmp_path: Path) -> None:
    feed(tmp_path, first=0, files=MERGED)
    part = next(log_folder(tmp_path).glob(f"_txn-{5:020}/*/*.parquet"))
    whole = part.read_bytes()
    part.unlink()
    assert frozen(tmp_path, start=5).freeze.last == 5
    assert give_up(tmp_path, 5) == (5,)
    part.write_bytes(whole)
    maintenance.maintain(LightDeployment(tmp_path), WriterToken("maintainer"), terms())
    merged_file(tmp_path).unlink()
    freeze = frozen(tmp_path).freeze
    assert (freeze.txn, freeze.last) == (5, MERGED)


def test_r1_a_merged_file_that_is_repaired_is_delivered_whole(merged: Path) -> None:
    merged_file(merged).unlink()
    frozen(merged)
    repair(LightDeployment(merged).pipeline, Attempt(Owner("mend"), new_token()), Txn(1))
    with reading(merged) as reader:
        given = reader.next_range()
        assert given is not None
        assert not given.skipped
        assert rows_in(merged, given) == wanted_rows(merged)


def test_a_consumer_that_can_read_has_nothing_to_pass_over(merged: Path) -> None:
    with reading(merged):
        pass
    with pytest.raises(InvalidUsage, match="is not known to be frozen"):
        give_up(merged, 1)


def test_what_was_merged_between_listing_and_looking_is_read_where_it_is_now(tmp_path: Path) -> None:
    feed(tmp_path, first=0, files=MERGED)

    class Replaced(DeltaParts):
        merged = False
        # The transaction has several parts, which are looked at abreast: maintenance runs once.
        once = threading.Lock()

        def fault(self, shard: ShardId, part: Part, *, whole: bool) -> str:
            with self.once:
                if not self.merged and part.path.startswith(f"_txn-{1:020}"):
                    maintenance.maintain(LightDeployment(tmp_path), WriterToken("m"), terms(), watch=False)
                    for old in log_folder(tmp_path).glob("_txn-*/*/*.parquet"):
                        old.unlink(missing_ok=True)
                    self.merged = True
            return super().fault(shard, part, whole=whole)

    with reading(tmp_path, Replaced(LightDeployment(tmp_path).root)) as reader:
        given = reader.next_range()
        assert given is not None
        assert rows_in(tmp_path, given) == wanted_rows(tmp_path)
