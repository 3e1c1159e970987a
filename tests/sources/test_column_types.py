"""What records declare for their columns, in the types of a pipeline file, or refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.debezium.recorded import FOLDER, read
from tidemark.config.schema import parse_schema
from tidemark.config.source import Debezium
from tidemark.core.errors import InvalidUsage
from tidemark.spark.new_columns import (
    avro_columns,
    avro_type,
    connect_type,
    parquet_columns,
    parquet_type,
)

PRECISE = Debezium(decimal_handling_mode="precise")
MICROS = Debezium(time_precision_mode="microseconds")


def connect(kind: str, name: str = "", **more: Any) -> dict[str, Any]:
    return {"type": kind, "optional": True, **({"name": name} if name else {}), **more}


DECIMAL = connect("bytes", "org.apache.kafka.connect.data.Decimal", parameters={"scale": "2"})
DAY = connect("int32", "io.debezium.time.Date")


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        (connect("int8"), "TINYINT"),
        (connect("float"), "FLOAT"),
        (connect("bytes"), "BINARY"),
        (DECIMAL, "DECIMAL(38,2)"),
        (DAY, "DATE"),
        (connect("int64", "io.debezium.time.Timestamp"), "TIMESTAMP_NTZ"),
        (connect("int64", "io.debezium.time.NanoTimestamp"), "TIMESTAMP_NTZ"),
        (connect("string", "io.debezium.time.ZonedTimestamp"), "TIMESTAMP"),
        (connect("int64", "io.debezium.time.MicroTime"), "BIGINT"),
        (connect("string", "io.debezium.data.Enum"), "STRING"),
        (connect("string", "shop.Whatever"), "STRING"),
        (connect("array", items=DAY), "ARRAY<DATE>"),
        (connect("map", keys=connect("string"), values=connect("int64")), "MAP<STRING,BIGINT>"),
        (connect("struct", "shop.Place", fields=[connect("double", field="x")]), "STRUCT<`x`:DOUBLE>"),
    ],
)
def test_connects_types(schema: dict[str, Any], kind: str) -> None:
    assert connect_type(schema, PRECISE) == kind
    assert parse_schema(f"c {kind}")


@pytest.mark.parametrize(
    ("schema", "fact"),
    [
        (connect("int64", "shop.Odd"), "shop.Odd has no type in Tidemark"),
        (
            connect("struct", "io.debezium.data.VariableScaleDecimal", fields=[]),
            "VariableScaleDecimal has no",
        ),
        (connect("map", keys=connect("int32"), values=connect("int64")), "map has no type in Tidemark"),
        (
            connect("array", items=connect("array", items=DAY)),
            "Date inside another type has no type in Tidemark",
        ),
        (
            connect("struct", fields=[{**DAY, "field": "d"}]),
            "Date inside another type has no type in Tidemark",
        ),
        ({**DECIMAL, "parameters": {"scale": "40"}}, "a decimal of 38 digits, 40 of them behind the point,"),
        ({}, "None has no type in Tidemark"),
    ],
)
def test_what_connect_has_and_nobody_reads_is_refused_by_name(schema: dict[str, Any], fact: str) -> None:
    with pytest.raises(InvalidUsage) as refused:
        connect_type(schema, PRECISE)
    assert fact in refused.value.fact
    assert "declare it in the pipeline file" in refused.value.hint


def test_a_precise_decimal_needs_the_setting_that_says_so() -> None:
    for settings in (Debezium(), Debezium(decimal_handling_mode="string")):
        with pytest.raises(InvalidUsage, match="decimal_handling_mode is") as refused:
            connect_type(DECIMAL, settings)
        assert "decimal_handling_mode: precise" in refused.value.hint


def test_every_column_that_a_real_connector_sent_has_a_type_or_is_refused_by_name() -> None:
    refused: set[str] = set()
    seen: set[str] = set()
    for path in sorted(FOLDER.iterdir()):
        for one in read(path).records:
            value = json.loads(one.value) if one.value else {}
            schema = value.get("schema") if isinstance(value, dict) else None
            for part in schema["fields"] if schema else ():
                for field in part.get("fields", ()) if part.get("field") == "after" else ():
                    try:
                        seen.add(connect_type(field, PRECISE))
                    except InvalidUsage as error:
                        refused.add(error.fact)
    assert refused <= {"io.debezium.data.VariableScaleDecimal has no type in Tidemark"}
    assert {"TIMESTAMP_NTZ", "TIMESTAMP", "DATE", "DECIMAL(12,2)", "ARRAY<TIMESTAMP>", "BIGINT"} <= seen


def field(kind: Any, *, settings: Debezium | None = None) -> str:
    text = json.dumps({"type": "record", "name": "V", "fields": [{"name": "c", "type": kind}]})
    return avro_type(avro_columns(text)["c"], settings)


def logical(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


def named(kind: str, name: str) -> list[Any]:
    return ["null", {"type": kind, "connect.name": name}]


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        (["null", "int"], "INT"),
        (["string"], "STRING"),
        ({"type": "enum", "name": "E", "symbols": ["a"]}, "STRING"),
        ({"type": "fixed", "name": "F", "size": 2}, "BINARY"),
        (logical("bytes", "decimal", precision=9, scale=3), "DECIMAL(9,3)"),
        (logical("long", "timestamp-millis"), "TIMESTAMP"),
        (logical("long", "local-timestamp-micros"), "TIMESTAMP_NTZ"),
        ({"type": "map", "values": ["null", "long"]}, "MAP<STRING,BIGINT>"),
        ({"type": "array", "items": {"type": "record", "name": "R", "fields": [
            {"name": "x", "type": "float"}]}}, "ARRAY<STRUCT<`x`:FLOAT>>"),
    ],
)  # fmt: skip
def test_avros_types(schema: Any, kind: str) -> None:
    assert field(schema) == kind
    assert parse_schema(f"c {kind}")


@pytest.mark.parametrize("schema", [["null", "int", "string"], logical("int", "time-millis"), "null"])
def test_what_avro_has_and_nobody_reads_is_refused_by_name(schema: Any) -> None:
    with pytest.raises(InvalidUsage, match="has no type in Tidemark"):
        field(schema)


def test_a_connectors_numbers_in_avro_count_what_the_settings_say() -> None:
    micro = named("long", "io.debezium.time.MicroTimestamp")
    assert field(micro, settings=MICROS) == "TIMESTAMP_NTZ"
    assert field(micro) == "BIGINT"  # Nobody has said that a connector wrote it.
    for wrong in (Debezium(), Debezium(time_precision_mode="nanoseconds")):
        with pytest.raises(InvalidUsage, match="time_precision_mode is"):
            field(micro, settings=wrong)
    day = named("int", "io.debezium.time.Date")
    assert field(day, settings=Debezium()) == "DATE"
    with pytest.raises(InvalidUsage, match="time_precision_mode is isostring"):
        field(day, settings=Debezium(time_precision_mode="isostring"))
    with pytest.raises(InvalidUsage, match="Odd has no type in Tidemark"):
        field(named("long", "shop.Odd"), settings=MICROS)


def test_the_row_of_a_change_is_found_where_its_type_is_named_only() -> None:
    row = {"type": "record", "name": "Row", "fields": [{"name": "id", "type": "long"}]}
    fields = [{"name": "before", "type": ["null", row]}, {"name": "after", "type": ["null", "Row"]}]
    text = json.dumps({"type": "record", "name": "E", "namespace": "shop", "fields": fields})
    assert avro_columns(text, row="after") == {"id": "long"}
    assert avro_columns(json.dumps(row), row="after") == {}


def test_parquets_types(tmp_path: Path) -> None:
    rows = pa.table({"n": pa.array([1], pa.int16()), "at": pa.array([1], pa.timestamp("us"))})
    pq.write_table(rows, tmp_path / "a.parquet")
    pq.write_table(rows, tmp_path / "b.parquet", use_deprecated_int96_timestamps=True)
    found = [parquet_columns(str(tmp_path / name)) for name in ("a.parquet", "b.parquet")]
    assert [{name: parquet_type(*kind) for name, kind in one.items()} for one in found] == [
        {"n": "SMALLINT", "at": "TIMESTAMP_NTZ"},
        {"n": "SMALLINT", "at": "TIMESTAMP"},
    ]


@pytest.mark.parametrize(
    "kind",
    [pa.uint32(), pa.time64("us"), pa.timestamp("ns"), pa.null(), pa.decimal256(50, 2), pa.float16()],
)
def test_what_parquet_has_and_spark_does_not_read_is_refused_by_name(kind: pa.DataType) -> None:
    with pytest.raises(InvalidUsage, match="has no type in Tidemark"):
        parquet_type(kind)
