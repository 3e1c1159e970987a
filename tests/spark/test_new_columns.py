"""`on_schema_change: add_columns` gives a shard the columns that come with its records, where these tell their
types: files of Debezium records with schemas, and Parquet files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.support.deployed import attempt
from tidemark.assemble import Deployment
from tidemark.config import PipelineConfig
from tidemark.core.errors import InvalidUsage
from tidemark.core.ids import ShardId, Txn
from tidemark.core.replay import Verdict
from tidemark.pipeline.run import replay
from tidemark.publishing import run_and_publish
from tidemark.views import View, read

pytestmark = pytest.mark.spark

TABLE = ShardId("t")
INT, LONG, TEXT = ({"type": kind, "optional": True} for kind in ("int32", "int64", "string"))
MICROS = {"type": "int64", "optional": True, "name": "io.debezium.time.MicroTimestamp"}
PRICE = {
    "type": "bytes", "optional": True, "name": "org.apache.kafka.connect.data.Decimal",
    "parameters": {"scale": "2", "connect.decimal.precision": "12"},
}  # fmt: skip
Row = dict[str, Any]


def change(row: Row, **types: Row) -> Row:
    """A change as Kafka Connect's JSON converter writes it, with its schema; without types, alone."""
    payload = {"before": None, "after": row, "op": "c", "source": {"table": "t"}}
    if not types:
        return payload
    fields = [{**kind, "field": name} for name, kind in types.items()]
    schema = {"type": "struct", "fields": [{"type": "struct", "fields": fields, "field": "after"}]}
    return {"schema": schema, "payload": payload}


class Folder:
    """A pipeline on a folder; every call opens it anew, as a process of its own would."""

    def __init__(self, spark: SparkSession, root: Path, schema: str, **settings: Any) -> None:
        (root / "in").mkdir()
        self.spark, self.root = spark, root
        shard = {"name": "t", "schema": schema, "keys": ["id"], "on_schema_change": "add_columns"}
        source = {
            "type": "files",
            "path": "in",
            "format": settings.pop("format", "json"),
            "settle_seconds": 0,
        }
        self.settings = {"name": "p", "source": source, "warehouse": "wh", "shards": [shard], **settings}

    def opened(self) -> Deployment:
        return Deployment(PipelineConfig.model_validate(self.settings).at(self.root), lambda: self.spark)

    def land(self, *records: Row) -> None:
        """A file, and with the runs in between a transaction."""
        name = f"{len(list((self.root / 'in').iterdir())):03}.json"
        lines = "".join(f"{json.dumps(record)}\n" for record in records)
        (self.root / "in" / name).write_text(lines)

    def land_rows(self, rows: pa.Table) -> None:
        name = f"{len(list((self.root / 'in').iterdir())):03}.parquet"
        pq.write_table(rows, self.root / "in" / name)

    def run(self) -> int:
        """How many transactions a run has brought through."""
        return len(run_and_publish(self.opened(), attempt()).report.decided)

    def rows(self, view: View = View.STATE) -> list[Row]:
        found = [row.asDict() for row in read(self.opened(), TABLE, view=view).collect()]
        return sorted(found, key=lambda row: row["id"])

    def replayed(self) -> list[Verdict]:
        works = self.opened()
        last = works.control.seals.head().upper - 1
        found = replay(works.pipeline, attempt(), txn_from=Txn(1), txn_to=Txn(last))
        return [one.verdict for one in found]


def test_regression_a_field_that_is_new_in_debezium_records_becomes_a_column(
    spark: SparkSession, tmp_path: Path
) -> None:
    modes = {"decimal_handling_mode": "precise"}
    files = Folder(spark, tmp_path, "id INT, name STRING", envelope="debezium", debezium=modes)
    files.land(change({"id": 1, "name": "a"}, id=INT, name=TEXT))
    assert files.run() == 1
    new = {"id": 2, "name": "b", "age": 7, "at": 1_500_000, "price": "AOY="}
    files.land(
        change({"id": 3, "name": "c"}, id=INT, name=TEXT),
        change(new, id=INT, name=TEXT, age=INT, at=MICROS, price=PRICE),
    )
    files.settings["transaction"] = {"max_files": 1}
    files.land(change({"id": 1, "name": "a", "age": None}, id=INT, name=TEXT, age=INT))
    files.land(change({"id": 3, "name": "d"}, id=INT, name=TEXT))
    assert files.run() == 3
    assert files.opened().added == {TABLE: {"age": "INT", "at": "TIMESTAMP_NTZ", "price": "DECIMAL(12,2)"}}
    for view in (View.STATE, View.FRESH):
        by_id = {row["id"]: row for row in files.rows(view)}
        assert (by_id[2]["age"], str(by_id[2]["at"]), str(by_id[2]["price"])) == (
            7, "1970-01-01 00:00:01.500000", "2.30",
        )  # fmt: skip
        assert by_id[1] == {"id": 1, "name": "a", "age": None, "at": None, "price": None}
        assert by_id[3]["name"] == "d"
    assert files.replayed() == [Verdict.IDENTICAL] * 4


