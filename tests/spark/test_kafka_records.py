"""Records of a topic, through the whole pipeline and a real broker: keys, tombstones, envelopes, bad ones."""

from __future__ import annotations

import base64
import json
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support.kafka import Broker, Record
from tests.support.kafka_pipeline import QUARANTINE, TABLE, Rig, kv
from tidemark.app.views import open_errors
from tidemark.config import KafkaSource, load_pipeline
from tidemark.core.ids import ShardId
from tidemark.core.replay import Verdict
from tidemark.spark.failures import Refused

pytestmark = [pytest.mark.spark, pytest.mark.server]

U1 = [
    ("a", "1"), ("b", "1"), ("c", "1"), ("d", "1"), ("b", None),
    ("c", "2"), ("e", "1"), ("d", None), ("e", "2"),
]  # fmt: skip
ID_V = {"schema": "id BIGINT, v BIGINT", "keys": ["id"]}


def sent(broker: Broker, topic: str, records: list[Record], partitions: int = 1) -> str:
    """A topic with these records, those of one key in one partition."""
    broker.make(topic, partitions)
    places: dict[Any, int] = {}
    for key, _ in records:
        places.setdefault(key, len(places) % partitions)
    for number in range(partitions):
        broker.send(topic, [record for record in records if places[record[0]] == number], partition=number)
    return topic


