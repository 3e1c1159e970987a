"""`on_schema_change: add_columns` gives a shard the columns that come with its records, where these tell
their types: files of Debezium records with schemas, and Parquet files."""

from __future__ import annotations

import json
import re
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.support.deployed import attempt
from tidemark.app.deployment import Deployment
from tidemark.app.publish import run_and_publish
from tidemark.app.views import View, read
from tidemark.config import PipelineConfig
from tidemark.core.errors import InvalidUsage
from tidemark.core.ids import ShardId, Txn
from tidemark.core.replay import Verdict
from tidemark.pipeline.run import replay

pytestmark = pytest.mark.spark

TABLE = ShardId("t")
INT, LONG, TEXT = ({"type": kind, "optional": True} for kind in ("int32", "int64", "string"))
PRICE = {
    "type": "bytes", "name": "org.apache.kafka.connect.data.Decimal",
    "parameters": {"scale": "2", "connect.decimal.precision": "12"},
}  # fmt: skip
SPOT = {"type": "struct", "fields": [{"type": "int32", "field": "x"}]}
SECONDS = datetime.fromisoformat("1970-01-01T00:00:01.5")
NEW: dict[str, tuple[dict[str, Any], Any, str, Any]] = {
    "price": (PRICE, "AOY=", "DECIMAL(12,2)", Decimal("2.30")),
    "day": ({"type": "int32", "name": "io.debezium.time.Date"}, 1, "DATE", date(1970, 1, 2)),
    "us": ({"type": "int64", "name": "io.debezium.time.MicroTimestamp"}, 1_500_000, "TIMESTAMP_NTZ", SECONDS),
    "sums": ({"type": "array", "items": PRICE}, ["AOY="], "ARRAY<DECIMAL(12,2)>", [Decimal("2.30")]),
    "spot": (SPOT, {"x": 1}, "STRUCT<`x`:INT>", (1,)),
}  # fmt: skip
"""By column: its schema, how a connector writes the value, the type that it gets, and what is read."""
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
        self.spark, self.root, self.publishes = spark, root, settings.pop("publishes", True)
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

    def land_rows(self, rows: pa.Table, **settings: Any) -> None:
        name = f"{len(list((self.root / 'in').iterdir())):03}.parquet"
        pq.write_table(rows, self.root / "in" / name, **settings)

    def run(self) -> int:
        """How many transactions a run has brought through."""
        return len(run_and_publish(self.opened(), attempt(), publishes=self.publishes).report.decided)

    def rows(self) -> list[Row]:
        view = View.STATE if self.publishes else View.FRESH
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
    """And keeps the type that it came with: what comes in another one is judged by that, E4."""
    modes = {"decimal_handling_mode": "precise"}
    limits = {"max_files": 1}
    files = Folder(
        spark, tmp_path, "id INT, name STRING", envelope="debezium", debezium=modes, transaction=limits
    )
    files.land(change({"id": 1, "name": "a"}, id=INT, name=TEXT))
    assert files.run() == 1
    row = {"id": 2, "name": "b", "age": 7, **{name: value for name, (_, value, _, _) in NEW.items()}}
    types = {name: {"optional": True, **kind} for name, (kind, _, _, _) in NEW.items()}
    files.land(
        change({"id": 3, "name": "c"}, id=INT, name=TEXT),
        change(row, id=INT, name=TEXT, age=INT, **types),
    )
    files.land(
        change({"id": 4, "name": "d", "age": 8}, id=INT, name=TEXT, age=LONG),
        change({"id": 5, "name": "e", "age": 3_000_000_000}, id=INT, name=TEXT, age=LONG),
        change({"id": 6, "name": "f", "age": "old"}, id=INT, name=TEXT, age=TEXT),
        change({"id": 1, "name": "g"}, id=INT, name=TEXT),
    )
    assert files.run() == 2
    assert files.opened().added == {
        TABLE: {"age": "INT", **{name: told for name, (_, _, told, _) in NEW.items()}}
    }
    found = {row["id"]: row for row in files.rows()}
    assert [(row["id"], row["name"], row["age"]) for row in found.values()] == [
        (1, "g", None), (2, "b", 7), (3, "c", None), (4, "d", 8),
    ]  # fmt: skip
    assert {name: found[2][name] for name in NEW} == {name: read for name, (_, _, _, read) in NEW.items()}
    assert {found[1][name] for name in NEW} == {None}
    seals = files.opened().control.seals
    last = seals.read(3, seals.head().upper)[0]
    assert last.shards[ShardId("quarantine")].digest.count == 2
    assert files.replayed() == [Verdict.IDENTICAL] * 3


