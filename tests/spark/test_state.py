"""The state follows its log: folded, filtered, in one commit per publish, whatever happens in between."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder
from pyspark.sql import DataFrame, SparkSession

from tests.support.state import PIPELINE, SHARD, Row, StateRig, gone, ordered, rows_of
from tidemark.core.errors import Determinate, InvalidUsage
from tidemark.core.ids import ShardId, Txn, WriterToken
from tidemark.core.ledger import Conflict
from tidemark.core.publish import VERSION_NONE, Published, StateOverwritten, StateStatus, UpToDate
from tidemark.delta.head import read_head
from tidemark.delta.state_maintenance import DeltaStateKeeper, MaintainedState
from tidemark.delta.store import Store
from tidemark.pipeline import maintain
from tidemark.pipeline import publish as step
from tidemark.ports.planes import Tail
from tidemark.spark import tables, tail, views
from tidemark.spark.session import ROWS_FEW, confs_set
from tidemark.spark.state import SparkStatePlane
from tidemark.spark.state_table import StateSpecs

pytestmark = pytest.mark.spark


@pytest.fixture
def rig(spark: SparkSession, tmp_path: Path) -> StateRig:
    return StateRig(spark, tmp_path)


def test_u6_a_value_again_is_no_change_and_deletes_come_and_go(spark: SparkSession, tmp_path: Path) -> None:
    rig = StateRig(spark, tmp_path, change_data_feed=True)

    def published(*changes: Row) -> Published:
        rig.append(*changes)
        done = rig.publish()
        assert isinstance(done, Published)
        return done

    published(("a", "1"), ("b", "1"))
    second = published(("a", "1"), ("b", "2"), gone("absent"))
    assert rig.changes(second.version) == [("+", "b", "2"), ("-", "b", "1")]
    third = published(gone("a"), ("c", "3"))
    assert rig.changes(third.version) == [("+", "c", "3"), ("-", "a", "1")]
    fourth = published(("a", "1"), ("b", "2"))
    assert rig.changes(fourth.version) == [("+", "a", "1")]
    fifth = published(("a", "1"), gone("absent"))
    assert rig.changes(fifth.version) == []
    assert fifth.txn == 5
    assert rig.state() == [("a", "1"), ("b", "2"), ("c", "3")]
    assert step.verify_state(rig.control, rig.plane, SHARD).commit.digest.count == 3


def numbers(rig: StateRig, lower: int, upper: int, value: str | None) -> None:
    """One transaction of upserts, or of deletes where the value is None."""
    count = upper - lower
    rig.txn += 1
    rig.append_table(
        pa.table(
            {
                "k": [f"{key:05}" for key in range(lower, upper)], "v": [value] * count,
                "_txn": [rig.txn] * count, "_op": ["D" if value is None else "U"] * count,
                "_partition": ["p"] * count, "_offset": list(range(count)), "_ordinal": [0] * count,
            },
            schema=rig.arrow,
        )
    )  # fmt: skip


def test_u8_ten_thousand_keys_then_half_deleted_or_half_updated(spark: SparkSession, tmp_path: Path) -> None:
    """So many that Spark compiles code for them; rows that come again are no change to these either."""
    assert ROWS_FEW < 10_000
    deleted = StateRig(spark, tmp_path / "deleted")
    numbers(deleted, 0, 10_000, "1")
    deleted.publish()
    numbers(deleted, 0, 5_000, None)
    deleted.publish()
    frame = deleted.state_frame()
    assert frame.count() == 5_000
    assert frame.agg({"k": "min"}).first()[0] == "05000"

    updated = StateRig(spark, tmp_path / "updated", change_data_feed=True)
    numbers(updated, 0, 10_000, "1")
    updated.publish()
    numbers(updated, 2_500, 7_500, "2")
    published = updated.publish()
    assert updated.state_frame().count() == 10_000
    assert len(updated.changes(published.version)) == 2 * 5_000
    numbers(updated, 0, 10_000, "2")
    assert len(updated.changes(updated.publish().version)) == 2 * 5_000
    assert step.verify_state(updated.control, updated.plane, SHARD).commit.digest.count == 10_000


LATE: Sequence[Sequence[Row]] = (
    [("a", "a10", 10), ("b", "b10", 10), ("c", "c10", 10)],
    [("a", "a5", 5), ("b", "b10x", 10), gone("c", 7)],  # older; equal, later; a late delete
    [gone("a", 12), ("d", "d1", None)],
    [("a", "a11", 11), ("d", "d2", None), gone("e", 20)],  # below a tombstone; NULL is the oldest
    [("e", "e19", 19), ("d", "d0", 0), ("b", "b10y", 10)],
    [("d", "d3", None), gone("b", 10), ("c", "c11", 11)],
    [("b", "b10z", 10), ("e", "e20", 20), gone("d", 0)],  # equal to a tombstone, later
    [("d", "d-1", -1), ("a", "a12", 12)],
)
LATE_RESULT = [("a", "a12", 12), ("b", "b10z", 10), ("c", "c11", 11), ("e", "e20", 20)]


@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.sweep), 2, 8])
def test_u11_the_result_does_not_depend_on_when_publishes_happen(
    spark: SparkSession, tmp_path: Path, every: int
) -> None:
    rig = StateRig(spark, tmp_path, ddl="k STRING, v STRING, s BIGINT", sequence_by="s")
    for number, changes in enumerate(LATE, 1):
        rig.append(*changes)
        if number % every == 0:
            rig.publish()
    assert rig.fresh() == LATE_RESULT
    rig.publish()
    assert rig.state() == LATE_RESULT
    published = rig.last
    rebuilt = rig.rebuild()
    assert rebuilt.commit.digest == published.commit.digest
    assert rig.state() == LATE_RESULT


def test_u11_tombstones_outlive_a_rebuild_and_go_when_they_are_too_late(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = StateRig(spark, tmp_path, ddl="k STRING, v STRING, s BIGINT", sequence_by="s", lateness=5)
    rig.append(gone("a", 10))
    rig.publish()
    rig.rebuild()
    rig.append(("a", "late", 9))
    rig.publish()
    assert rig.state() == []
    rig.append(gone("b", 100))
    rig.publish()
    rig.append(gone("c", 101))
    rig.publish()
    monkeypatch.setattr(maintain, "watermark_below", lambda control, txn: 100)
    kept = MaintainedState(rig.spec.uri, sequence_by="s", lateness=5)
    keeper = DeltaStateKeeper(PIPELINE, {SHARD: kept})
    files = set(DeltaTable(rig.spec.tombstones).file_uris())
    assert maintain.expire_tombstones(rig.control, keeper, SHARD, generation=0).files == 1
    left = spark.read.format("delta").load(rig.spec.tombstones).select("k", "s").collect()
    assert sorted(tuple(row) for row in left) == [("b", 100), ("c", 101)]
    rig.append(("b", "late", 99), ("a", "in time", 99))
    for file in files - set(DeltaTable(rig.spec.tombstones).file_uris()):
        Path(file).unlink()
    assert rig.fresh() == [("a", "in time", 99)], "it does not read what has expired"


def seconds(number: int) -> datetime:
    return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=number, microseconds=123_456)


SEQUENCES: dict[str, Callable[[int], Any]] = {
    "BIGINT": int,
    "STRING": lambda number: f"{number:03}",
    "DATE": lambda number: date(2026, 1, 1) + timedelta(days=number),
    "TIMESTAMP": seconds,
    "TIMESTAMP_NTZ": lambda number: seconds(number).replace(tzinfo=None),
}


@pytest.mark.parametrize(
    "kind", ["TIMESTAMP", *[pytest.param(kind, marks=pytest.mark.sweep) for kind in SEQUENCES]]
)
def test_a_fresh_read_scans_the_state_once_unless_a_record_may_be_late(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Statistics decide whether a row of the state could win; what is published does not use them."""
    rig = StateRig(spark, tmp_path, ddl=f"k STRING, v STRING, s {kind}", sequence_by="s")
    scans: list[str] = []
    real, at = views.newer_rows, SEQUENCES[kind]

    def seen(state: Any, *args: Any, **known: Any) -> Any:
        found = real(state, *args, **known)
        scans.append("one" if found is None else "both" if found is state else "some files twice")
        return found

    monkeypatch.setattr(views, "newer_rows", seen)
    rig.append(("a", "1", at(10)), ("b", "1", at(20)), ("z", "1", at(5)))
    rig.publish()
    rig.append(("c", "1", at(40)))
    rig.publish()
    for changes, expected in (
        ([("a", "2", at(41)), gone("b", at(41)), ("d", "1", at(42))], "one"),
        (
            [("c", "late", at(39)), ("a", "3", at(50)), ("b", "late", at(40)), ("z", "2", at(40))],
            "some files twice",
        ),
        ([("z", "null", None), ("e", "1", None), gone("a", at(60))], "both"),
        ([("z", "late", at(3)), ("a", "late", at(59)), ("e", "2", at(0))], "both"),
    ):
        rig.append(*changes)
        read = rig.fresh()
        rig.publish()
        assert rig.state() == read
        assert scans.pop() == expected
    assert [row[:2] for row in read] == [("c", "1"), ("d", "1"), ("e", "2"), ("z", "2")]
    # Without statistics in the log nothing is known.
    monkeypatch.setattr(tables, "_bounds", lambda add, column: None)
    rig.append(("d", "late", at(41)), ("c", "2", at(100)))
    assert ("d", "1") in [row[:2] for row in rig.fresh()]
    assert scans == ["both"]


