"""`on_schema_change: add_columns` on topics: columns come with Connect's schemas, and with those of Avro."""

from __future__ import annotations

import io
import json
import struct
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from fastavro import parse_schema, schemaless_writer
from pyspark.sql import SparkSession

from tests.support.kafka import Broker
from tests.support.kafka_pipeline import TABLE, Rig
from tests.support.kafka_registry import USER_INFO, running_registry
from tidemark.core.errors import InvalidUsage
from tidemark.core.replay import Verdict
from tidemark.pipeline.run import run

pytestmark = [pytest.mark.spark, pytest.mark.server]

SHARD = {"schema": "id BIGINT, v STRING", "keys": ["id"], "on_schema_change": "add_columns"}


def record(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": f, "type": t} for f, t in fields.items()]}


def encoded(schema: Any, value: Any, *, wire_id: int) -> bytes:
    out = io.BytesIO()
    out.write(struct.pack(">bI", 0, wire_id))
    schemaless_writer(out, parse_schema(json.loads(json.dumps(schema))), value)
    return out.getvalue()


def ran(rig: Rig) -> None:
    works = rig.opened()
    works.up_to_date(lambda: run(works.pipeline, rig.attempt()))


def test_columns_come_with_the_schemas_of_debezium_records(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    def change(row: dict[str, Any], **kinds: str) -> str:
        fields = [{"type": kind, "optional": True, "field": name} for name, kind in kinds.items()]
        schema = {"type": "struct", "fields": [{"type": "struct", "fields": fields, "field": "after"}]}
        return json.dumps({"schema": schema, "payload": {"after": row, "op": "c", "source": {}}})

    topic = broker.make("growing-json")
    rig = Rig(spark, tmp_path, broker, "growing-json", shard=SHARD, envelope="debezium")
    broker.send(topic, [(None, change({"id": 1, "v": "a"}, id="int64", v="string"))])
    ran(rig)
    wide = change({"id": 2, "v": "b", "n": 3}, id="int64", v="string", n="int16")
    broker.send(topic, [(None, wide), (None, change({"id": 3, "v": "c"}, id="int64", v="string"))])
    ran(rig)
    assert rig.opened().added == {TABLE: {"n": "SMALLINT"}}
    assert rig.table() == {1: "a", 2: ("b", 3), 3: ("c", None)}
    assert [finding.verdict for finding in rig.replayed()] == [Verdict.IDENTICAL] * 2


def test_columns_come_with_the_schemas_that_avro_was_written_with(
    spark: SparkSession, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not with all that the registry has: `gone` was in a schema once, and is in no record."""
    old = record("V", id="long", v=["null", "string"], gone=["null", "string"])
    first = record("V", id="long", v=["null", "string"])
    stamp = ["null", {"type": "long", "logicalType": "timestamp-micros"}]
    second = record("V", id="long", v=["null", "string"], at=stamp, n=["null", "int"])
    topic = broker.make("growing-avro")
    with running_registry() as registry:
        settings = {
            "bootstrap.servers": broker.servers,
            "schema.registry.url": registry.url,
            "basic.auth.user.info": USER_INFO,
        }
        text = json.dumps({"conn_type": "kafka", "extra": settings})
        monkeypatch.setenv("AIRFLOW_CONN_KAFKA_GROWING", text)
        source = {"format": "avro", "value_schema": "registry", "kafka_config_id": "kafka_growing"}
        rig = Rig(spark, tmp_path, broker, "growing-avro", source=source, shard=SHARD)
        registry.put("growing-avro-value", 1, old)
        registry.put("growing-avro-value", 2, first)
        broker.send(topic, [(None, encoded(first, {"id": 1, "v": "a"}, wire_id=2))])
        ran(rig)
        registry.put("growing-avro-value", 3, second)
        value = {"id": 2, "v": "b", "at": 1_500_000, "n": 3}
        broker.send(topic, [(None, encoded(second, value, wire_id=3))])
        ran(rig)
    assert rig.opened().added == {TABLE: {"at": "TIMESTAMP", "n": "INT"}}
    (row,) = (row for row in rig.rows() if row["id"] == 2)
    assert (str(row["at"]), row["n"]) == ("1970-01-01 00:00:01.500000+00:00", 3)
    assert [finding.verdict for finding in rig.replayed()] == [Verdict.IDENTICAL] * 2


def test_columns_come_with_debeziums_rows_in_avro_where_the_settings_tell_what_they_count(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    micros = {"type": "long", "connect.name": "io.debezium.time.MicroTimestamp"}
    price = {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}
    row = record("Row", id="long", v=["null", "string"], at=["null", micros], price=["null", price])
    change = record("Envelope", before=["null", row], after=["null", "Row"], op="string")
    topic = broker.make("growing-d-avro")
    source = {"format": "avro", "value_schema": {5: change}}
    rig = Rig(spark, tmp_path, broker, "growing-d-avro", source=source, shard=SHARD, envelope="debezium")
    after = {"id": 1, "v": "a", "at": 1_500_000, "price": Decimal("2.30")}
    value = {"before": None, "after": after, "op": "c"}
    broker.send(topic, [(None, encoded(change, value, wire_id=5))])
    with pytest.raises(InvalidUsage, match=r"new column 'at'.*time_precision_mode is adaptive"):
        ran(rig)
    assert rig.opened().added == {}
    rig.settings["debezium"] = {"time_precision_mode": "microseconds"}
    ran(rig)
    assert rig.opened().added == {TABLE: {"at": "TIMESTAMP_NTZ", "price": "DECIMAL(12,2)"}}
    (found,) = rig.rows()
    assert (str(found["at"]), str(found["price"])) == ("1970-01-01 00:00:01.500000", "2.30")
    assert [finding.verdict for finding in rig.replayed()] == [Verdict.IDENTICAL]
