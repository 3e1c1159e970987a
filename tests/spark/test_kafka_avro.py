"""Avro values and keys and headers as columns, through the whole pipeline and a real broker. The bytes are
written by another implementation of Avro."""

from __future__ import annotations

import io
import json
import struct
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from fastavro import parse_schema, schemaless_writer
from pyspark.sql import SparkSession

from tests.support.kafka import Broker
from tests.support.kafka_pipeline import QUARANTINE, Rig
from tests.support.kafka_registry import USER_INFO, running_registry
from tidemark.core.replay import Verdict
from tidemark.sources.kafka.manifest import KafkaManifest

pytestmark = [pytest.mark.spark, pytest.mark.server]

Schema = dict[str, Any]


def record(name: str, **fields: Any) -> Schema:
    return {"type": "record", "name": name, "fields": [{"name": f, "type": t} for f, t in fields.items()]}


def encoded(schema: Any, value: Any, *, wire_id: int | None = None) -> bytes:
    """The bytes of a value, behind a zero and the id where one is given."""
    out = io.BytesIO()
    if wire_id is not None:
        out.write(struct.pack(">bI", 0, wire_id))
    schemaless_writer(out, parse_schema(json.loads(json.dumps(schema))), value)
    return out.getvalue()


def quarantined(rig: Rig) -> dict[int, str]:
    return {row["_offset"]: row["_reason"] for row in rig.rows(QUARANTINE)}


KEY = record("Key", id="long")
VALUE = record(
    "Value",
    amount=["null", {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 4}],
    at=["null", {"type": "long", "logicalType": "timestamp-micros"}],
    day=["null", {"type": "int", "logicalType": "date"}],
    note=["null", "string"],
    ratio=["null", "double"],
    tags=["null", {"type": "array", "items": "string"}],
    raw=["null", "bytes"],
)
COLUMNS = (
    "id BIGINT NOT NULL, amount DECIMAL(20,4), at TIMESTAMP, day DATE, note STRING, ratio DOUBLE,"
    " tags ARRAY<STRING>, raw BINARY"
)