@pytest.mark.parametrize("sequence", [None, "s"])
def test_a_fresh_read_broadcasts_no_long_tail(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sequence: str | None
) -> None:
    def at(number: int) -> list[int]:
        return [number] if sequence else []

    rig = StateRig(spark, tmp_path, ddl="k STRING, v STRING, s INT", sequence_by=sequence)
    rig.append(("a", "1", 10), (None, "1", 20), ("b", "1", 30), ("x", "1", 1))
    rig.append(gone("x", *at(2)))
    rig.publish()
    rig.append(("a", "2", 9), (None, "2", 21), gone("b", *at(31)), ("c", "1", 1), ("x", "2", 1))
    expected = rig.fresh()
    with confs_set(spark, {"spark.sql.autoBroadcastJoinThreshold": "-1"}):
        assert "Broadcast" in plan_of(rig.fresh_frame())
        monkeypatch.setattr(tail, "BROADCAST_ROWS_MAX", 4)
        found = rig.fresh_frame()
        assert "Broadcast" not in plan_of(found)
        assert rows_of(found) == expected
    rig.publish()
    assert rig.state() == expected


def plan_of(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().optimizedPlan()) + str(frame._jdf.queryExecution().sparkPlan())


def test_u13_null_key_parts_are_values_in_publish_fresh_and_rebuild(
    spark: SparkSession, tmp_path: Path
) -> None:
    rig = StateRig(spark, tmp_path, ddl="x STRING, y STRING, v STRING", keys=("x", "y"))
    rig.append(("p", "q", "1"), (None, "r", "2"), ("s", None, "3"), ("t", "u", "4"), (None, None, "0"))
    rig.publish()
    rig.append((None, "r", "5"), ("t", "u", "6"), ("s", None, "7"))
    rig.publish()
    rig.append(gone("t", "u"), gone(None, None), (None, "r", "8"))
    expected = ordered([("p", "q", "1"), (None, "r", "8"), ("s", None, "7")])
    assert rig.fresh() == expected
    rig.publish()
    assert rig.state() == expected
    rig.rebuild()
    assert rig.state() == expected
    rig.append(("p", "q", "9"))
    assert "<=>" not in plan_of(rig.fresh_frame()), "its tail has no NULL, which would be slower to look up"
    rig.append((None, "r", "9"))
    assert "<=>" in plan_of(rig.fresh_frame())
    expected = ordered([("p", "q", "9"), (None, "r", "9"), ("s", None, "7")])
    assert rig.fresh() == expected
    rig.publish()
    assert rig.state() == expected


