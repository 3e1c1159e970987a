"""Bad records and schema changes: scenarios E1, E3, E4 and A1; nothing becomes NULL in silence."""

from __future__ import annotations

import gzip
import json
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.support.ingest import KV, QUARANTINE, Row, make_rig, state
from tidemark.core.checksum import SOURCE, shard_endpoint
from tidemark.core.errors import Determinate, InvalidUsage
from tidemark.core.ids import ShardId, WriterToken
from tidemark.spark.failures import Refused
from tidemark.spark.tables import LogRows

pytestmark = pytest.mark.spark

TYPED = {
    "schema": "id INT NOT NULL, n BIGINT, d DECIMAL(6,2), b BOOLEAN, x DOUBLE, t TIMESTAMP, l TIMESTAMP_NTZ,"
    " y DATE, a ARRAY<INT>, s STRUCT<u: INT, w: ARRAY<DATE>>, m MAP<STRING, TIMESTAMP>, req STRING NOT NULL",
    "keys": ["id"],
    "apply_as_deletes": "op = 'd'",
}
GOOD: Row = {"id": 1, "n": 5_000_000_000, "d": "12.34", "b": True, "x": 1.5, "t": "2024-02-29T12:00:00Z"}
GOOD |= {"l": "2024-02-29 12:00:00.5", "y": "2024-02-29", "a": [1, None], "req": "r", "op": "u"}
GOOD |= {"s": {"u": 1, "w": ["2024-02-29", None]}, "m": {"z": "2024-02-29T12:00:00+02:00"}}


def kv(key: Any, value: Any) -> Row:
    return {"k": key, "v": value}


def test_e1_a_null_key_is_quarantined_with_position_raw_and_reason(
    spark: SparkSession, tmp_path: Path
) -> None:
    rig = make_rig(spark, tmp_path)
    records = [kv("a", "1"), kv(None, "x"), kv("b", "1"), kv("a", None), kv("c", "1"), kv("b", None)]
    binding = rig.bind_records(records, files=2)
    staged = rig.plane().stage(binding, WriterToken("w"))
    assert state(rig.rows(staged)) == {"c": "1"}
    (bad,) = rig.rows(staged, QUARANTINE)
    assert bad == {
        "_txn": 1, "_shard": "t", "_key": None, "_raw": json.dumps(kv(None, "x")),
        "_reason": "the key (k) is NULL", "_partition": "files", "_offset": 0, "_ordinal": 1,
    }  # fmt: skip
    assert (staged.source.count, staged.shards[QUARANTINE].digest.count) == (6, 1)
    assert dict(rig.plane().read_back(staged)) == dict(staged.digests)
    assert dict(rig.plane().replay(binding).digests) == dict(staged.digests)


def test_p12_rows_that_break_a_quarantine_expectation_go_aside_in_the_same_pass(
    spark: SparkSession, tmp_path: Path
) -> None:
    between = {"type": "expect_column_values_to_be_between", "kwargs": {"column": "n", "min_value": 0}}
    known = {
        "type": "expect_column_values_to_be_in_set",
        "kwargs": {"column": "s", "value_set": ["a", "it's"]},
    }
    shard = {
        "schema": "k STRING NOT NULL, n INT, s STRING",
        "keys": ["k"],
        "apply_as_deletes": "n = 99",
        "expectations": [{**between, "action": "quarantine"}, {**known, "action": "quarantine"}],
    }
    rig = make_rig(spark, tmp_path, shard)
    records: list[Row] = [
        {"k": "good", "n": 1, "s": "a"},
        {"k": "good", "n": -1, "s": "a"},  # Set aside: the key keeps its last good value.
        {"k": "quoted", "n": 0, "s": "it's"},
        {"k": "odd", "n": 5, "s": "z"},
        {"k": "nulls", "n": None, "s": None},
        {"k": "gone", "n": 99, "s": "z"},  # A deletion has no values to judge.
    ]
    binding = rig.bind_records(records, files=2)
    staged = rig.plane().stage(binding, WriterToken("w"))
    rows = {row["k"]: (row["_op"], row["n"]) for row in rig.rows(staged)}
    assert rows == {"good": ("U", 1), "quoted": ("U", 0), "nulls": ("U", None), "gone": ("D", None)}
    assert sorted((bad["_key"], bad["_reason"]) for bad in rig.rows(staged, QUARANTINE)) == [
        ('{"k":"good"}', "breaks expect_column_values_to_be_between(n, min_value=0)"),
        ('{"k":"odd"}', 'breaks expect_column_values_to_be_in_set(s, value_set=["a", "it\'s"])'),
    ]
    assert dict(rig.plane().replay(binding).digests) == dict(staged.digests)


