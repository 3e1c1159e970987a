"""The upsert envelope through files on disk: scenarios U1 to U7, U10 to U13."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support.ingest import TABLE, Rig, Row, make_rig, state
from tidemark.core.errors import InvalidUsage
from tidemark.core.ids import WriterToken

pytestmark = pytest.mark.spark

PAIR = {"schema": "p STRING, q STRING, v STRING", "keys": ["p", "q"], "apply_as_deletes": "v IS NULL"}


def kv(key: Any, value: Any) -> Row:
    return {"k": key, "v": value}


def pqv(p: Any, q: Any, value: Any) -> Row:
    return {"p": p, "q": q, "v": value}


U1 = [kv("a", "1"), kv("b", "1"), kv("c", "1"), kv("d", "1"), kv("b", None), kv("c", "2"), kv("e", "1")]
U1 += [kv("d", None), kv("e", "2")]
U3 = [pqv("p", "q", "1"), pqv(None, "r", "2"), pqv("s", None, "3"), pqv("t", "u", "4"), pqv(None, "r", "5")]
U3 += [pqv("t", "u", "6"), pqv("s", None, "7"), pqv("t", "u", None)]

CASES: list[Any] = [
    pytest.param({}, U1, {"a": "1", "c": "2", "e": "2"}, id="u1-last-value-wins"),
    pytest.param({}, [kv("k", None), kv("k", "2")], {"k": "2"}, id="u2-delete-then-insert"),
    pytest.param(PAIR, U3, {("p", "q"): "1", (None, "r"): "5", ("s", None): "7"}, id="u3-u13-null-key-parts"),
    pytest.param(PAIR, U3[1:], {(None, "r"): "5", ("s", None): "7"}, id="u3-from-offset-1"),
    pytest.param(
        PAIR,
        [pqv("A", "Z", "1"), pqv("A", "Z", "2"), pqv("B", "Z", "3")],
        {("A", "Z"): "2", ("B", "Z"): "3"},
        id="u4-compound-key",
    ),
    pytest.param(
        {},
        [kv("cafe\u0301", "1"), kv("caf\u00e9", "2"), kv("cafe", "3")],
        {"cafe\u0301": "1", "caf\u00e9": "2", "cafe": "3"},
        id="u5-accents-stay-apart",
    ),
    pytest.param({}, [kv("x", None)], {}, id="u6-delete-of-an-absent-key"),
    pytest.param({}, [kv("x", "1"), kv("x", "1"), kv("x", None), kv("x", "1")], {"x": "1"}, id="u6-again"),
]


@pytest.mark.parametrize(("shard", "records", "expected"), CASES)
def test_records_fold_to_the_last_value_of_each_key(
    spark: SparkSession, tmp_path: Path, shard: Row, records: list[Row], expected: dict[Any, Any]
) -> None:
    """Scenarios U1 to U6 and U13, with 1, 2 and 5 files: the same rows, the same digests."""
    columns = tuple(shard["keys"]) + ("v",) if shard else ("k", "v")
    digests = []
    for files in (1, 2, 5):
        (tmp_path / str(files)).mkdir()
        rig = make_rig(spark, tmp_path / str(files), *([shard] if shard else []))
        staged = rig.stage(records, files=files)
        rows = rig.rows(staged)
        assert state(rows, *columns) == expected
        assert len(rows) == len({tuple(row[key] for key in columns[:-1]) for row in records})
        assert staged.source.count == len(records)
        digests.append(dict(staged.digests))
    # So few records are one task's work; the same in two stages must come to the same.
    rig.txn = rig.bound = 0
    binding = rig.bind_records(records, files=files)
    digests.append(dict(rig.plane(**{"spark.sql.shuffle.partitions": "2"}).replay(binding).digests))
    assert all(found == digests[0] for found in digests)


def test_split_in_two_each_transaction_has_a_key_once(spark: SparkSession, tmp_path: Path) -> None:
    """Scenario U1 split: the deletes of the second transaction are rows with their keys only."""
    rig = make_rig(spark, tmp_path)
    first, second = rig.stage(U1[:4]), rig.stage(U1[4:], files=2, token="x")
    assert state(rig.rows(first)) == dict.fromkeys("abcd", "1")
    rows = {row["k"]: row for row in rig.rows(second)}
    assert {key: (row["_op"], row["v"]) for key, row in rows.items()} == {
        "b": ("D", None),
        "c": ("U", "2"),
        "d": ("D", None),
        "e": ("U", "2"),
    }
    assert {row["_txn"] for row in rows.values()} == {2}
    assert (rows["d"]["_partition"], rows["d"]["_offset"], rows["d"]["_ordinal"]) == ("files", 2, 0)


@pytest.mark.slow
def test_u7_a_million_updates_of_one_key_are_one_row(spark: SparkSession, tmp_path: Path) -> None:
    rig = make_rig(spark, tmp_path)
    path = tmp_path / "in" / "big.json"
    with path.open("w") as file:
        file.writelines(f'{{"k": "one", "v": "{number}"}}\n' for number in range(1_000_000))
    staged = rig.plane().stage(rig.bind(["big.json"]), WriterToken("w"))
    assert [(row["k"], row["v"], row["_ordinal"]) for row in rig.rows(staged)] == [("one", "999999", 999_999)]
    assert staged.source.count == 1_000_000


def test_u10_large_values_and_keys_keep_the_newest(spark: SparkSession, tmp_path: Path) -> None:
    rig = make_rig(spark, tmp_path)
    long_key = "k" * 1_000_000
    records = [kv("a", "x" * 100_000), kv(long_key, "1"), kv("a", "y" * 1_000_000), kv("b", "z" * 500_000)]
    records += [kv(long_key, "2"), kv("b", None), kv("a", "w" * 500_000)]
    staged = rig.stage(records, files=2)
    assert state(rig.rows(staged)) == {"a": "w" * 500_000, long_key: "2"}
    assert dict(rig.plane().read_back(staged)) == dict(staged.digests)


SEQUENCED = {
    "schema": "k STRING, n BIGINT, v STRING",
    "keys": ["k"],
    "sequence_by": "n",
    "apply_as_deletes": "op = 'd'",
}


def test_u11_the_sequence_decides_then_the_position(spark: SparkSession, tmp_path: Path) -> None:
    """Scenario U11 in one transaction: older never wins, equals fall back to the position. A record
    without a sequence has no place in the order: it is set aside, whether it writes or deletes."""
    rig = make_rig(spark, tmp_path, SEQUENCED)

    def change(key: str, sequence: int | None, value: str | None, op: str = "u") -> Row:
        return {"k": key, "n": sequence, "v": value, "op": op}

    records = [
        change("older", 10, "new"), change("older", 5, "old"),
        change("equal", 7, "first"), change("equal", 7, "second"),
        change("late-delete", 10, "kept"), change("late-delete", 3, None, "d"),
        change("deleted", 10, None, "d"), change("deleted", 5, "back"),
        change("null", 1, "kept"), change("null", None, "lost"), change("null", None, None, "d"),
    ]  # fmt: skip
    staged = rig.stage(records, files=5)
    rows = {row["k"]: row for row in rig.rows(staged)}
    assert {key: (row["_op"], row["n"], row["v"]) for key, row in rows.items()} == {
        "older": ("U", 10, "new"),
        "equal": ("U", 7, "second"),
        "late-delete": ("U", 10, "kept"),
        "deleted": ("D", 10, None),
        "null": ("U", 1, "kept"),
    }
    aside = [(row["_key"], row["_reason"]) for row in rig.rows(staged, "quarantine")]
    assert aside == [('{"k":"null"}', "sequence_by column 'n' is NULL")] * 2
    assert "op" not in rows["older"]


def test_u12_the_file_with_the_higher_number_wins(spark: SparkSession, tmp_path: Path) -> None:
    rig = make_rig(spark, tmp_path)
    names = ["z sp\u00e4t.json", "b {1}*?#%20+.json", "sub/a.json"]
    for number, name in enumerate(names):
        rig.write(name, [json.dumps(kv("k", str(number))), json.dumps(kv(name, "x"))])
    binding = rig.bind(names)
    staged = rig.plane().stage(binding, WriterToken("w"))
    rows = {row["k"]: row for row in rig.rows(staged)}
    assert (rows["k"]["v"], rows["k"]["_offset"], rows["k"]["_ordinal"]) == ("2", 2, 0)
    assert {name: rows[name]["_offset"] for name in names} == {name: i for i, name in enumerate(names)}
    assert dict(rig.plane().replay(binding).digests) == dict(staged.digests)


def test_lateness_sets_too_late_records_aside_and_moves_the_watermark(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A record further than the lateness below the watermark goes to quarantine, whatever the state."""
    rig = make_rig(spark, tmp_path, {**SEQUENCED, "lateness": 10})
    records = [{"k": key, "n": n, "v": "x", "op": "u"} for key, n in (("a", 89), ("b", 90), ("c", 120))]
    rig.watermark = 100
    staged = rig.stage(records)
    assert sorted(row["k"] for row in rig.rows(staged)) == ["b", "c"]
    assert staged.watermark == 120
    (late,) = rig.rows(staged, "quarantine")
    assert late["_reason"] == "too late: sequence 89 is more than 10 below the watermark 100"


