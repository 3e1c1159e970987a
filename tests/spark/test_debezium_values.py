"""Times and decimals as Debezium's connectors write them, with the record's schema and without it.

The records have the fields, the order and the types that the Postgres connector's documentation shows.
"""

from __future__ import annotations

import base64
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support.ingest import QUARANTINE, Rig, Row, make_rig

pytestmark = pytest.mark.spark

SCHEMA = (
    "id INT NOT NULL, day DATE, price DECIMAL(10,2), big DECIMAL(38,3), at TIMESTAMP_NTZ,"
    " seen TIMESTAMP_NTZ, zoned TIMESTAMP, days ARRAY<DATE>"
)
SHARD = {"schema": SCHEMA, "keys": ["id", "day"]}
LEAP = date(2024, 2, 29)
AT = datetime.fromisoformat("2018-06-20T15:13:16.945104")
AT_MS = AT.replace(microsecond=945000)
ZONED = datetime(2020, 2, 29, 10, 0, 0, 123456, tzinfo=UTC)
DECIMAL = "org.apache.kafka.connect.data.Decimal"


def column(kind: str, name: str, logical: str = "", **parameters: str) -> Row:
    """A field of a Connect schema, as the JSON converter writes it."""
    of = {"parameters": parameters} if parameters else {}
    named = {"name": logical, "version": 1, **of} if logical else {}
    return {"type": kind, "optional": name != "id", **named, "field": name}


def columns(price_scale: int = 2, price: str = DECIMAL) -> list[Row]:
    of = {"scale": str(price_scale), "connect.decimal.precision": "10"} if price else {}
    days = {"type": "int32", "optional": True, "name": "io.debezium.time.Date", "version": 1}
    return [
        column("int32", "id"),
        column("int32", "day", "io.debezium.time.Date"),
        column("bytes" if price else "string", "price", price, **of),
        column("bytes", "big", DECIMAL, scale="3", **{"connect.decimal.precision": "38"}),
        column("int64", "at", "io.debezium.time.MicroTimestamp"),
        column("int64", "seen", "io.debezium.time.Timestamp"),
        column("string", "zoned", "io.debezium.time.ZonedTimestamp"),
        {"type": "array", "items": days, "optional": True, "field": "days"},
    ]


def change(before: Row | None, after: Row | None, op: str) -> Row:
    source = {
        "version": "3.2.0.Final", "connector": "postgresql", "name": "shop", "ts_ms": 1559033904863,
        "snapshot": "false", "db": "shop", "sequence": '["24023119","24023128"]',
        "ts_us": 1559033904863123, "ts_ns": 1559033904863123000,
        "schema": "public", "table": "t", "txId": 555, "lsn": 24023128,
        "xmin": None,
    }  # fmt: skip
    times = {"ts_ms": 1559033904863, "ts_us": 1559033904863497, "ts_ns": 1559033904863497147}
    return {"before": before, "after": after, "source": source, "transaction": None, "op": op, **times}


def with_schema(payload: Row, fields: list[Row]) -> Row:
    """The record with `value.converter.schemas.enable=true`."""
    rows = [
        {"type": "struct", "fields": fields, "optional": True, "name": "shop.public.t.Value", "field": name}
        for name in ("before", "after")
    ]
    rest = [
        column("string", "op"),
        column("int64", "ts_ms"),
        column("int64", "ts_us"),
        column("int64", "ts_ns"),
    ]
    schema = {"type": "struct", "fields": [*rows, *rest], "optional": False, "name": "shop.public.t.Envelope"}
    return {"schema": {**schema, "version": 2}, "payload": payload}


def row(number: int, **more: Any) -> Row:
    """By default: precise decimals, adaptive times."""
    values = {"day": 19782, "price": "MDk=", "big": "/w==", "at": 1529507596945104, "seen": 1529507596945}
    return {"id": number, **values, "zoned": "2020-02-29T10:00:00.123456Z", "days": [19782, None], **more}


def staged(rig: Rig, records: list[Row]) -> tuple[list[Row], dict[int, str]]:
    """The rows by id, and for what went wrong its id and reason."""
    done = rig.stage(records)
    names = [part.split()[0] for part in SCHEMA.split(", ")]
    rows = [{name: found[name] for name in names} for found in rig.rows(done)]
    bad = {}
    for one in rig.rows(done, QUARANTINE):
        raw = json.loads(one["_raw"])
        bad[raw.get("payload", raw)["after"]["id"]] = one["_reason"]
    return sorted(rows, key=lambda found: found["id"]), bad


def rig_with(spark: SparkSession, root: Path, **settings: str) -> Rig:
    return make_rig(spark, root, SHARD, envelope="debezium", debezium=settings)


WHOLE = {"day": LEAP, "price": Decimal("123.45"), "big": Decimal("-0.001"), "at": AT, "seen": AT_MS}
WHOLE |= {"zoned": ZONED, "days": [LEAP, None]}