def test_u1_with_1_2_and_5_partitions_the_table_and_the_digests_are_the_same(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    """Invariant 6: in one transaction and in many, and again after a replay."""
    digests = set()
    for partitions in (1, 2, 5):
        topic = sent(broker, f"u1-{partitions}", [kv(*pair) for pair in U1], partitions)
        whole = Rig(spark, tmp_path, broker, topic, name=f"whole_{partitions}")
        whole.run()
        (seal,) = whole.seals()
        digests.add((str(seal.source), str(seal.shards[TABLE].digest)))
        assert (whole.table(), seal.source.count) == ({"a": "1", "c": "2", "e": "2"}, len(U1))
        assert [finding.verdict for finding in whole.replayed()] == [Verdict.IDENTICAL]
    assert len(digests) == 1
    cut = Rig(spark, tmp_path, broker, "u1-2", name="cut", transaction={"max_records": 3})
    cut.run()
    assert (cut.table(), [seal.source.count for seal in cut.seals()]) == (whole.table(), [3, 3, 3])


def test_a_key_completes_its_value_and_stands_alone_in_a_tombstone(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    """A key's columns count where the value has none; what else it has doesn't."""
    records: list[Record] = [
        ('{"id":1,"region":"x"}', '{"v":10}'),
        ('{"id":2}', '{"id":2,"v":20}'),
        ('{"id":3}', '{"id":null,"v":30}'),
        ('{"id":9}', '{"id":4,"v":40}'),  # The value's own key counts.
        ('{"id":2,"region":"x"}', None),
        ("no json", None),
        ("no json", '{"id":5,"v":50}'),  # Nobody has to read this key.
        ("no json", '{"v":60}'),
        (None, None),
        ('{"id":"x"}', '{"v":70}'),
    ]
    topic = sent(broker, "keys", records)
    rig = Rig(spark, tmp_path, broker, topic, shard=ID_V)
    rig.run()
    assert rig.table() == {1: 10, 3: 30, 4: 40, 5: 50}
    assert [(row["_offset"], row["_reason"]) for row in rig.rows(QUARANTINE)] == [
        (5, "it has no value, and its key is not a JSON object"),
        (7, "its key is not a JSON object"),
        (8, "it has no value, and its key is not a JSON object"),
        (9, "column 'id' is BIGINT, found 'x'"),
    ]
    assert [finding.verdict for finding in rig.replayed()] == [Verdict.IDENTICAL]


@pytest.mark.parametrize(
    ("kind", "keys", "expected"),
    [
        pytest.param("STRING", ["a", "7", '"q"\\'], {"a": 1, "7": 2, '"q"\\': 3}, id="string"),
        pytest.param("BIGINT", ["1", "-2", "x"], {1: 1, -2: 2}, id="bigint"),
    ],
)
def test_a_string_key_is_the_one_key_column(
    spark: SparkSession, broker: Broker, tmp_path: Path, kind: str, keys: list[str], expected: dict[Any, int]
) -> None:
    records: list[Record] = [(key, json.dumps({"v": number})) for number, key in enumerate(keys, start=1)]
    topic = sent(broker, f"strings-{kind}", [*records, ("0", '{"v":1}'), ("0", None)])
    shard = {"schema": f"k {kind}, v BIGINT", "keys": ["k"]}
    rig = Rig(spark, tmp_path, broker, topic, shard=shard, source={"key_format": "string"})
    rig.run()
    assert rig.table() == expected
    bad = [(row["_offset"], row["_reason"]) for row in rig.rows(QUARANTINE)]
    assert bad == ([] if kind == "STRING" else [(2, "column 'k' is BIGINT, found 'x'")])


def test_e1_quarantine_keeps_position_bytes_and_headers(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    rig = Rig(spark, tmp_path, broker, broker.make("bad", 2))
    broker.send("bad", [kv("a", "1"), (None, '{"k":null,"v":"x"}'), kv("b", "1"), kv("a", None)])
    broker.send(
        "bad", [(b"\xff\x00", b"\xfe\xfd"), kv("c", "1")], partition=1, headers={"trace": b"\x80", "h": b"t"}
    )
    rig.run()
    assert rig.table() == {"b": "1", "c": "1"}
    null, binary = sorted(rig.rows(QUARANTINE), key=lambda row: str(row["_partition"]))
    assert (null["_partition"], null["_offset"], null["_ordinal"]) == ("bad-0", 1, 0)
    assert (null["_reason"], json.loads(null["_raw"])["value"]) == (
        "the key (k) is NULL",
        '{"k":null,"v":"x"}',
    )
    assert (binary["_partition"], binary["_offset"]) == ("bad-1", 0)
    assert binary["_reason"] == "it is not a JSON object"
    kept = json.loads(binary["_raw"])
    assert [base64.b64decode(kept[part].removeprefix("base64:")) for part in ("key", "value")] == [
        b"\xff\x00",
        b"\xfe\xfd",
    ]
    assert kept["headers"] == [{"key": "trace", "value": "base64:gA=="}, {"key": "h", "value": "t"}]
    (seal,) = rig.seals()
    assert (seal.source.count, seal.shards[QUARANTINE].digest.count) == (6, 2)
    assert [finding.verdict for finding in rig.replayed()] == [Verdict.IDENTICAL]


def test_e2_a_key_with_an_undecodable_value_has_an_open_error_until_a_good_one_comes(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    """The key of a record can be read even where its value can't, and what is left of a value is no key."""
    rig = Rig(spark, tmp_path, broker, broker.make("e2"), shard=ID_V)
    keys = [json.dumps({"id": number}) for number in (1, 2, 3, 4)]
    broker.send("e2", [(key, '{"v":1}') for key in keys])
    rig.run()
    broken: list[Record] = [
        (keys[1], '{"v":"x"}'),
        (keys[2], '{"id":33'),
        (keys[3], b"\xff"),
        (keys[0], '{"v":5}'),
    ]
    broker.send("e2", broken)
    rig.run()
    assert rig.table() == {1: 5, 2: 1, 3: 1, 4: 1}
    unresolved = open_errors(rig.opened(), "t").select("_key", "_offset").collect()
    assert sorted(map(tuple, unresolved)) == [('{"id":2}', 4), ('{"id":3}', 5), ('{"id":4}', 6)]
    broker.send("e2", [(keys[1], '{"v":7}'), (keys[2], None)])
    rig.run()
    assert rig.table() == {1: 5, 2: 7, 4: 1}
    assert [row["_key"] for row in open_errors(rig.opened(), "t").collect()] == ['{"id":4}']


def test_a1_an_append_topic_keeps_every_value_and_skips_what_is_empty(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    records: list[Record] = [
        ("h", '{"w":"w"}'),
        (None, '{"w":"f"}'),
        (None, None),
        ("k", None),
        ("h", '{"w":"w"}'),
    ]
    topic = sent(broker, "appended", records)
    rig = Rig(spark, tmp_path, broker, topic, envelope="append", shard={"schema": "w STRING"})
    rig.run()
    assert sorted(row["w"] for row in rig.rows()) == ["f", "w", "w"]
    assert [(row["_offset"], row["_reason"]) for row in rig.rows(QUARANTINE)] == [(3, "it has no value")]


def change(op: str, before: Any, after: Any, table: str = "t", **more: Any) -> str:
    """A change as Debezium's Postgres connector writes it."""
    rows = [None if pair is None else {"id": pair[0], "v": pair[1]} for pair in (before, after)]
    source = {
        "version": "3.2.0.Final", "connector": "postgresql", "name": "shop", "ts_ms": 1700000000000,
        "snapshot": "false", "db": "shop", "sequence": '["1","2"]', "schema": "public", "table": table,
        "txId": 755, "lsn": 34837776, "xmin": None,
    }  # fmt: skip
    envelope = {"before": rows[0], "after": rows[1], "source": source, "op": op, "ts_ms": 1700000000123}
    return json.dumps({**envelope, "transaction": None, **more})


def with_schema(payload: str | None) -> str:
    """The same with the JSON converter's `schemas.enable`: the schema goes along with every record."""
    field = {
        "type": "struct",
        "optional": True,
        "field": "after",
        "fields": [{"type": "int64", "field": "id"}],
    }
    schema = {"type": "struct", "fields": [field], "optional": False, "name": "shop.public.t.Envelope"}
    return json.dumps({"schema": schema, "payload": None if payload is None else json.loads(payload)})


def with_key_schema(number: int) -> str:
    """A key with its schema, which the converter sends along by a setting of its own."""
    fields = [{"type": "int64", "optional": False, "field": "id"}]
    schema = {"type": "struct", "fields": fields, "optional": False, "name": "shop.public.t.Key"}
    return json.dumps({"schema": schema, "payload": {"id": number}})


def test_d1_d2_d3_d4_debezium_with_and_without_its_schema(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    """The tombstones that follow deletions, and a deletion without a `before`, which has the key of its
    record."""
    key = [json.dumps({"id": number}) for number in range(9)]
    sent_to: dict[int, list[Record]] = {
        0: [
            (key[1], change("u", (1, 9), (1, 10))),
            (key[1], change("u", None, (1, 11))),
            (key[1], with_schema(change("u", (1, 4), (1, 12)))),
            (key[2], change("u", (2, 1), (2, 2))),
            (key[2], change("u", (2, 1), (2, 2))),
        ],
        1: [
            (key[3], change("c", None, (3, 1))),
            (key[3], change("d", (3, 99), None)),
            (key[3], None),
            (key[4], with_schema(change("c", None, (4, 1)))),
            (with_key_schema(4), change("d", None, None)),
            (key[4], None),
        ],
        2: [
            (key[5], change("r", None, (5, 5))),
            (key[6], with_schema(change("c", None, (6, 6)))),
            (key[7], None),
        ],
    }
    broker.make("shop.public.t", 3)
    for partition, records in sent_to.items():
        broker.send("shop.public.t", records, partition=partition)
    rig = Rig(spark, tmp_path, broker, "shop.public.t", envelope="debezium", shard=ID_V)
    rig.run()
    assert rig.table() == {1: 12, 2: 2, 5: 5, 6: 6}
    assert rig.rows(QUARANTINE) == []
    assert sum(seal.source.count for seal in rig.seals()) == 14
    broker.send("shop.public.t", [(key[3], change("u", (3, 1), (3, 7)))], partition=1)
    rig.run()
    assert rig.table() == {1: 12, 2: 2, 3: 7, 5: 5, 6: 6}
    assert {finding.verdict for finding in rig.replayed()} == {Verdict.IDENTICAL}


def test_regression_a_debezium_record_that_is_no_text_is_quarantined_with_its_reason(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    broker.make("shop.public.bytes")
    good = (json.dumps({"id": 2}), change("c", None, (2, 2)))
    broker.send("shop.public.bytes", [(json.dumps({"id": 1}), b"\xff\xfe\x00bad"), good])
    rig = Rig(spark, tmp_path, broker, "shop.public.bytes", envelope="debezium", shard=ID_V)
    rig.run()
    assert rig.table() == {2: 2}
    (bad,) = rig.rows(QUARANTINE)
    assert (bad["_offset"], bad["_reason"]) == (0, "it has no readable 'after' or 'before'")


def test_d5_the_order_of_positions_between_partitions_loses_no_row(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    """Positions 3, 2, 1 in partitions 2, 1, 0 of the connector's one stream; `lsn` and offset are theirs."""
    broker.make("d5", 3)
    for partition, position in ((2, 3), (1, 2), (0, 1)):
        # As many tombstones before it as bring the record to its position.
        before: list[Record] = [('{"id":0}', None)] * position
        record = (json.dumps({"id": position}), change("c", None, (position, position * 10)))
        broker.send("d5", [*before, record], partition=partition)
    rig = Rig(spark, tmp_path, broker, "d5", envelope="debezium", shard=ID_V)
    rig.run()
    assert {(row["_partition"], row["_offset"]) for row in rig.rows()} == {
        ("d5-2", 3), ("d5-1", 2), ("d5-0", 1),
    }  # fmt: skip
    assert rig.seen() == {1: 10, 2: 20, 3: 30}
    assert {finding.verdict for finding in rig.replayed()} == {Verdict.IDENTICAL}


def test_the_example_of_debeziums_topics_gives_the_rows_of_both_tables(
    spark: SparkSession, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Payloads alone, with decimals as bytes, dates as days, and times in microseconds."""
    extra = {"bootstrap.servers": broker.servers}
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps({"conn_type": "kafka", "extra": extra}))
    config = load_pipeline(Path(__file__).resolve().parents[2] / "include/pipelines/inventory.yaml")
    assert isinstance(config.source, KafkaSource)
    rig = Rig(spark, tmp_path, broker, *config.source.topics)
    rig.settings = json.loads(config.canonical_json()) | {"warehouse": "wh"}

    def sent(table: str, key: dict[str, Any], op: str, after: dict[str, Any] | None) -> None:
        source = {"connector": "postgresql", "db": "shop", "schema": "inventory", "table": table}
        value = {"before": None, "after": after, "source": source, "op": op, "ts_ms": 1700000000123}
        broker.send(f"shop.inventory.{table}", [(json.dumps(key), json.dumps(value))])

    for topic in config.source.topics:
        broker.make(topic)
    sent("products", {"id": 1}, "c", {"id": 1, "title": "cup", "price": "MDk=", "added": 19782})
    sent("products", {"id": 2}, "c", {"id": 2, "title": "jug", "price": None, "added": None})
    sent("products", {"id": 2}, "d", None)
    place = {"product_id": 1, "place": "A"}
    sent("stock", place, "c", {**place, "amount": 3, "counted_at": 1529507596945104})
    rig.run()
    products, stock = (rig.seen(shard=ShardId(name)) for name in ("products", "stock"))
    assert products == {1: ("cup", Decimal("123.45"), date(2024, 2, 29))}
    assert stock == {(1, "A"): (3, datetime.fromisoformat("2018-06-20T15:13:16.945104"))}
    assert rig.rows(QUARANTINE) == []


def test_d7_m11_topics_of_several_tables_go_to_their_shards_and_a_truncate_is_refused_by_its_offset(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    topics = [broker.make(f"many.public.{table}") for table in ("orders", "parties")]
    shards = [
        {**ID_V, "name": table, "route": {"table": f"public.{table}"}} for table in ("orders", "parties")
    ]
    rig = Rig(spark, tmp_path, broker, *topics, envelope="debezium", shards=shards)
    broker.send(topics[0], [('{"id":1}', change("c", None, (1, 1), "orders"))])
    broker.send(topics[1], [('{"id":1}', change("c", None, (1, 2), "parties"))])
    rig.run()
    broker.send(topics[1], [('{"id":2}', change("c", None, (2, 3), "parties"))])
    rig.run()
    assert rig.table(ShardId("orders")) == {1: 1}
    assert rig.table(ShardId("parties")) == {1: 2, 2: 3}
    assert [sorted(seal.shards) for seal in rig.seals()] == [["orders", "parties"], ["parties"]]
    broker.send(topics[0], [(None, change("t", None, None, "orders"))])
    place = r"refused at many\.public\.orders-0, offset 1"
    with pytest.raises(Refused, match=f"{place}: a truncate of public.orders can't be applied"):
        rig.run()
    assert len(rig.seals()) == 2