def test_parts_are_sorted_by_key_with_true_statistics_and_no_other_file(
    spark: SparkSession, tmp_path: Path
) -> None:
    rig = make_rig(spark, tmp_path)
    staged = rig.stage([kv(f"k{number:03}", "v") for number in range(200, 0, -1)], files=3)
    (part,) = staged.shards[TABLE].parts
    assert part.path.startswith("_txn-00000000000000000001/w/part-")
    assert [path.stat().st_size for path in rig.files_on_disk()] == [part.bytes]
    assert [row["k"] for row in rig.rows(staged)] == [f"k{number:03}" for number in range(1, 201)]
    stats = json.loads(part.stats)
    assert stats["numRecords"] == part.rows == 200
    assert (stats["minValues"]["k"], stats["maxValues"]["k"], stats["nullCount"]["k"]) == ("k001", "k200", 0)
    assert (stats["minValues"]["_txn"], stats["maxValues"]["_txn"]) == (1, 1)


@pytest.fixture
def rig(spark: SparkSession, tmp_path: Path) -> Rig:
    return make_rig(spark, tmp_path)


def test_invariant_4_discarding_an_attempt_leaves_the_others_alone(rig: Rig) -> None:
    """Invariant 4: a loser removes its own files, never a winner's."""
    binding = rig.bind_records([kv("a", "1")])
    plane = rig.plane()
    plane.stage(binding, WriterToken("loser"))
    won = plane.stage(binding, WriterToken("winner"))
    assert plane.attempts() == [(1, "loser"), (1, "winner")]
    plane.discard(binding.txn, WriterToken("loser"))
    plane.discard(binding.txn, WriterToken("loser"))
    assert plane.attempts() == [(1, "winner")]
    assert state(rig.rows(won)) == {"a": "1"}