def test_a_column_keeps_the_type_that_it_came_with(spark: SparkSession, tmp_path: Path) -> None:
    """What comes in another type later is judged like the values of any declared column; E4."""
    files = Folder(spark, tmp_path, "id INT", envelope="debezium", transaction={"max_files": 1})
    files.land(change({"id": 1, "age": 7}, id=INT, age=INT))
    files.land(change({"id": 2, "age": 8}, id=INT, age=LONG))
    files.land(change({"id": 3, "age": 3_000_000_000}, id=INT, age=LONG))
    files.land(change({"id": 4, "age": "old"}, id=INT, age=TEXT))
    assert files.run() == 4
    assert files.rows() == [{"id": 1, "age": 7}, {"id": 2, "age": 8}]
    seals = files.opened().control.seals
    bad = [seal.shards.get(ShardId("quarantine")) for seal in seals.read(1, seals.head().upper)]
    assert [one.digest.count if one is not None else 0 for one in bad] == [0, 0, 1, 1]
    assert set(files.replayed()) == {Verdict.IDENTICAL}


def test_records_that_do_not_agree_or_tell_no_type_are_refused_by_name_and_add_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    files = Folder(spark, tmp_path, "id INT", envelope="debezium")
    odd = {"type": "int64", "name": "shop.Odd"}
    cases = [
        ([change({"id": 1, "age": 7, "b": 1})], "undeclared column 'age', and the record does not tell its type"),
        ([change({"id": 1, "age": 7}, id=INT)], "undeclared column 'age', and the record does not tell its type"),
        ([change({"id": 1, "age": 7}, id=INT, age=INT), change({"id": 2, "age": "x"}, id=INT, age=TEXT)],
         "new column 'age' of shard t is INT at file '000.json', line 1, and STRING at file '000.json', line 2"),
        ([change({"id": 1, "age": 7, "odd": 1}, id=INT, age=INT, odd=odd)],
         "line 1: new column 'odd': shop.Odd has no type here"),
        ([change({"id": 1, "price": "AOY="}, id=INT, price=PRICE)],
         "new column 'price': it is a precise decimal, and debezium.decimal_handling_mode is not said"),
        ([change({"id": 1, "ID": 7}, id=INT, ID=INT)], "column 'ID' is declared twice"),
    ]  # fmt: skip
    for at, (records, fact) in enumerate(cases):
        root = tmp_path / str(at)
        root.mkdir()
        files = Folder(spark, root, "id INT", envelope="debezium")
        files.land(*records)
        with pytest.raises(InvalidUsage) as refused:
            files.run()
        assert fact in refused.value.fact
        assert refused.value.hint
        assert files.opened().added == {}


def test_parquet_files_bring_their_columns_also_beside_files_that_lack_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    files = Folder(spark, tmp_path, "id BIGINT, name STRING", format="parquet")
    files.land_rows(pa.table({"id": [1], "name": ["a"]}))
    files.land_rows(pa.table({"id": [2], "name": ["b"], "tags": [["x"]], "n": pa.array([5], pa.int16())}))
    assert files.run() == 1
    files.land_rows(pa.table({"id": [1], "name": ["c"]}))
    assert files.run() == 1
    assert files.opened().added == {TABLE: {"n": "SMALLINT", "tags": "ARRAY<STRING>"}}
    assert files.rows() == [
        {"id": 1, "name": "c", "n": None, "tags": None},
        {"id": 2, "name": "b", "n": 5, "tags": ["x"]},
    ]
    assert files.replayed() == [Verdict.IDENTICAL] * 2
    files.land_rows(pa.table({"id": [3], "name": ["d"], "n": ["text"]}))
    with pytest.raises(InvalidUsage, match="has column 'n'"):
        files.run()