def test_avro_keeps_every_value_and_bytes_that_are_too_few_too_many_or_others_are_quarantined(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    full = {
        "amount": Decimal("1234567890123456.0001"),
        "at": datetime(2026, 1, 31, 23, 59, 59, 123456, tzinfo=UTC),
        "day": date(2026, 2, 1),
        "note": 'ü "quoted"\n\u2028\u2029\u0085',
        "ratio": 0.1,
        "tags": ["a", ""],
        "raw": b"\x00\xff",
    }
    nothing = dict.fromkeys(full)
    good = encoded(VALUE, full)
    # A text of two billion bytes, by its length: nobody may make room for it.
    huge = encoded(VALUE, nothing)[:3] + b"\x02\xfe\xff\xff\xff\x0f"
    values = [good, encoded(VALUE, nothing), good, b"", good[:-1], good + b"x", b'{"note":"x"}', huge, good]
    keys = [encoded(KEY, {"id": number}) for number in range(len(values))]
    keys[8] = b""
    broker.make("avro")
    broker.send("avro", list(zip(keys, values, strict=True)))
    broker.send("avro", [(keys[2], None), (b"\xff", None)])
    avro = {"format": "avro", "key_format": "avro", "value_schema": VALUE, "key_schema": KEY}
    rig = Rig(spark, tmp_path, broker, "avro", source=avro, shard={"schema": COLUMNS, "keys": ["id"]})
    rig.run()
    assert rig.table() == {0: tuple(full.values()), 1: tuple(nothing.values())}
    not_avro = "it is not Avro of the given schema"
    assert quarantined(rig) == {
        **dict.fromkeys(range(3, 8), not_avro),
        8: "its key is not Avro of the given schema",
        10: "it has no value, and its key is not Avro of the given schema",
    }
    assert rig.seals()[0].source.count == len(values) + 2
    assert [finding.verdict for finding in rig.replayed()] == [Verdict.IDENTICAL]


def test_confluents_wire_format_is_read_by_each_ids_schema_and_replays_need_no_registry(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    first, second = record("V", v="long"), record("V", v="string", w=["null", "string"])
    broker.make("wire")
    broker.send(
        "wire",
        [
            (encoded("long", 1, wire_id=3), encoded(first, {"v": 10}, wire_id=12)),
            (encoded("long", 2, wire_id=3), encoded(second, {"v": "20", "w": "x"}, wire_id=70_000)),
            (encoded("long", 3, wire_id=3), encoded(first, {"v": 30}, wire_id=99)),
            (encoded("long", 4, wire_id=3), encoded(first, {"v": 40})),
            (encoded("long", 5, wire_id=3), encoded(first, {"v": 50}, wire_id=12) + b"x"),
            (encoded("long", 1, wire_id=3), None),
        ],
    )
    rig = Rig(
        spark, tmp_path, broker, "wire",
        source={
            "format": "avro", "value_schema": {"12": first, "70000": second},
            "key_format": "avro", "key_schema": {"3": "long"},
        },
        shard={"schema": "id BIGINT, v STRING, w STRING", "keys": ["id"],
               "on_schema_change": "missing_as_null"},
    )  # fmt: skip
    rig.run()
    assert rig.table() == {2: ("20", "x")}
    assert quarantined(rig) == {
        2: "its schema has id 99, which is not known",
        3: "it does not begin with the id of a schema",
        4: "it is not Avro of the schema with id 12",
    }
    # The recorded schemas count, whatever the pipeline file has become.
    rig.settings["source"]["value_schema"] = {"99": first}
    assert [finding.verdict for finding in rig.replayed()] == [Verdict.IDENTICAL]


def test_a_registrys_schemas_are_bound_and_a_replay_asks_nobody(
    spark: SparkSession, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = record("V", v="long"), record("V", v="long", w=["null", "string"])
    broker.make("registered")
    with running_registry() as registry:
        settings = {
            "bootstrap.servers": broker.servers,
            "schema.registry.url": registry.url,
            "basic.auth.user.info": USER_INFO,
        }
        text = json.dumps({"conn_type": "kafka", "extra": settings})
        monkeypatch.setenv("AIRFLOW_CONN_KAFKA_REGISTERED", text)
        avro = {"format": "avro", "key_format": "avro", "value_schema": "registry", "key_schema": "registry"}
        rig = Rig(
            spark, tmp_path, broker, "registered",
            source={**avro, "kafka_config_id": "kafka_registered"},
            shard={"schema": "id BIGINT, v BIGINT, w STRING", "keys": ["id"],
                   "on_schema_change": "missing_as_null"},
        )  # fmt: skip
        registry.put("registered-key", 1, '"long"')
        registry.put("registered-value", 2, first)
        key = encoded("long", 1, wire_id=1), encoded("long", 2, wire_id=1)
        broker.send("registered", [(key[0], encoded(first, {"v": 10}, wire_id=2))])
        rig.run()
        # A producer registers its schema first, so the run that finds the record finds the schema.
        registry.put("registered-value", 3, second)
        broker.send("registered", [(key[1], encoded(second, {"v": 20, "w": "x"}, wire_id=3))])
        rig.run()
    assert rig.table() == {1: (10, None), 2: (20, "x")}
    bound = [KafkaManifest.from_json(binding.manifest).schemas for binding in rig.bindings()]
    assert [{part: sorted(by_id) for part, by_id in one.items()} for one in bound] == [
        {"value": [2], "key": [1]},
        {"value": [2, 3], "key": [1]},
    ]
    assert [finding.verdict for finding in rig.replayed()] == [Verdict.IDENTICAL] * 2
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path for path in files if USER_INFO.partition(":")[2].encode() in path.read_bytes()] == []


def test_debeziums_envelope_in_avro_and_headers_as_columns(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    row = record("Row", id="long", v=["null", "string"])
    change = record("Envelope", before=["null", row], after=["null", "Row"], op="string")
    broker.make("d-avro")

    def send(before: Any, after: Any, op: str, *headers: tuple[str, bytes]) -> None:
        producer = broker.producer()
        value = encoded(change, {"before": before, "after": after, "op": op}, wire_id=5)
        producer.produce("d-avro", value, key=None, headers=list(headers))
        assert producer.flush(30) == 0

    send(None, {"id": 1, "v": "a"}, "c", ("trace", b"t1"))
    send(None, {"id": 2, "v": "b"}, "c", ("trace", b"old"), ("trace", "new ü".encode()), ("other", b"o"))
    send(None, {"id": 3, "v": None}, "c")
    send(None, {"id": 4, "v": "d"}, "c", ("trace", b"\xff"))
    send({"id": 1, "v": "a"}, None, "d", ("trace", b"t2"))
    rig = Rig(
        spark, tmp_path, broker, "d-avro",
        envelope="debezium",
        source={"format": "avro", "value_schema": {"5": change}, "headers": {"trace_id": "trace"}},
        shard={"schema": "id BIGINT, v STRING, trace_id STRING", "keys": ["id"]},
    )  # fmt: skip
    rig.run()
    assert rig.table() == {2: ("b", "new ü"), 3: (None, None), 4: ("d", "base64:/w==")}
    assert quarantined(rig) == {}


def test_a_header_wins_over_a_field_of_its_columns_name_and_hides_no_other_field(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    broker.make("headers")
    settings: Any = {
        "source": {"headers": {"h": "trace"}},
        "shard": {"schema": "k STRING, v STRING, h STRING", "keys": ["k"], "on_error": "fail"},
    }
    rig = Rig(spark, tmp_path, broker, "headers", **settings)
    broker.send("headers", [('{"k":"a"}', '{"k":"a","v":"1","h":"own"}')], headers={"trace": b"t"})
    broker.send("headers", [('{"k":"b"}', '{"k":"b","v":"1"}')])
    rig.run()
    assert rig.table() == {"a": ("1", "t"), "b": ("1", None)}
    # As many names as columns, and one of them unknown.
    broker.send("headers", [('{"k":"c"}', '{"k":"c","v":"1","x":"2"}')], headers={"trace": b"t"})
    with pytest.raises(Exception, match="'x'"):
        rig.run()