def test_invariant_4_a_token_used_twice_is_refused_and_removes_nothing(rig: Rig) -> None:
    """Invariant 4: the first attempt may be sealed, so a second one under its token must not touch it."""
    binding = rig.bind_records([kv("a", "1")])
    staged = rig.plane().stage(binding, WriterToken("w"))
    with pytest.raises(InvalidUsage, match="has already staged transaction 1"):
        rig.plane().stage(binding, WriterToken("w"))
    assert state(rig.rows(staged)) == {"a": "1"}


def test_p8_a_replay_writes_no_byte(rig: Rig) -> None:
    binding = rig.bind_records([kv("a", "1"), "broken", kv("b", "1")])
    staged = rig.plane().stage(binding, WriterToken("w"))
    before = [(path, path.stat().st_mtime_ns) for path in rig.files_on_disk()]
    replayed = rig.plane().replay(binding)
    assert dict(replayed.digests) == dict(staged.digests)
    assert [(path, path.stat().st_mtime_ns) for path in rig.files_on_disk()] == before


def test_p9_an_empty_transaction_counts_zero_and_writes_nothing(rig: Rig) -> None:
    rig.write("empty.json", [])
    staged = rig.plane().stage(rig.bind(["empty.json"]), WriterToken("w"))
    assert (staged.source.count, dict(staged.shards), rig.files_on_disk()) == (0, {}, [])


def test_one_shard_costs_one_job(rig: Rig) -> None:
    binding = rig.bind_records([kv("a", "1"), kv("b", "1"), kv("a", "2")], files=3)
    plane = rig.plane()
    assert jobs_of(rig.spark, lambda: plane.stage(binding, WriterToken("w"))) == 1


def jobs_of(spark: SparkSession, work: Callable[[], object]) -> int:
    """How many Spark jobs the work starts."""
    context = spark.sparkContext
    context.setJobGroup("counted", "counted")
    try:
        work()
    finally:
        context.setLocalProperty("spark.jobGroup.id", "")
    return len(context.statusTracker().getJobIdsForGroup("counted"))
