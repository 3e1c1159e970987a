"""What stands beside the rows of logs and states: the keys' hashes and the rows' digests, as Spark makes
them."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import deltalake as delta_rs
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from delta.tables import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from tests.support.ingest import TABLE, make_rig
from tests.support.keyed_log import key_bytes
from tests.support.state import SHARD, StateRig, gone
from tidemark.core.errors import InvalidUsage
from tidemark.core.ids import Txn
from tidemark.core.publish import StateOverwritten
from tidemark.delta.index import Hits, KeyIndex
from tidemark.delta.state_files import DIGEST, KEY, digest_of
from tidemark.pipeline import publish as step
from tidemark.spark.digest import key_hash_sql
from tidemark.spark.session import confs_set

pytestmark = pytest.mark.spark

DDL = (
    "b BOOLEAN, i INT, l BIGINT, s STRING, y BINARY, d DATE, t TIMESTAMP, n TIMESTAMP_NTZ, "
    "e DECIMAL(20,10), t1 TINYINT, t2 SMALLINT"
)
NOON = datetime(2024, 2, 29, 12, 0, 0, 1, UTC)
ROWS: list[tuple[tuple[Any, ...], list[tuple[str, str | None]]]] = [
    (
        (True, -1, 1 << 40, "é:", b"\x00\xff", date(1969, 12, 31), NOON, NOON.replace(tzinfo=None),
         Decimal("0.0000000010"), 1, -2),
        [("boolean", "true"), ("date", "-1"), ("decimal(20,10)", '{"v":1.0E-9}'), ("int", "-1"),
         ("bigint", str(1 << 40)), ("timestamp_ntz", "2024-02-29 12:00:00.000001"), ("string", "é:"),
         ("timestamp", "1709208000000001"), ("tinyint", "1"), ("smallint", "-2"), ("binary", "00FF")],
    ),
    (
        (None,) * 11,
        [(kind, None) for kind in (
            "boolean", "date", "decimal(20,10)", "int", "bigint", "timestamp_ntz", "string", "timestamp",
            "tinyint", "smallint", "binary",
        )],
    ),
]  # fmt: skip


def hashes(spark: SparkSession, ddl: str, rows: list[tuple[Any, ...]]) -> list[bytes]:
    frame = spark.createDataFrame(rows, ddl).coalesce(1)
    return [bytes(row[0]) for row in frame.selectExpr(key_hash_sql(frame.schema)).collect()]


def test_the_hash_of_a_key_is_the_documented_one_whatever_the_session(spark: SparkSession) -> None:
    expected = [key_bytes(*parts) for _, parts in ROWS]
    for confs in (
        {"spark.sql.session.timeZone": "UTC", "spark.sql.ansi.enabled": "true"},
        {"spark.sql.session.timeZone": "Asia/Kathmandu", "spark.sql.ansi.enabled": "false"},
    ):
        with confs_set(spark, confs):
            assert hashes(spark, DDL, [row for row, _ in ROWS]) == expected


def test_keys_that_differ_have_different_hashes(spark: SparkSession) -> None:
    pairs = [("a", "b"), ("ab", ""), ("", "ab"), (None, "ab"), ("ab", None), (None, None), ("", ""),
             ("a", "string 1:b"), ("astring 1:b", ""), ("-", None), (None, "-")]  # fmt: skip
    found = hashes(spark, "a STRING, b STRING", pairs)
    assert len(set(found)) == len(pairs)
    assert {len(one) for one in found} == {16}
    with pytest.raises(InvalidUsage, match="double"):
        key_hash_sql(StructType.fromDDL("d DOUBLE"))


def test_a_part_s_digests_add_up_to_its_seal_and_a_changed_one_is_noticed(
    spark: SparkSession, tmp_path: Path
) -> None:
    rig = make_rig(spark, tmp_path)
    staged = rig.stage([{"k": f"k{n % 3}", "v": None if n == 4 else str(n)} for n in range(6)])
    sealed = staged.shards[TABLE]
    (part,) = sealed.parts
    file = rig.warehouse / TABLE / "log" / part.path
    rows = pq.ParquetFile(file).read()
    assert digest_of(rows[DIGEST].to_numpy()) == sealed.digest
    assert [bytes(one.as_py()) for one in rows[KEY]] == [key_bytes(("string", k.as_py())) for k in rows["k"]]
    kept = rig.plane().log_rows
    assert kept.digests(Txn(1), {TABLE: sealed.parts}) == {TABLE: sealed.digest}
    wrong = rows[DIGEST].to_numpy().copy()
    wrong[0] ^= 1
    at = rows.column_names.index(DIGEST)
    pq.write_table(rows.set_column(at, DIGEST, pa.array(wrong)), file)
    found = kept.digests(Txn(1), {TABLE: sealed.parts})[TABLE]
    assert found != sealed.digest
    assert found.count == sealed.digest.count


def test_verify_proves_the_rows_by_their_values_and_that_keys_are_unique(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the index nothing wrong is seen then: it says what it said before."""
    rig = StateRig(spark, tmp_path)
    rig.append(("a", "1"), ("b", "1"))
    rig.publish()
    rig.append(("a", "2"), gone("b"), ("c", "1"))
    rig.publish()
    assert step.verify_state(rig.control, rig.plane, SHARD).commit.digest.count == 2
    monkeypatch.setattr(KeyIndex, "find", lambda *args, **kwargs: Hits.none())
    rig.append(("a", "3"))
    rig.publish()
    monkeypatch.undo()
    with pytest.raises(StateOverwritten, match="1 keys of version 2 have several rows"):
        step.verify_state(rig.control, rig.plane, SHARD)


def test_a_file_that_spark_has_rewritten_is_indexed_by_spark_and_found(
    spark: SparkSession, tmp_path: Path
) -> None:
    rig = StateRig(spark, tmp_path, ddl="k STRING, v STRING, s BIGINT", sequence_by="s")
    for value in ("1", "2"):
        rig.append(("a", value, 1), (value, "x", 1))
        rig.publish()
    DeltaTable.forPath(spark, rig.spec.state).optimize().executeCompaction()
    (file,) = delta_rs.DeltaTable(rig.spec.state).file_uris()
    assert KEY not in pq.read_schema(file).names
    rig.append(("a", "3", 1), gone("1", 0), gone("2", 2))
    rig.publish()
    assert rig.state() == [("1", "x", 1), ("a", "3", 1)]
    assert step.verify_state(rig.control, rig.plane, SHARD).commit.digest.count == 2
