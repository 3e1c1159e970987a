"""Tombstones are appended to by publishes and expire by maintenance, once no record can lose to them; without
Spark."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from tests.support.keyed_log import SHARD, Change, KeyedLog
from tests.support.memory.control import MemoryControl, MemoryWarehouse
from tidemark.core.checksum import Digest
from tidemark.core.errors import InvalidUsage
from tidemark.core.ids import Txn, WriterToken
from tidemark.core.ledger import GENERATION, UPPER, Conflict, Put
from tidemark.core.publish import Published, StateCommit
from tidemark.core.seal import Decision, Seal
from tidemark.delta.state_maintenance import DeltaStateKeeper, MaintainedState
from tidemark.delta.state_status import same_rows_version
from tidemark.pipeline import maintain as step
from tidemark.pipeline.publish import last_published
from tidemark.ports.planes import Freed, Tail
from tidemark.spark import state as state_module

LATENESS = 5


def keeper_of(log: KeyedLog) -> DeltaStateKeeper:
    kept = MaintainedState(log.spec.uri, sequence_by="s", lateness=LATENESS)
    return DeltaStateKeeper("p", {SHARD: kept})


def log_at(root: Path) -> KeyedLog:
    return KeyedLog(root, ordered=True, lateness=LATENESS)


def expire(log: KeyedLog, monkeypatch: pytest.MonkeyPatch, *, watermark: int) -> Freed:
    monkeypatch.setattr(step, "watermark_below", lambda control, txn: watermark)
    late = step.too_late_tombstones(log.control, keeper_of(log), SHARD)
    found = step.expire_tombstones(log.control, keeper_of(log), SHARD, generation=0)
    assert found == late
    return found


def sequences(log: KeyedLog, version: int | None = None) -> list[int]:
    files = DeltaTable(log.spec.tombstones, version=version).file_uris()
    return sorted(row for file in files for row in pq.read_table(file)["s"].to_pylist())


def published(log: KeyedLog, *deleted: int) -> Published:
    log.append(*[Change(("x", one), None, one) for one in deleted])
    return log.publish()


def test_a_publish_only_appends_and_whole_files_expire_once_all_in_them_are_too_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = log_at(tmp_path)
    for keys in ([10], [20, 21], [30]):
        published(log, *keys)
    assert expire(log, monkeypatch, watermark=15) == Freed(0, 0), "10 is not more than the lateness below"
    assert expire(log, monkeypatch, watermark=26).files == 1, "21 is not too late yet, so 20 stays with it"
    assert sequences(log) == [20, 21, 30]
    log.append(Change(("x", 20), "late", 19))
    log.publish()
    assert log.rows() == []
    last = published(log, 40)
    assert sequences(log) == [20, 21, 30, 40], "a publish removes none, however late they are"
    assert expire(log, monkeypatch, watermark=27).files == 1
    assert sequences(log) == [30, 40]
    assert sequences(log, last.commit.tombstones) == [20, 21, 30, 40]
    log.append(Change(("x", 30), "late", 29), Change(("x", 20), "in time", 22))
    log.publish()
    log.check()
    assert log.rows() == [(("x", 20), "in time")]


def test_a_reader_after_the_last_publish_may_read_what_expired_and_one_before_it_may_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = log_at(tmp_path)
    published(log, 10)
    before = published(log, 30)
    log.append(Change(("y", 1), "1", 31))
    last = log.publish()
    version = last.commit.tombstones
    assert version == before.commit.tombstones
    assert expire(log, monkeypatch, watermark=40).files == 2
    uri = log.spec.tombstones
    assert same_rows_version(uri, version, published=last.txn) == version + 1
    assert same_rows_version(uri, version, published=before.txn) == version
    # Log clean-up has taken the entries: the reader after the last publish still finds its tombstones.
    DeltaTable(uri).create_checkpoint()
    for entry in sorted((Path(uri) / "_delta_log").glob("*.json"))[:-1]:
        entry.unlink()
    assert same_rows_version(uri, version, published=last.txn) == version + 1
    with pytest.raises(InvalidUsage, match="no longer reaches back"):
        same_rows_version(uri, version, published=before.txn)
    published(log, 50)
    log.check()


def test_tombstones_that_another_publish_left_don_t_bury_records_before_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A publish of three transactions dies after its tombstones; one that saw the log earlier follows."""
    log = log_at(tmp_path)
    log.append(Change(("x", 1), "first", 1))
    first = log.control.log(SHARD).head()
    log.append(Change(("x", 1), "second", 2))
    log.append(Change(("x", 1), None, 9))
    with monkeypatch.context() as patch:
        patch.setattr(state_module.SparkStatePlane, "_commit", lambda *_, **__: Conflict())
        tail = Tail(Txn(1), Txn(4), log.control.log(SHARD).head().version)
        assert isinstance(log.plane.publish(SHARD, tail, base=None, token=WriterToken("dies")), Conflict)
    assert sequences(log) == [9]
    tail = Tail(Txn(1), Txn(2), first.version)
    made = log.plane.publish(SHARD, tail, base=None, token=WriterToken("earlier"))
    assert not isinstance(made, Conflict)
    assert log.rows() == [(("x", 1), "first")]


