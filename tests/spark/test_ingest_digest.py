"""Digests and the fold on DataFrames: golden vectors, what they notice, and what they must not notice."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import CalendarIntervalType, StructType

from tests.support.ingest import make_rig
from tests.support.memory.fold import Change, Position
from tests.support.memory.fold import fold as core_fold
from tidemark.core.checksum import ENCODING, SOURCE, Digest
from tidemark.core.errors import InvalidUsage
from tidemark.core.ids import Txn, WriterToken
from tidemark.sources.files.bound_files import BoundFile
from tidemark.sources.files.content import BLOCK_BYTES, line_place
from tidemark.spark.digest import digest_of, partials, row_hash
from tidemark.spark.fold import FoldRule, fold, is_last
from tidemark.spark.read import READ_CONFS, parts_for, read_lines

pytestmark = pytest.mark.spark

DDL = "s STRING, i INT, l BIGINT, d DOUBLE, m MAP<STRING,INT>, a ARRAY<STRING>, r STRUCT<x: INT, y: STRING>"
NONE: tuple[Any, ...] = (None,) * 7
GOLDEN: list[tuple[tuple[Any, ...], int]] = [
    (NONE, 8420071140774656230),
    (("", 1, 1, 0.0, {}, [], (None, None)), -3499414830273483488),
    (("é", -1, 1 << 40, 1.5, {"b": 2, "a": None}, ["x", None, ""], (7, "y")), 1016204612829133916),
]


def hashes(spark: SparkSession, rows: list[tuple[Any, ...]], ddl: str = DDL) -> list[int]:
    frame = spark.createDataFrame([(*row, number) for number, row in enumerate(rows)], f"{ddl}, _n INT")
    columns = StructType(frame.schema.fields[:-1])
    return [row[0] for row in frame.select(row_hash(columns), "_n").orderBy("_n").collect()]


def test_invariant_7_the_encoding_is_held_in_place_by_golden_vectors(spark: SparkSession) -> None:
    """Invariant 7: a hash that changes needs a new encoding number; these belong to encoding 2."""
    assert ENCODING == 2
    assert hashes(spark, [row for row, _ in GOLDEN]) == [value for _, value in GOLDEN]


def test_rows_that_differ_have_different_hashes(spark: SparkSession) -> None:
    """NULL against '', a value in the next column, sizes and nesting; none of it looks the same."""
    ddl = "a STRING, b STRING, c ARRAY<STRING>, d ARRAY<ARRAY<INT>>, e STRUCT<x: STRING, y: STRING>"
    base: tuple[Any, ...] = (None, None, None, None, None)
    rows: list[tuple[Any, ...]] = [
        base,
        ("", None, None, None, None),
        ("a", None, None, None, None),
        (None, "a", None, None, None),
        (None, None, [], None, None),
        (None, None, [None], None, None),
        (None, None, [""], None, None),
        (None, None, ["", None], None, None),
        (None, None, [None, ""], None, None),
        (None, None, None, [[1], [2]], None),
        (None, None, None, [[1, 2]], None),
        (None, None, None, [[1, 2], []], None),
        (None, None, None, None, (None, None)),
        (None, None, None, None, ("a", None)),
        (None, None, None, None, (None, "a")),
    ]
    assert len(set(hashes(spark, rows, ddl))) == len(rows)


def test_a_column_that_is_null_everywhere_and_the_order_of_columns_change_no_hash(
    spark: SparkSession,
) -> None:
    """So a table that gets a column keeps its digests; a value in it counts, and so does its name."""
    before = hashes(spark, [("a", 1), (None, 2), (None, None)], "s STRING, n INT")
    added = "m MAP<STRING,INT>, n INT, s STRING, r STRUCT<x: INT>, a ARRAY<INT>, t STRING"
    rows = [(None, 1, "a", None, None, None), (None, 2, None, None, None, None), (None,) * 6]
    assert hashes(spark, rows, added) == before
    (valued,) = hashes(spark, [(None, 1, "a", None, None, "t")], added)
    (renamed,) = hashes(spark, [("a", 1)], "t STRING, n INT")
    assert len({before[0], valued, renamed}) == 3


def test_values_that_are_one_to_sql_have_one_hash(spark: SparkSession) -> None:
    zero, minus_zero = hashes(spark, [(0.0,), (-0.0,)], "d DOUBLE")
    assert zero == minus_zero
    ab, ba = hashes(spark, [({"a": 1, "b": 2},), ({"b": 2, "a": 1},)], "m MAP<STRING,INT>")
    assert ab == ba


def test_a_type_without_a_fixed_form_is_refused() -> None:
    with pytest.raises(InvalidUsage, match="no fixed encoding"):
        row_hash(StructType().add("x", CalendarIntervalType()))


def test_spark_counts_what_the_core_counts(spark: SparkSession) -> None:
    values = [(f"v{number % 7}",) for number in range(50)]
    frame = spark.createDataFrame(values, "v STRING")
    frame = frame.withColumn("h", row_hash(frame.schema))
    (found,) = frame.agg(*partials(F.col("h"), prefix="x_")).collect()
    assert digest_of(found.asDict(), prefix="x_") == Digest.of(row["h"] for row in frame.collect())
    (empty,) = frame.where("false").agg(*partials(F.col("h"), prefix="x_")).collect()
    assert digest_of(empty.asDict(), prefix="x_") == Digest()


def random_changes(seed: int, count: int) -> list[Change]:
    """Few keys, few sequences, NULLs among both, every position once."""
    rng = random.Random(seed)
    places = [(txn, p, o) for txn in (1, 2) for p in ("p0", "p1") for o in range(count // 4)]
    rng.shuffle(places)
    return [
        Change(
            (rng.choice(["a", "b", "é", "", None]), rng.choice([1, 2, None])),
            rng.choice([None, f"v{number}"]),
            Txn(txn),
            Position(partition, offset),
            rng.choice([None, 1, 2, 3, 10]),
        )
        for number, (txn, partition, offset) in enumerate(places)
    ]


def frame_of(spark: SparkSession, changes: list[Change]) -> DataFrame:
    rows = [
        (*change.key, change.sequence, change.value, change.txn, "D" if change.deletes else "U")
        + (change.position.partition, change.position.offset, 0)
        for change in changes
    ]
    columns = "k1 STRING, k2 INT, n BIGINT, v STRING, _txn BIGINT, _op STRING, _partition STRING"
    return spark.createDataFrame(rows, f"{columns}, _offset BIGINT, _ordinal BIGINT")


@pytest.mark.parametrize("sequence_by", [None, "n"])
def test_the_fold_is_the_core_s_fold(spark: SparkSession, sequence_by: str | None) -> None:
    """Invariant 6: for 600 random changes Spark and the core choose the same row of every key."""
    changes = random_changes(7, 600)
    folded = fold(frame_of(spark, changes).repartition(5), FoldRule(("k1", "k2"), sequence_by))
    found = {(row["k1"], row["k2"]): (row["v"], row["_txn"], row["_offset"]) for row in folded.collect()}
    if sequence_by is None:
        changes = [Change(c.key, c.value, c.txn, c.position) for c in changes]
    expected = {
        key: (change.value, change.txn, change.position.offset) for key, change in core_fold(changes).items()
    }
    assert found == expected


@pytest.mark.parametrize("sequence_by", [None, "n"])
def test_both_spellings_of_the_fold_choose_the_same_row(spark: SparkSession, sequence_by: str | None) -> None:
    """Invariant 6: within one transaction the marked rows are the folded ones."""
    frame = frame_of(spark, random_changes(11, 600)).where("_txn = 1").repartition(5)
    rule = FoldRule(("k1", "k2"), sequence_by)
    marked = frame.selectExpr("*", f"{is_last(rule)} AS last").where("last").drop("last")
    assert marked.count() > 0
    assert marked.exceptAll(fold(frame, rule)).isEmpty()
    assert fold(frame, rule).exceptAll(marked).isEmpty()


def test_one_transaction_is_staged_while_others_are_read_back_and_replayed(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Invariants 6 and 7: one plane serves several threads, and none of them changes another's digests."""
    rig = make_rig(spark, tmp_path, {"schema": "k INT, v STRING", "keys": ["k"]})
    plane = rig.plane()
    records = [[{"k": n % (100 * txn), "v": f"{txn} {n}"} for n in range(2_000)] for txn in range(1, 4)]
    bindings = [rig.bind_records(batch, files=3) for batch in records]
    alone = [dict(plane.replay(binding).digests) for binding in bindings]
    first = plane.stage(bindings[0], WriterToken("w"))
    with ThreadPoolExecutor(max_workers=3) as pool:
        staged = [pool.submit(plane.stage, binding, WriterToken("w")) for binding in bindings[1:]]
        back = pool.submit(plane.read_back, first)
        again = [pool.submit(plane.replay, binding) for binding in bindings]
        assert dict(back.result()) == alone[0]
        assert [dict(future.result().digests) for future in staged] == alone[1:]
        assert [dict(future.result().digests) for future in again] == alone