def test_records_that_do_not_agree_or_tell_no_type_are_refused_by_name_and_add_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    files = Folder(spark, tmp_path, "id INT", envelope="debezium")
    files.land(change({"id": 1, "age": 7}, id=INT, age=INT), change({"id": 2, "age": "x"}, id=INT, age=TEXT))
    both = (
        "new column 'age' of shard t is INT at file '000.json', line 1, but STRING at file '000.json', line 2"
    )
    with pytest.raises(InvalidUsage, match=re.escape(both)) as refused:
        files.run()
    assert "declare it in the pipeline file" in refused.value.hint
    (tmp_path / "in" / "000.json").unlink()
    files.settings["name"] = "other"
    files.land(change({"id": 1, "age": 7}, id=INT))
    none = "at file '000.json', line 1: undeclared column 'age', whose type the record does not carry"
    with pytest.raises(InvalidUsage, match=re.escape(none)) as refused:
        files.run()
    assert "value.converter.schemas.enable=true" in refused.value.hint
    assert files.opened().added == {}


def test_parquet_files_bring_their_columns_also_beside_files_that_lack_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    files = Folder(spark, tmp_path, "id BIGINT, name STRING", format="parquet", publishes=False)
    at = datetime.fromisoformat("2026-01-31T12:00:00.000001")
    new = {
        "flag": (pa.array([True]), "BOOLEAN", True),
        "small": (pa.array([5], pa.int8()), "TINYINT", 5),
        "n": (pa.array([5], pa.int16()), "SMALLINT", 5),
        "i": (pa.array([5], pa.int32()), "INT", 5),
        "f": (pa.array([0.5], pa.float32()), "FLOAT", 0.5),
        "ratio": (pa.array([0.1]), "DOUBLE", 0.1),
        "word": (pa.array(["x"]).dictionary_encode(), "STRING", "x"),
        "raw": (pa.array([b"\xff"]), "BINARY", bytearray(b"\xff")),
        "day": (pa.array([date(2026, 2, 1)]), "DATE", date(2026, 2, 1)),
        "plain_at": (pa.array([at], pa.timestamp("us")), "TIMESTAMP_NTZ", at),
        "price": (pa.array([Decimal("1.50")], pa.decimal128(12, 2)), "DECIMAL(12,2)", Decimal("1.50")),
        "tags": (pa.array([["x", None]]), "ARRAY<STRING>", ["x", None]),
        "sizes": (pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())), "MAP<STRING,BIGINT>", {"a": 1}),
        "spot": (pa.array([{"x": 1}]), "STRUCT<`x`:BIGINT>", (1,)),
    }
    files.land_rows(pa.table({"id": [1], "name": ["a"]}))
    columns = {name: values for name, (values, _, _) in new.items()}
    files.land_rows(pa.table({"id": [2], "name": ["b"], **columns}))
    moment = pa.array([1_500_000], pa.timestamp("us", tz="UTC"))
    files.land_rows(pa.table({"id": [3], "name": ["c"], "moment": moment}))
    legacy = pa.table({"id": [4], "name": ["d"], "legacy": pa.array([1_500_000], pa.timestamp("us"))})
    files.land_rows(legacy, use_deprecated_int96_timestamps=True)
    assert files.run() == 1
    files.land_rows(pa.table({"id": [1], "name": ["e"]}))
    assert files.run() == 1
    types = {
        **{name: told for name, (_, told, _) in new.items()},
        "moment": "TIMESTAMP",
        "legacy": "TIMESTAMP",
    }
    assert files.opened().added == {TABLE: types}
    first, second, third, fourth = files.rows()
    assert {name: value for name, value in first.items() if value is not None} == {"id": 1, "name": "e"}
    assert {name: second[name] for name in new} == {name: value for name, (_, _, value) in new.items()}
    assert third["moment"] == fourth["legacy"] != None  # noqa: E711
    assert files.replayed() == [Verdict.IDENTICAL] * 2
    files.land_rows(pa.table({"id": [3], "name": ["d"], "n": ["text"]}))
    with pytest.raises(InvalidUsage, match="has column 'n'"):
        files.run()