UNITLESS = ": a number has no unit and no epoch; write the time as text"
BROKEN: list[tuple[Any, str]] = [
    ({"id": "7"}, "column 'id' is INT, found '7'"),
    ({"id": 2_147_483_648}, "column 'id' is INT, found 2147483648"),
    ({"n": 3.7}, "column 'n' is BIGINT, found 3.7"),
    ({"n": "5"}, "column 'n' is BIGINT, found '5'"),
    ({"n": ""}, "column 'n' is BIGINT, found ''"),
    ({"d": "123456.78"}, "column 'd' is DECIMAL(6,2), found '123456.78'"),
    ({"d": 1.005}, "column 'd' is DECIMAL(6,2), found 1.005"),
    ({"d": "1.001"}, "column 'd' is DECIMAL(6,2), found '1.001'"),
    ({"d": 1e-3}, "column 'd' is DECIMAL(6,2), found 0.001"),
    ({"d": "1E-3"}, "column 'd' is DECIMAL(6,2), found '1E-3'"),
    ({"d": "x"}, "column 'd' is DECIMAL(6,2), found 'x'"),
    ({"b": "true"}, "column 'b' is BOOLEAN, found 'true'"),
    ({"x": "abc"}, "column 'x' is DOUBLE, found 'abc'"),
    ({"t": "yesterday"}, "column 't' is TIMESTAMP, found 'yesterday'"),
    ({"t": 1_700_000_000}, f"column 't' is TIMESTAMP, found 1700000000{UNITLESS}"),
    ({"t": "1700000000"}, "column 't' is TIMESTAMP, found '1700000000'"),
    ({"t": "12:30:00"}, "column 't' is TIMESTAMP, found '12:30:00'"),
    ({"t": "0001-01-01T00:00:00+01:00"}, "column 't' is TIMESTAMP, found '0001-01-01T00:00:00+01:00'"),
    ({"t": "9999-12-31T23:59:59-05:00"}, "column 't' is TIMESTAMP, found '9999-12-31T23:59:59-05:00'"),
    ({"l": 1_700_000_000_000}, f"column 'l' is TIMESTAMP_NTZ, found 1700000000000{UNITLESS}"),
    ({"l": "2024-02-29T12:00:00+02:00"}, "column 'l' is TIMESTAMP_NTZ, found '2024-02-29T12:00:00+02:00'"),
    ({"y": 19_782}, f"column 'y' is DATE, found 19782{UNITLESS}"),
    ({"y": "19782"}, "column 'y' is DATE, found '19782'"),
    ({"y": "2024-02-29T23:59:00"}, "column 'y' is DATE, found '2024-02-29T23:59:00'"),
    ({"n": "5" * 99}, f"column 'n' is BIGINT, found '{'5' * 79}"),  # Cut, and so without its closing quote.
    ({"a": [1, "x"]}, "column 'a' is ARRAY<INT>, found [1,\"x\"]"),
    ({"s": {"u": "x"}}, "a value inside of a or s or m does not fit its type"),
    ({"s": {"w": [19_782]}}, "a value inside of a or s or m does not fit its type"),
    ({"m": {"z": 1_700_000_000}}, "a value inside of a or s or m does not fit its type"),
    ({"req": None}, "column 'req' is NOT NULL, but has no value"),
    ({"req": ...}, "column 'req' is NOT NULL, but has no value"),
    ({"id": ...}, "missing key column 'id'"),
    ({"id": None}, "the key (id) is NULL"),
]
UNREADABLE = ["{", "not json", "[1]", "null", '"text"', '{"id": 1} trailing']