def test_invariant_6_digests_do_not_depend_on_how_the_work_is_cut(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Invariants 6 and 7: shuffle partitions, file splits and tasks change no digest and no position."""
    rig = make_rig(spark, tmp_path, {"schema": "k INT, v STRING", "keys": ["k"]})
    records = [{"k": number % 400, "v": f"v{number}"} for number in range(3_000)] + ["broken"] * 3
    binding = rig.bind_records(records, files=8)
    staged = rig.plane().stage(binding, WriterToken("w"))
    rows = sorted((row["k"], row["v"], row["_offset"], row["_ordinal"]) for row in rig.rows(staged))
    last = {key: 2_800 + key if key < 200 else 2_400 + key for key in range(400)}
    assert rows == [(key, f"v{n}", n // 376, n % 376) for key, n in last.items()]
    for confs in (
        {"spark.sql.shuffle.partitions": "5", "spark.sql.adaptive.enabled": "true"},
        {"spark.sql.shuffle.partitions": "1", "spark.sql.codegen.wholeStage": "false"},
        {"spark.sql.files.minPartitionNum": "50", "spark.sql.leafNodeDefaultParallelism": "1"},
    ):
        assert dict(rig.plane(**confs).replay(binding).digests) == dict(staged.digests)


def test_p4_changed_rows_and_swapped_duplicates_differ_and_reordered_rows_do_not(
    spark: SparkSession, tmp_path: Path
) -> None:
    rig = make_rig(spark, tmp_path, {"schema": "k INT, v STRING", "keys": ["k"]}, envelope="append")
    lines = ['{"k":1,"v":"a"}', '{"k":1,"v":"a"}', '{"k":2,"v":"b"}']
    sealed = dict(rig.stage(lines).digests)
    variants = {
        "reordered": ([lines[2], *lines[:2]], True),
        "changed": ([lines[0], lines[1], '{"k":2,"v":"c"}'], False),
        "swapped pair": ([lines[2], lines[2], lines[0]], False),
        "null for empty": ([lines[0], lines[1], '{"k":2,"v":null}'], False),
    }
    for variant, same in variants.values():
        found = dict(rig.stage(variant, token="x").digests)
        assert (found == sealed) is same
        assert (found[SOURCE] == sealed[SOURCE]) is same
    swapped = ['{"k":3,"v":"x"}', '{"k":3,"v":"x"}', '{"k":2,"v":"b"}']
    xor_only = dict(rig.stage(swapped, token="x").digests)[SOURCE]
    assert xor_only.xor == sealed[SOURCE].xor
    assert xor_only != sealed[SOURCE]


@pytest.mark.parametrize("tasks_max", [1, 3, 100])
def test_invariant_6_positions_do_not_depend_on_the_number_of_tasks(
    spark: SparkSession, tmp_path: Path, tasks_max: int
) -> None:
    """Invariant 6: a record's number is its line in its file, and blank lines count."""
    contents = [[str(line) for line in range(files * 50)] + ["", "end"] for files in range(12)]
    files = []
    for seq, lines in enumerate(contents):
        path = tmp_path / f"{seq} %.txt"
        path.write_text("\n".join(lines))
        files.append(BoundFile(seq, path.name, path.stat().st_size, "", 0))
    child = spark.newSession()
    for name, value in READ_CONFS.items():
        child.conf.set(name, value)
    frame = read_lines(child, str(tmp_path), files, tasks_max=tasks_max)
    found = {(row["_offset"], row["_ordinal"]): row["_raw"] for row in frame.collect()}
    expected = {(seq, n): line for seq, lines in enumerate(contents) for n, line in enumerate(lines) if line}
    assert found == expected


@pytest.mark.parametrize("tasks_max", [1, 3, 100])
def test_invariant_6_a_large_file_is_cut_where_it_always_is_and_its_lines_keep_their_order(
    spark: SparkSession, tmp_path: Path, tasks_max: int
) -> None:
    """Invariant 6: lines of any length around the ends of blocks are read once, and stand in the order that
    they have in the file, whoever reads them."""
    block_bytes = 1_000
    lines = [f"{number}:" + "x" * (number * 7 % 400) for number in range(300)]
    lines[150] = "150:" + "y" * 3 * block_bytes
    path = tmp_path / "large.txt"
    path.write_text("\n".join(lines))
    file = BoundFile(1, path.name, path.stat().st_size, "", 0)
    child = spark.newSession()
    for name, value in {**READ_CONFS, "spark.sql.files.maxPartitionBytes": str(block_bytes)}.items():
        child.conf.set(name, value)
    frame = read_lines(child, str(tmp_path), [file], tasks_max=tasks_max, block_bytes=block_bytes)
    assert frame.rdd.getNumPartitions() == min(tasks_max, -(-file.size // block_bytes))
    found = sorted((row["_ordinal"], row["_raw"]) for row in frame.collect())
    assert [line for _, line in found] == lines
    # The place that a message names leads to the line, with nothing but the file.
    data = path.read_bytes()
    for ordinal, line in found:
        block, number = divmod(ordinal, 1 << 33)
        begin = data.index(b"\n", block * block_bytes) + 1 if block else 0
        assert data[begin:].split(b"\n")[number].decode() == line


def test_a_record_of_a_large_file_is_named_so_that_it_can_be_found() -> None:
    assert line_place(17) == "line 18"
    assert line_place((2 << 33) + 17) == f"line 18 of those that begin after byte {2 * BLOCK_BYTES}"


def test_parts_leave_no_core_idle_in_the_last_round() -> None:
    """More parts than cores come in whole rounds; a few megabytes are not cut for that."""
    megabytes = 1024**2
    sizes = [1, 3, 8, 300, 900]
    assert [parts_for(size * megabytes, cores=4) for size in sizes] == [1, 1, 4, 4, 8]


def test_a_part_that_lost_a_row_or_a_file_is_noticed(spark: SparkSession, tmp_path: Path) -> None:
    rig = make_rig(spark, tmp_path)
    staged = rig.stage([{"k": "a", "v": "1"}])
    (path,) = rig.files_on_disk()
    path.unlink()
    found = rig.plane().read_back(staged)
    assert found["shard:t"].count == 0
    assert dict(found) != dict(staged.digests)