def test_invariant_15_every_version_of_the_state_is_at_a_transaction(rig: StateRig) -> None:
    """Invariant 15: one commit per publish, also with deletes, and each carries its transaction."""
    for number in range(4):
        rig.append(("a", str(number)), ("b", str(number)), gone("c") if number % 2 else ("c", str(number)))
        published = rig.publish()
        assert published.version == number
        assert DeltaTable(rig.spec.state).transaction_version("tidemark/p/t") == number + 1


def test_invariant_5_a_publish_that_is_not_on_record_is_recorded_not_repeated(
    rig: StateRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invariant 5: the publisher died between the state's commit and its record."""
    rig.append(("a", "1"), ("b", "1"))
    rig.publish()
    rig.append(("a", "2"), gone("b"))

    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(step, "put_record", die)
        with pytest.raises(KeyboardInterrupt):
            rig.publish("dies")
    assert rig.last.txn == 1
    assert isinstance(rig.publish("next"), UpToDate)
    assert rig.last.txn == 2
    assert rig.last.token == "dies"
    assert DeltaTable(rig.spec.state).version() == 1
    rig.append(("c", "3"))
    rig.publish()
    assert rig.state() == [("a", "2"), ("c", "3")]


def test_publishing_again_does_nothing(rig: StateRig) -> None:
    rig.append(("a", "1"))
    assert isinstance(rig.publish(), Published)
    assert isinstance(rig.publish("again"), UpToDate)
    assert DeltaTable(rig.spec.state).version() == 0


def test_m13_a_publisher_and_a_reader_notice_a_stranger_s_commit(rig: StateRig) -> None:
    rig.append(("a", "1"))
    rig.publish()
    rig.spark.sql(f"UPDATE delta.`{rig.spec.state}` SET v = 'x'")
    rig.append(("b", "1"))
    with pytest.raises(StateOverwritten, match="UPDATE"):
        rig.publish()
    with pytest.raises(StateOverwritten, match="UPDATE"):
        step.checked_record(rig.control, rig.plane, SHARD)
    rig.rebuild()
    assert rig.state() == [("a", "1"), ("b", "1")]
    rig.append(("c", "1"))
    rig.publish()
    assert rig.state() == [("a", "1"), ("b", "1"), ("c", "1")]


def test_m13_a_log_entry_that_was_overwritten_is_noticed(rig: StateRig) -> None:
    """A second JVM on a local disk put its own commit where the recorded one was."""
    rig.append(("a", "1"))
    rig.publish("first")
    entry = Path(rig.spec.state) / "_delta_log" / f"{0:020}.json"
    entry.write_text(entry.read_text().replace("first", "other"))
    rig.append(("b", "1"))
    with pytest.raises(StateOverwritten, match="written by other, but the record says first"):
        rig.publish()


@pytest.mark.parametrize("deletion_vectors", [True, False])
def test_e4_a_table_that_has_rows_gets_a_column(
    spark: SparkSession, tmp_path: Path, deletion_vectors: bool
) -> None:
    """Old rows are NULL in it and keep their digests, in every way to read, rebuild and publish."""
    rig = StateRig(spark, tmp_path, deletion_vectors=deletion_vectors)
    rig.append(("a", "1"), ("b", "1"), ("c", "1"))
    first = rig.publish()
    rig.append(("b", "2"))
    wide = rig.widened("k STRING, n BIGINT, v STRING, tags ARRAY<STRUCT<`a-b`: INT>>")
    assert wide.fresh() == [("a", None, "1", None), ("b", None, "2", None), ("c", None, "1", None)]
    assert step.verify_state(wide.control, wide.plane, SHARD) == first
    wide.append(("a", 7, "2", [{"a-b": 1}]), gone("c"))
    assert rig.widened(wide.ddl).fresh()[0][:3] == ("a", 7, "2")
    second = wide.publish()
    assert [row[:3] for row in rows_of(wide.state_frame().select("k", "n", "v"))] == [
        ("a", 7, "2"), ("b", None, "2"),
    ]  # fmt: skip
    assert step.verify_state(wide.control, wide.plane, SHARD) == second
    assert wide.plane.digest(SHARD, first.version) == first.commit.digest
    assert wide.rebuild().commit.digest == second.commit.digest
    wide.append(("d", None, "4", None))
    assert wide.publish().commit.digest.count == 3
    with pytest.raises(
        InvalidUsage, match="column 'n' is recorded as BIGINT, and the pipeline file does not declare it"
    ):
        rig.widened(rig.ddl).fresh()


def test_compaction_of_a_state_is_nobody_s_publish(rig: StateRig) -> None:
    rig.append(("a", "1"))
    rig.publish()
    rig.append(("b", "1"))
    rig.publish()
    rig.spark.sql(f"OPTIMIZE delta.`{rig.spec.state}`")
    rig.append(("b", "2"), gone("a"))
    assert rig.publish().version == 3
    assert rig.state() == [("b", "2")]


def aged(table: str, *, days: int) -> None:
    """Let a table's commits be so old."""
    then = time.time() - days * 86_400
    for commit in Path(table, "_delta_log").glob("*.json"):
        os.utime(commit, (then, then))


def test_regression_a_state_that_was_compacted_long_after_its_publish_can_be_published(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Delta refuses to read a version that is older than what VACUUM may take and not the newest."""
    rig = StateRig(spark, tmp_path, deletion_vectors=False)
    for key in ("a", "b"):
        rig.append((key, "1"))
        rig.publish()
    aged(rig.spec.state, days=10)
    spark.sql(f"OPTIMIZE delta.`{rig.spec.state}`")
    rig.append(("b", "2"))
    assert rig.fresh() == [("a", "1"), ("b", "2")]
    rig.publish()
    assert rig.state() == [("a", "1"), ("b", "2")]


def test_regression_a_publish_that_died_after_its_tombstones_is_done_again_long_after(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = StateRig(spark, tmp_path, ddl="k STRING, v STRING, s BIGINT", sequence_by="s")
    rig.append(("a", "1", 1), gone("b", 10))
    rig.publish()
    aged(rig.spec.tombstones, days=10)
    rig.append(gone("a", 5), ("b", "late", 9))
    with monkeypatch.context() as patch:
        patch.setattr(SparkStatePlane, "_commit", Mock(side_effect=Determinate("it was killed")))
        with pytest.raises(Determinate, match="it was killed"):
            rig.publish()
    assert rig.fresh() == []
    # What the state on record needs is not the newest now, and maintenance leaves it alone.
    left, keeper = rig.last, DeltaStateKeeper("p", {SHARD: MaintainedState(rig.spec.uri)})
    assert left is not None
    newest = DeltaTable(rig.spec.tombstones).version()
    assert newest > left.commit.tombstones
    keeper.merge(SHARD, tombstones=left.commit.tombstones)
    assert DeltaTable(rig.spec.tombstones).version() == newest
    rig.publish()
    assert rig.state() == []
    keeper.merge(SHARD, tombstones=newest)
    assert DeltaTable(rig.spec.tombstones).version() > newest


def test_other_engines_read_the_same_state(rig: StateRig) -> None:
    import polars as pl

    rig.append(*[(f"k{number}", str(number)) for number in range(50)])
    rig.publish()
    rig.append(("k1", "x"), gone("k2"), ("new", "y"))
    rig.publish()
    table = DeltaTable(rig.spec.state)
    found = QueryBuilder().register("state", table).execute("SELECT k, v FROM state").read_all()
    by_delta_rs = ordered(list(zip(*(pa.table(found)[name].to_pylist() for name in ("k", "v")), strict=True)))
    assert by_delta_rs == rig.state()
    assert ordered(pl.scan_delta(rig.spec.state).select("k", "v").collect().rows()) == rig.state()


@pytest.mark.parametrize("deletion_vectors", [True, False])
def test_with_and_without_vectors_the_rows_and_the_feed_are_the_same(
    spark: SparkSession, tmp_path: Path, deletion_vectors: bool
) -> None:
    rig = StateRig(spark, tmp_path, change_data_feed=True, deletion_vectors=deletion_vectors)
    rig.append(("a", "1"), ("b", "1"), (None, "1"), ("c", "1"))
    rig.publish()
    rig.append(("a", "2"), gone(None), gone("b"), ("d", "1"), gone("absent"), ("c", "1"))
    published = rig.publish()
    assert (Path(rig.spec.state) / "_vectors").is_dir() is deletion_vectors
    assert rig.changes(published.version) == ordered(
        [("-", "a", "1"), ("+", "a", "2"), ("-", None, "1"), ("-", "b", "1"), ("+", "d", "1")]
    )
    assert rig.state() == [("a", "2"), ("c", "1"), ("d", "1")]
    step.verify_state(rig.control, rig.plane, SHARD)
    rig.append(("d", "2"), gone("c"), ("b", "3"))
    rig.publish()
    assert rig.state() == [("a", "2"), ("b", "3"), ("d", "2")]
    step.verify_state(rig.control, rig.plane, SHARD)
    assert rig.plane.state_status(SHARD, rig.last).txn == 3


@pytest.mark.parametrize("late", [pytest.param("upserts", marks=pytest.mark.sweep), "deletes", "new keys"])
def test_m13_a_commit_on_a_base_that_another_was_made_on_never_counts(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: str
) -> None:
    """The late publisher looked before the other one committed, and commits after it; over Connect in
    `test_state_connect.py`."""
    rig = StateRig(spark, tmp_path)
    rig.append(("a", "1"), ("b", "1"))
    base = rig.publish()
    rig.append(("a", "2"))
    first = Tail(Txn(2), Txn(3), rig.control.log(SHARD).head().version, link=2)
    changes: dict[str, list[Row]] = {
        "upserts": [("a", "3")], "deletes": [("a", "1"), gone("b")], "new keys": [("a", "1"), ("c", "3")],
    }  # fmt: skip
    rig.append(*changes[late])
    longer = Tail(Txn(2), Txn(4), rig.control.log(SHARD).head().version, link=3)
    overtake(monkeypatch, first, base)
    assert rig.plane.publish(SHARD, longer, base=base, token=WriterToken("late")) == Conflict()
    assert rig.state() == [("a", "2"), ("b", "1")]
    named = {Path(uri).name for uri in DeltaTable(rig.spec.state).file_uris()}
    there = {
        path.name for path in Path(rig.spec.state).rglob("*.parquet") if path.parent.name != "_delta_log"
    }
    assert there == named, "no file stays"
    rig.publish()
    fold = {"upserts": [("a", "3"), ("b", "1")], "deletes": [("a", "1")]}
    assert rig.state() == fold.get(late, [("a", "1"), ("b", "1"), ("c", "3")])
    step.verify_state(rig.control, rig.plane, SHARD)


def overtake(patch: pytest.MonkeyPatch, tail: Tail, base: Published | None) -> None:
    """Let another publisher commit a tail just before the next commit of a state."""
    commit = SparkStatePlane._commit

    def overtaken(self: SparkStatePlane, *args: Any, **change: Any) -> object:
        patch.setattr(SparkStatePlane, "_commit", commit)
        self.publish(SHARD, tail, base=base, token=WriterToken("other"))
        return commit(self, *args, **change)

    patch.setattr(SparkStatePlane, "_commit", overtaken)


def test_m13_a_publisher_that_is_overtaken_decides_again_and_both_are_on_record(
    rig: StateRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a lock: the other one's commit is put on record for it, the rest of the tail is published."""
    rig.append(("a", "1"), ("b", "1"))
    base = rig.publish()
    rig.append(("a", "2"))
    first = Tail(Txn(2), Txn(3), rig.control.log(SHARD).head().version, link=2)
    rig.append(("c", "3"), gone("b"))
    overtake(monkeypatch, first, base)
    assert rig.publish("late").txn == 3
    ledger = rig.control.publishes(SHARD)
    assert [(one.txn, one.token) for one in ledger.read(0, ledger.head().upper)] == [
        (1, "publisher1"), (2, "other"), (3, "late"),
    ]  # fmt: skip
    assert rig.state() == [("a", "2"), ("c", "3")]
    step.verify_state(rig.control, rig.plane, SHARD)


def test_a_scan_opens_only_files_that_may_have_a_key_of_the_tail(spark: SparkSession, tmp_path: Path) -> None:
    rig = StateRig(spark, tmp_path, says_keys=False)
    for keys in ("ab", "xz"):
        rig.append(*[(key, "1") for key in keys])
        rig.publish()
    files = Path(rig.spec.state).rglob("part-*.parquet")
    far = [name for name in files if "x" in pq.ParquetFile(name).read()["k"].to_pylist()]
    hidden = [name.rename(name.with_suffix(".hidden")) for name in far]
    rig.append(("a", "2"), gone("b"), ("c", "1"))
    rig.publish()
    assert len(hidden) == 1
    hidden[0].rename(far[0])
    assert rig.state() == [("a", "2"), ("c", "1"), ("x", "1"), ("z", "1")]
    rig.append(("a", "3"), ("z", "2"))
    rig.publish()
    assert rig.state() == [("a", "3"), ("c", "1"), ("x", "1"), ("z", "2")]


def test_a_state_is_rebuilt_from_an_earlier_publish_and_the_tail(rig: StateRig) -> None:
    rig.append(("a", "1"), ("b", "1"))
    first = rig.publish()
    rig.append(("a", "2"), gone("b"))
    rig.publish()
    rig.spark.sql(f"DELETE FROM delta.`{rig.spec.state}` WHERE k = 'a'")
    rebuilt = rig.rebuild(base=first)
    assert rig.state() == [("a", "2")]
    assert rebuilt.txn == 2
    assert step.checked_record(rig.control, rig.plane, SHARD) == rebuilt


def test_a_first_publish_of_deletes_only_makes_an_empty_state(rig: StateRig) -> None:
    rig.append(gone("a"))
    rig.publish()
    assert rig.state() == []
    rig.append(("a", "1"))
    rig.publish()
    assert rig.state() == [("a", "1")]


def test_rows_without_keys_are_all_kept(spark: SparkSession, tmp_path: Path) -> None:
    rig = StateRig(spark, tmp_path, keys=())
    rig.append(("a", "1"), ("a", "1"))
    rig.publish(WriterToken("one"))
    rig.append(("a", "1"))
    assert rig.fresh() == [("a", "1")] * 3
    rig.publish(WriterToken("two"))
    assert rig.state() == [("a", "1")] * 3


def test_regression_m13_publishes_between_a_readers_two_looks_are_no_strangers(
    rig: StateRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader has read the record, and is stopped; two publishers have done their work when it looks at the
    table."""
    rig.append(("a", "1"))
    rig.publish()
    look, looks = rig.plane.state_status, []

    def late(shard: ShardId, since: Published | None) -> StateStatus:
        looks.append(since)
        if len(looks) == 1:
            for value in ("2", "3"):
                rig.append(("a", value))
                step.publish(rig.control, other, SHARD, token=WriterToken(f"other{value}"))
        return look(shard, since)

    other = SparkStatePlane(rig.spark, StateSpecs("p", {SHARD: rig.spec}))
    monkeypatch.setattr(rig.plane, "state_status", late)
    found = step.checked_record(rig.control, rig.plane, SHARD)
    assert (found is not None and found.txn, len(looks)) == (3, 2)
    rig.spark.sql(f"DELETE FROM delta.`{rig.spec.state}`")
    with pytest.raises(StateOverwritten, match="DELETE"):
        step.checked_record(rig.control, rig.plane, SHARD)


def test_regression_a_state_keeps_its_history_for_longer_than_delta_keeps_a_log_by_itself(
    rig: StateRig,
) -> None:
    """From the first publish on, and where the days are raised later."""
    rig.append(("a", "1"))
    rig.publish()
    specs = StateSpecs("p", {SHARD: replace(rig.spec, history_days=60)})
    DeltaStateKeeper("p", {SHARD: MaintainedState(rig.spec.uri, 60)}).vacuum(SHARD, tombstones=VERSION_NONE)
    kept = {f"delta.{name}RetentionDuration": "interval 60 days" for name in ("deletedFile", "log")}
    assert kept.items() <= read_head(Store(rig.spec.state, {})).configuration.items()
    rig.plane = SparkStatePlane(rig.spark, specs)
    rig.append(("a", "2"))
    rig.publish()
    new = StateRig(rig.spark, rig.root / "new")
    new.spec = replace(new.spec, history_days=60)
    new.plane = SparkStatePlane(rig.spark, StateSpecs("p", {SHARD: new.spec}))
    new.append(("a", "1"))
    new.publish()
    assert kept.items() <= read_head(Store(new.spec.state, {})).configuration.items()
    assert new.state() == [("a", "1")]


def test_a_state_without_a_log_has_nothing_to_be_rebuilt_from(rig: StateRig) -> None:
    with pytest.raises(InvalidUsage, match="nothing to rebuild from"):
        rig.rebuild()