def test_e4_what_does_not_fit_its_type_is_a_bad_record_with_a_reason(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Scenario E4: one bad record per change, none of them a NULL in the table; int to long is no change."""
    rig = make_rig(spark, tmp_path, TYPED)
    shapes = [{**GOOD, **change} for change, _ in BROKEN]
    changed = [json.dumps({name: v for name, v in shape.items() if v is not ...}) for shape in shapes]
    more = [{**GOOD, "id": 2, "n": 5, "d": 12.340}, {**GOOD, "id": 3, "d": "1.2E+3"}]
    more += [{**GOOD, "id": 4, "d": "-7.1000"}, {**GOOD, "id": 5, "d": 7}]
    # A number in a STRING is no error, and is written anew, as the documents say.
    number = json.dumps({**GOOD, "id": 6}).replace('"req": "r"', '"req": 12.50')
    staged = rig.stage([GOOD, *changed, *UNREADABLE, *more, number])
    rows = {row["id"]: row for row in rig.rows(staged)}
    assert (rows[5]["req"], rows[6]["req"]) == ("r", "12.5")
    assert (rows[1]["n"], rows[2]["n"]) == (5_000_000_000, 5)
    assert [str(rows[number]["d"]) for number in range(1, 6)] == [
        "12.34", "12.34", "1200.00", "-7.10", "7.00",
    ]  # fmt: skip
    assert all(value is not None for row in rig.rows(staged) for value in row.values())
    bad = sorted(rig.rows(staged, QUARANTINE), key=lambda row: row["_ordinal"])
    assert [row["_raw"] for row in bad] == [*changed, *UNREADABLE]
    for row, (_, reason) in zip(bad, BROKEN, strict=False):
        assert row["_reason"] == reason, row
    assert {row["_reason"] for row in bad[len(BROKEN) :]} == {"it is not a JSON object"}


LONG_DECIMALS = {"a": (38, 2), "b": (38, 10), "c": (30, 2), "d": (21, 0)}
FITTING = {"a": "-123456789012345678901234567890123456.78", "b": "1.1234567890000", "c": "7", "d": "12.000"}
TOO_LONG = [("a", "1.005"), ("a", "-0.001"), ("b", "0.12345678905"), ("c", "1.000000000001"), ("d", "12.5")]


@pytest.mark.parametrize("file_format", ["json", "csv"])
@pytest.mark.parametrize("quote", ["", '"'])
def test_regression_e4_a_decimal_of_many_digits_is_not_rounded_either(
    spark: SparkSession, tmp_path: Path, file_format: str, quote: str
) -> None:
    """The parser rounds where a type of 38 digits leaves no room to see that a number has more."""
    columns = ", ".join(f"{name} DECIMAL({size[0]},{size[1]})" for name, size in LONG_DECIMALS.items())
    shard = {"schema": f"k INT, {columns}", "keys": ["k"]}
    rig = make_rig(spark, tmp_path, shard, file_format=file_format)
    records = [FITTING, *({**FITTING, name: text} for name, text in TOO_LONG)]
    lines = [",".join(["k", *LONG_DECIMALS])] if file_format == "csv" else []
    for key, record in enumerate(records):
        written = {name: f"{quote}{text}{quote}" for name, text in record.items()}
        if file_format == "csv":
            lines.append(",".join([str(key), *written.values()]))
        else:
            lines.append(f'{{"k":{key},{",".join(f"{json.dumps(n)}:{t}" for n, t in written.items())}}}')
    rig.write(f"a.{file_format}", lines)
    staged = rig.plane().stage(rig.bind([f"a.{file_format}"]), WriterToken("w"))
    (row,) = rig.rows(staged)
    assert {name: row[name] for name in FITTING} == {name: Decimal(text) for name, text in FITTING.items()}
    shown = "'" if quote and file_format == "json" else ""
    assert [reason["_reason"] for reason in rig.rows(staged, QUARANTINE)] == [
        f"column '{name}' is DECIMAL({size[0]},{size[1]}), found {shown}{text}{shown}"
        for name, text in TOO_LONG
        for size in (LONG_DECIMALS[name],)
    ]


def test_a_deletion_needs_its_key_only(spark: SparkSession, tmp_path: Path) -> None:
    rig = make_rig(spark, tmp_path, TYPED)
    (row,) = rig.rows(rig.stage([{"id": 9, "op": "d"}]))
    assert (row["id"], row["_op"], row["req"]) == (9, "D", None)


@pytest.mark.parametrize(
    ("shard", "records", "fact"),
    [
        pytest.param({}, [kv("a", "1"), {**kv("b", "1"), "w": 1}], "undeclared column 'w'", id="added"),
        pytest.param({"apply_as_deletes": None}, [{"k": "b"}], "missing column 'v'", id="dropped"),
        pytest.param({"on_error": "fail"}, [kv("a", "1"), "{"], "it is not a JSON object", id="on-error"),
        pytest.param(
            {"on_error": "fail", "schema": "k STRING NOT NULL, v INT"},
            [kv("a", "1x")],
            "column 'v' is INT, found '1x'",
            id="a-value",
        ),
    ],
)
def test_e4_a_refusal_stops_the_transaction_before_anything_is_written(
    spark: SparkSession, tmp_path: Path, shard: Row, records: list[Any], fact: str
) -> None:
    rig = make_rig(spark, tmp_path, {**KV, **shard})
    with pytest.raises(Refused, match=fact) as refused:
        rig.stage(records)
    assert (refused.value.place, refused.value.record) == (
        f"file 'f0.json', line {len(records)}",
        len(records) - 1,
    )
    assert rig.files_on_disk() == []
    assert "1x" not in refused.value.recordable, "a value of a row would go on record"


@pytest.mark.parametrize(
    "record",
    [
        '{"k":"a","v":"b","w":1}',
        '{"k" : "a", "v" : "b", "w" : 1}',
        """{'k':"a","v":'b',"w":1}""",
        '{"k":"a","v":"b","\\u0077":1}',
        '{"w":{"k":1,"v":2},"k":"a","v":"b"}',
        '{"k":"a:","v":"b","k":"a","w":1}',
    ],
)
def test_e4_an_undeclared_column_is_noticed_however_the_record_is_spelled(
    spark: SparkSession, tmp_path: Path, record: str
) -> None:
    """Next to good records with colons, quotes and spaces where they are rare."""
    good = [
        '{"k":"a","v":"b"}',
        '{"k" :\t"x:y", "v":":\\":"}',
        '{"v":"1","k":"\\u003a"}',
        '{"k":"c","v":null}',
    ]
    rig = make_rig(spark, tmp_path)
    assert state(rig.rows(rig.stage(good))) == {"a": "b", "x:y": ':":', ":": "1"}
    with pytest.raises(Refused, match="undeclared column 'w'") as refused:
        rig.stage([*good, record], token="x")
    assert refused.value.record == len(good)


def test_a_missing_nullable_column_is_null_where_that_is_declared(
    spark: SparkSession, tmp_path: Path
) -> None:
    shard = {"schema": "k STRING, v STRING", "keys": ["k"], "on_schema_change": "missing_as_null"}
    rig = make_rig(spark, tmp_path, shard)
    assert state(rig.rows(rig.stage([{"k": "a"}, kv("b", "1")]))) == {"a": None, "b": "1"}


def test_e3_inline_keeps_the_key_with_null_values_and_the_error(spark: SparkSession, tmp_path: Path) -> None:
    shard = {"schema": "k STRING, v INT", "keys": ["k"], "on_error": "inline", "error_column": "oops"}
    rig = make_rig(spark, tmp_path, shard)
    staged = rig.stage([kv("k1", 1), kv("k1", "x"), kv("k2", "y"), kv("k3", 3), kv(None, 4)])
    rows = {row["k"]: (row["v"], row["oops"], row["_op"]) for row in rig.rows(staged)}
    assert rows == {
        "k1": (None, "column 'v' is INT, found 'x'", "U"),
        "k2": (None, "column 'v' is INT, found 'y'", "U"),
        "k3": (3, None, "U"),
    }
    assert [row["_reason"] for row in rig.rows(staged, QUARANTINE)] == ["the key (k) is NULL"]
    good = rig.stage([kv("k1", 1), kv("k2", 2)], token="x")
    assert {row["k"]: (row["v"], row["oops"]) for row in rig.rows(good)} == {"k1": (1, None), "k2": (2, None)}


def test_a1_append_keeps_every_record_with_a_value(spark: SparkSession, tmp_path: Path) -> None:
    shard = {"schema": "k STRING, v STRING NOT NULL", "keys": ["k"]}
    rig = make_rig(spark, tmp_path, shard, envelope="append")
    records = [kv("h", "w"), {"v": "f"}, {}, {"k": "only"}, kv("h", "w"), ""]
    binding = rig.bind_records(records, files=2)
    staged = rig.plane().stage(binding, WriterToken("w"))
    rows = sorted(
        (row["_offset"], row["_ordinal"], row["k"], row["v"], row["_op"]) for row in rig.rows(staged)
    )
    assert rows == [(0, 0, "h", "w", "U"), (0, 1, None, "f", "U"), (1, 1, "h", "w", "U")]
    (bad,) = rig.rows(staged, QUARANTINE)
    assert (bad["_key"], bad["_offset"], bad["_ordinal"]) == ('{"k":"only"}', 1, 0)
    assert dict(rig.plane().replay(binding).digests) == dict(staged.digests)


def test_records_are_routed_by_a_column_and_unknown_ones_are_quarantined(
    spark: SparkSession, tmp_path: Path
) -> None:
    shards = [
        {**KV, "name": "left", "route": {"column": "side", "equals": "l"}},
        {**KV, "name": "right", "route": {"column": "side", "equals": 2}},
        {**KV, "name": "unused", "route": {"column": "side", "equals": "u"}},
    ]
    rig = make_rig(spark, tmp_path, *shards)
    records = [{**kv("a", "1"), "side": "l"}, {**kv("a", "2"), "side": 2}, {**kv("b", "3"), "side": "?"}, "{"]
    staged = rig.stage([*records, {**kv("a", "4"), "side": "l"}], files=2)
    assert state(rig.rows(staged, ShardId("left"))) == {"a": "4"}
    assert state(rig.rows(staged, ShardId("right"))) == {"a": "2"}
    bad = {row["_ordinal"]: (row["_shard"], row["_reason"]) for row in rig.rows(staged, QUARANTINE)}
    assert bad == {2: (None, "no shard takes it"), 0: (None, "it is not a JSON object")}
    assert staged.digests[SOURCE].count == 5
    assert shard_endpoint(ShardId("unused")) not in staged.digests
    assert dict(rig.plane().read_back(staged)) == dict(staged.digests)


def test_csv_is_read_by_its_header_and_as_strictly(spark: SparkSession, tmp_path: Path) -> None:
    shard = {"schema": "k STRING, n INT, v STRING", "keys": ["k"], "apply_as_deletes": "op = 'd'"}
    rig = make_rig(spark, tmp_path, shard, file_format="csv")
    rig.write("a.csv", ["n,k,v,op", '1,a,"x, ""y""",u', "oops,b,x,u", "2,c", ",d,,u", "9,a,,d"])
    path = tmp_path / "in" / "b.csv.gz"
    path.write_bytes(gzip.compress(b"n,k,v,op\n5,e,\xc3\xa9,u\n"))
    staged = rig.plane().stage(rig.bind(["a.csv", "b.csv.gz"]), WriterToken("w"))
    rows = {row["k"]: (row["n"], row["v"], row["_op"]) for row in rig.rows(staged)}
    assert rows == {"a": (None, None, "D"), "d": (None, None, "U"), "e": (5, "é", "U")}
    bad = {row["_ordinal"]: row["_reason"] for row in rig.rows(staged, QUARANTINE)}
    assert bad == {2: "column 'n' is INT, found oops", 3: "it does not have 4 fields"}
    rig.write("c.csv", ["k,n,v,op,extra", "a,1,x,u,1"])
    with pytest.raises(InvalidUsage, match="undeclared column 'extra'"):
        rig.plane().stage(rig.bind(["c.csv"]), WriterToken("w"))


def test_e4_times_and_decimals_in_csv_are_as_strict(spark: SparkSession, tmp_path: Path) -> None:
    shard = {"schema": "k INT, t TIMESTAMP, y DATE, d DECIMAL(6,2)", "keys": ["k"]}
    rig = make_rig(spark, tmp_path, shard, file_format="csv")
    good = "2024-02-29 12:00:00,2024-02-29,1.50"
    bad = {
        2: ("12:30,2024-02-29,1.5", "column 't' is TIMESTAMP, found 12:30"),
        3: ("2024-02-29 12:00:00,19782,1.5", f"column 'y' is DATE, found 19782{UNITLESS}"),
        4: ("2024-02-29 12:00:00,2024-02-29,1.005", "column 'd' is DECIMAL(6,2), found 1.005"),
    }
    rig.write("a.csv", ["k,t,y,d", f"1,{good}", *(f"{key},{line}" for key, (line, _) in bad.items()), "5,,,"])
    staged = rig.plane().stage(rig.bind(["a.csv"]), WriterToken("w"))
    rows = {row["k"]: (row["t"], row["y"], row["d"]) for row in rig.rows(staged)}
    assert rows[5] == (None, None, None)
    assert [str(value)[:19] for value in rows[1]] == ["2024-02-29 12:00:00", "2024-02-29", "1.50"]
    assert sorted(rows) == [1, 5]
    assert [row["_reason"] for row in rig.rows(staged, QUARANTINE)] == [reason for _, reason in bad.values()]


def test_parquet_rows_have_positions_and_unknown_columns_are_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    rig = make_rig(spark, tmp_path, file_format="parquet")
    schema = pa.schema([("k", pa.string()), ("v", pa.string())])
    contents = {"a.parquet": [kv("a", "1"), kv("b", "1"), kv(None, "x")], "b.parquet": [kv("a", "2")]}
    for name, content in contents.items():
        pq.write_table(pa.Table.from_pylist(content, schema), tmp_path / "in" / name)
    staged = rig.plane().stage(rig.bind(["a.parquet", "b.parquet"]), WriterToken("w"))
    rows = {row["k"]: (row["v"], row["_offset"], row["_ordinal"]) for row in rig.rows(staged)}
    assert rows == {"a": ("2", 1, 0), "b": ("1", 0, 1)}
    assert [row["_raw"] for row in rig.rows(staged, QUARANTINE)] == ['{"k":null,"v":"x"}']
    pq.write_table(pa.table({"k": ["a"], "v": ["1"], "w": [1]}), tmp_path / "in" / "c.parquet")
    with pytest.raises(InvalidUsage, match="'w' is not declared"):
        rig.plane().stage(rig.bind(["c.parquet"]), WriterToken("w"))


def test_e4_a_parquet_column_of_another_type_is_refused_by_name(spark: SparkSession, tmp_path: Path) -> None:
    rig = make_rig(spark, tmp_path, {"schema": "k STRING, n INT", "keys": ["k"]}, file_format="parquet")
    pq.write_table(pa.table({"k": ["a"], "n": pa.array([1], pa.int64())}), tmp_path / "in" / "a.parquet")
    with pytest.raises(InvalidUsage, match=r"file 'a\.parquet' has column 'n' as INT64, declared is int"):
        rig.plane().stage(rig.bind(["a.parquet"]), WriterToken("w"))
    assert rig.files_on_disk() == []


def test_regression_a_bad_record_that_also_lacks_a_column_does_not_stop_the_good_ones(
    spark: SparkSession, tmp_path: Path
) -> None:
    """What masked columns held is not told either."""
    settings = {"schema": "id BIGINT NOT NULL, name STRING, pin INT", "keys": ["id"], "masked": ["pin"]}
    rig = make_rig(spark, tmp_path, settings)
    good = {"id": 1, "name": "a", "pin": 1}
    staged = rig.stage([good, {"id": "one", "name": "b"}, {**good, "id": 2, "pin": "4711"}])
    assert [row["id"] for row in rig.rows(staged)] == [1]
    reasons = sorted(row["_reason"] for row in rig.rows(staged, QUARANTINE))
    assert reasons == ["column 'id' is BIGINT, found 'one'", "column 'pin' is INT, found ***"]
    with pytest.raises(Refused, match="missing column 'pin'"):
        rig.stage([good, {"id": 3, "name": "c"}])


def test_a_part_that_can_not_be_read_counts_as_no_rows(spark: SparkSession, tmp_path: Path) -> None:
    rig = make_rig(spark, tmp_path)
    staged = rig.stage([kv("a", "1"), kv("b", "2")])
    (part,) = staged.shards[ShardId("t")].parts
    (path,) = tmp_path.rglob(Path(part.path).name)
    path.write_bytes(path.read_bytes()[: part.bytes // 2])
    assert rig.plane().read_back(staged)[shard_endpoint(ShardId("t"))].count == 0
    assert rig.plane().damaged(ShardId("t"), [part]) == [part]


def test_regression_invariant_5_a_read_back_that_fails_says_nothing_of_whole_parts(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invariant 5: a Spark that went away in between is no part that differs."""
    rig = make_rig(spark, tmp_path)
    staged = rig.stage([kv("a", "1")])
    monkeypatch.setattr(LogRows, "_counted", Mock(side_effect=PySparkException("UNAVAILABLE: it is gone")))
    with pytest.raises(Determinate, match="the rows of t can't be read back: UNAVAILABLE"):
        rig.plane().read_back(staged)


def test_parquet_rows_go_to_the_shards_of_a_columns_value(spark: SparkSession, tmp_path: Path) -> None:
    columns = "id BIGINT, v STRING, kind INT"
    shards = [
        {"schema": columns, "keys": ["id"], "name": name, "route": {"column": "kind", "equals": number}}
        for name, number in (("ones", 1), ("twos", 2))
    ]
    rig = make_rig(spark, tmp_path, *shards, file_format="parquet")
    (tmp_path / "in").mkdir(exist_ok=True)
    kinds = pa.array([1, 2, 1, 3, None], pa.int32())
    rows = pa.table({"id": [1, 1, 2, 3, 4], "v": ["a", "b", "c", "d", "e"], "kind": kinds})
    pq.write_table(rows, tmp_path / "in" / "a.parquet")
    binding = rig.bind(["a.parquet"])
    staged = rig.plane().stage(binding, WriterToken("w"))
    assert state(rig.rows(staged, ShardId("ones")), "id", "v") == {1: "a", 2: "c"}
    assert state(rig.rows(staged, ShardId("twos")), "id", "v") == {1: "b"}
    bad = rig.rows(staged, QUARANTINE)
    assert [(row["_ordinal"], row["_reason"]) for row in bad] == [
        (3, "no shard takes it"), (4, "no shard takes it"),
    ]  # fmt: skip
    assert dict(rig.plane().replay(binding).digests) == dict(staged.digests)
    (tmp_path / "other").mkdir()
    other = make_rig(
        spark, tmp_path / "other", shards[0], {**shards[1], "schema": "id BIGINT, v INT, kind INT"},
        file_format="parquet",
    )  # fmt: skip
    pq.write_table(rows, tmp_path / "other" / "in" / "a.parquet")
    with pytest.raises(InvalidUsage, match="column 'v' of the parquet files is declared as string and int"):
        other.plane().stage(other.bind(["a.parquet"]), WriterToken("w"))