def test_settings_of_another_generation_than_the_one_in_charge_remove_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = log_at(tmp_path)
    published(log, 10)
    seals = log.control.seals
    seals.commit(seals.head(), Put({GENERATION: 1}, (), None))
    monkeypatch.setattr(step, "watermark_below", lambda control, txn: 40)
    assert step.expire_tombstones(log.control, keeper_of(log), SHARD, generation=0) == Freed(0, 0)
    assert sequences(log) == [10]
    assert step.expire_tombstones(log.control, keeper_of(log), SHARD, generation=1).files == 1


def test_a_file_without_statistics_or_with_a_null_sequence_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = log_at(tmp_path)
    published(log, 10)
    (file,) = DeltaTable(log.spec.tombstones).file_uris()
    (live,) = keeper_of(log)._dead(SHARD).head().files.values()
    for stats in ('{"numRecords":1}', '{"numRecords":1,"maxValues":{"s":10},"nullCount":{"s":1}}', "{}"):
        add: dict[str, Any] = {**live.add, "stats": stats}
        head = keeper_of(log)._dead(SHARD).head()
        head = replace(head, files={live.path: replace(live, add=add)})
        assert keeper_of(log)._expired(SHARD, head, 40)[0] == [], file


@pytest.mark.parametrize(
    ("bases", "publish", "lowest"),
    [
        ((None, 10, 20, 30), 1, 10),
        ((None, 10, 20, 30), 4, 40),
        # Set back to 5 in the third: what is published before it is judged by no less, what waits is.
        ((None, 10, 5, 15), 1, 5),
        ((None, 10, 5, 15), 2, 5),
        ((None, 10, 5, 15), 3, 15),
    ],
)
def test_the_lowest_watermark_is_that_of_every_record_which_is_not_published_yet(
    bases: tuple[int | None, ...], publish: int, lowest: int
) -> None:
    control = MemoryControl(MemoryWarehouse())
    marks = [*[base for base in bases[1:] if base is not None], 40]
    seals = [
        Seal(Txn(txn), WriterToken("w"), 0, Decision.COMMITTED, Digest(), watermark=marks[txn - 1], base=base)
        for txn, base in enumerate(bases, 1)
    ]
    control.seals.commit(control.seals.head(), Put({UPPER: len(seals) + 1}, seals, None))
    assert last_published(control, SHARD) is None
    assert step.lowest_watermark(control, None) is None
    last = Published(1, 0, StateCommit(Txn(publish), WriterToken("w"), Digest()))
    assert step.lowest_watermark(control, last) == lowest


def test_without_a_watermark_nothing_expires() -> None:
    control = MemoryControl(MemoryWarehouse())
    seals = [Seal(Txn(1), WriterToken("w"), 0, Decision.COMMITTED, Digest())]
    control.seals.commit(control.seals.head(), Put({UPPER: 2}, seals, None))
    last = Published(1, 0, StateCommit(Txn(1), WriterToken("w"), Digest()))
    assert step.lowest_watermark(control, last) is None