def test_a_schema_in_the_record_tells_units_and_scales(spark: SparkSession, tmp_path: Path) -> None:
    """Scenario E4: every value is the database's own, or the record is bad."""
    rig = rig_with(spark, tmp_path, decimal_handling_mode="precise")
    records = [
        with_schema(change(None, row(1), "c"), columns()),
        with_schema(change(row(2), row(2, price="1234", at=-1, seen=-1), "u"), columns()),
        with_schema(change(None, row(3, big="S0y4VsI7p5Rh2FVg", price=None, days=None), "r"), columns()),
        with_schema(change(None, row(4), "c"), columns(price_scale=3)),
        with_schema(change(None, row(5, price="123.45"), "c"), columns(price="")),
    ]
    rows, bad = staged(rig, records)
    assert rows[0] == {"id": 1, **WHOLE}
    before = datetime.fromisoformat("1969-12-31T23:59:59")
    # Text of digits alone is bytes like any other.
    assert rows[1] == {
        "id": 2, **WHOLE, "price": Decimal("-26588.24"), "at": before.replace(microsecond=999999),
        "seen": before.replace(microsecond=999000),
    }  # fmt: skip
    assert rows[2] == {
        "id": 3, **WHOLE, "big": Decimal("23304124614740394848099521.888"), "price": None, "days": None,
    }  # fmt: skip
    assert bad == {
        4: "column 'price' is DECIMAL(10,2), found 'MDk=' (debezium.decimal_handling_mode is precise)",
        5: "column 'price' is DECIMAL(10,2), found '123.45' (debezium.decimal_handling_mode is precise)",
    }
    assert len(rows) == 3


UNIT = ": its unit is not known; send schemas along, or set time.precision.mode in the connector"
UNIT += " to microseconds or isostring, and debezium.time_precision_mode here"
ISO = {"day": "2024-02-29Z", "days": ["2024-02-29Z", None], "at": "2018-06-20T15:13:16.945104Z"}
ISO |= {"seen": "2018-06-20T15:13:16.945Z"}
MS, US, NS = 1529507596945, 1529507596945104, 1529507596945104000


CONNECT = {"at": MS, "seen": MS, "price": "123.45", "big": "-0.001"}
MICROSECONDS = {"at": US, "seen": MS * 1_000, "price": 123.45, "big": -0.001}
NANOSECONDS = {"at": NS + 999, "seen": MS * 1_000_000}


@pytest.mark.parametrize(
    ("times", "decimals", "written", "expected"),
    [
        pytest.param("connect", "string", CONNECT, {"at": AT_MS}, id="connect"),
        pytest.param("microseconds", "double", MICROSECONDS, {}, id="microseconds"),
        pytest.param("nanoseconds", "precise", NANOSECONDS, {}, id="nanoseconds"),
        pytest.param("isostring", "precise", ISO, {}, id="isostring"),
    ],
)
def test_without_a_schema_the_connectors_settings_tell(
    spark: SparkSession, tmp_path: Path, times: str, decimals: str, written: Row, expected: Row
) -> None:
    rig = rig_with(spark, tmp_path, decimal_handling_mode=decimals, time_precision_mode=times)
    broken = {"precise": "123.45", "double": "123.45", "string": "MDk="}[decimals]
    records = [
        change(None, row(1, **written), "c"),
        change(None, row(2, **{**written, "price": broken}), "c"),
        change(None, row(3, **{**written, "at": 10**19}), "c"),
    ]
    rows, bad = staged(rig, records)
    assert rows == [{"id": 1, **WHOLE, **expected}]
    assert sorted(bad) == [2, 3]
    assert bad[2].startswith(f"column 'price' is DECIMAL(10,2), found '{broken}'")


def test_adaptive_times_without_a_schema_are_bad(spark: SparkSession, tmp_path: Path) -> None:
    """Milliseconds or microseconds, by the precision of a column that nobody here can see."""
    rig = rig_with(spark, tmp_path, decimal_handling_mode="precise")
    rows, bad = staged(rig, [change(None, row(1), "c"), change(None, row(2, at=None, seen=None), "c")])
    assert rows == [{"id": 2, **WHOLE, "at": None, "seen": None}]
    assert bad == {1: f"column 'at' is TIMESTAMP_NTZ, found 1529507596945104{UNIT}"}


def test_u14_a_big_value_that_was_left_out_never_replaces_the_one_that_is_there(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The connector writes a text in its place; the record is bad, and the row stays as it was."""
    schema = "id INT NOT NULL, body STRING, raw BINARY, tags ARRAY<STRING>"
    rig = make_rig(spark, tmp_path, {"schema": schema, "keys": ["id"]}, envelope="debezium")
    out = "__debezium_unavailable_value"
    whole = {"id": 1, "body": "b" * 9_000, "raw": base64.b64encode(b"r" * 9_000).decode(), "tags": ["t"]}
    left = [{"body": out}, {"raw": base64.b64encode(out.encode()).decode()}, {"tags": [out]}]
    records = [change(None, whole, "c"), *(change(None, {**whole, **one}, "u") for one in left)]
    done = rig.stage(records)
    (found,) = rig.rows(done)
    assert (found["body"], found["raw"], found["tags"]) == ("b" * 9_000, b"r" * 9_000, ["t"])
    advice = ": an update does not send it; ALTER TABLE … REPLICA IDENTITY FULL has it sent"
    reasons = [bad["_reason"] for bad in rig.rows(done, QUARANTINE)]
    assert reasons[0] == f"column 'body' is STRING, found '{out}'{advice}"
    assert reasons[1].endswith(advice)
    assert reasons[2] == f"column 'tags' is not in the record{advice}"
