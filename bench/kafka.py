"""What reading a topic costs: `python -m bench.kafka`, `python -m bench.kafka --format avro`.

A real broker gets `--records` records, in JSON or in Avro by Confluent's wire format, in `--partitions`
partitions, four fifths of them with a key of their own. Then, in turns and in one warm session, each as
medians of `--rounds`:

- *plain read*: Spark's Kafka reader over the same offsets, `from_json` or `from_avro`, and a write as
  Parquet;
- *last by key*: the same with `row_number` over the key, which is what a table needs;
- *transaction*: a whole run of the product on the same records, from binding to checkpoint.

Both ratios are the throughput of the transaction over the other's; the target is 0.8 of the plain read's.
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import fastavro
from pyspark.sql import DataFrame, SparkSession

from tests.support.kafka import Broker, running_broker
from tidemark.app.deployment import Deployment, new_token
from tidemark.config import PipelineConfig
from tidemark.core.binding import Owner
from tidemark.pipeline.context import Attempt
from tidemark.pipeline.run import run
from tidemark.spark.session import build_session

TARGET = 0.8
TOPIC = "bench"
COLUMNS = "id BIGINT, name STRING, amount DOUBLE, note STRING, version BIGINT"
TYPES = {"id": "long", "name": "string", "amount": "double", "note": "string", "version": "long"}
SCHEMA = {"type": "record", "name": "R", "fields": [{"name": n, "type": t} for n, t in TYPES.items()]}
WIRE = b"\0\0\0\0\x07"


def encoder(file_format: str) -> Callable[[dict[str, Any]], bytes]:
    """How a row is written."""
    if file_format == "json":
        return lambda row: json.dumps(row).encode()
    schema = fastavro.parse_schema(json.loads(json.dumps(SCHEMA)))

    def encoded(row: dict[str, Any]) -> bytes:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, schema, row)
        return WIRE + out.getvalue()

    return encoded


def fill(broker: Broker, records: int, partitions: int, file_format: str) -> None:
    encoded = encoder(file_format)
    broker.make(TOPIC, partitions)
    producer = broker.producer(linger_ms=100, queue_buffering_max_messages=200_000)
    for number in range(records):
        key = number * 7919 % (records * 4 // 5)
        row = {"id": key, "name": f"name {key}", "amount": number / 4, "note": "n" * 40, "version": number}
        while True:
            try:
                producer.produce(TOPIC, encoded(row), key=json.dumps({"id": key}), partition=key % partitions)
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush()


def parsed(spark: SparkSession, broker: Broker, file_format: str) -> DataFrame:
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", broker.servers)
    records = reader.option("subscribe", TOPIC).option("kafka.isolation.level", "read_committed").load()
    value = f"from_json(cast(value as string), '{COLUMNS}')"
    if file_format == "avro":
        value = f"from_avro(substring(value, {len(WIRE) + 1}), '{json.dumps(SCHEMA)}')"
    rows = records.selectExpr(f"{value} AS v", "topic", "partition", "offset")
    return rows.selectExpr("v.*", "partition AS _partition", "offset AS _offset")


def last_by_key(rows: DataFrame) -> DataFrame:
    order = "ORDER BY version DESC, _partition DESC, _offset DESC"
    ranked = rows.selectExpr("*", f"row_number() OVER (PARTITION BY id {order}) AS _rank")
    return ranked.where("_rank = 1").drop("_rank")


class Bench:
    """One topic, read in three ways."""

    def __init__(self, spark: SparkSession, broker: Broker, folder: Path, file_format: str) -> None:
        self.spark, self.broker, self.folder, self.turn = spark, broker, folder, 0
        self.format = file_format

    def rows(self) -> DataFrame:
        return parsed(self.spark, self.broker, self.format)

    def plain(self) -> None:
        self.rows().write.parquet(str(self.folder / f"plain-{self.turn}"))

    def folded(self) -> None:
        last_by_key(self.rows()).write.parquet(str(self.folder / f"folded-{self.turn}"))

    def transaction(self) -> None:
        source: dict[str, Any] = {
            "type": "kafka", "bootstrap_servers": self.broker.servers, "topics": [TOPIC],
        }  # fmt: skip
        if self.format == "avro":
            source |= {"format": "avro", "value_schema": {str(WIRE[-1]): SCHEMA}}
        shard = {"name": "rows", "schema": COLUMNS, "keys": ["id"], "sequence_by": "version"}
        settings = {
            "name": f"turn_{self.turn}", "source": source, "warehouse": "wh", "shards": [shard],
            "transaction": {"max_records": 2**40},
        }  # fmt: skip
        config = PipelineConfig.model_validate(settings).at(self.folder)
        run(Deployment(config, lambda: self.spark).pipeline, Attempt(Owner(new_token()), new_token()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=300_000)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--format", choices=["json", "avro"], default="json")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory", default="2g")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tidemark-bench-") as scratch:
        folder = Path(scratch)
        confs = {"spark.driver.memory": given.memory}
        spark = build_session("bench", master="local[2]", scratch_folder=folder / "scratch", confs=confs)
        with running_broker(folder / "broker") as broker:
            fill(broker, given.records, given.partitions, given.format)
            bench = Bench(spark, broker, folder, given.format)
            ways: dict[str, Callable[[], None]] = {
                "plain read": bench.plain,
                "last by key": bench.folded,
                "transaction": bench.transaction,
            }
            taken: dict[str, list[float]] = {name: [] for name in ways}
            for turn in range(given.rounds + 1):
                bench.turn = turn
                for name, way in ways.items():
                    begin = perf_counter()
                    way()
                    if turn:  # The first round warms up.
                        taken[name].append(perf_counter() - begin)
        spark.stop()
    medians = {name: statistics.median(seconds) for name, seconds in taken.items()}
    print(f"{given.records:,} {given.format} records, {given.partitions} partitions\n")
    print(f"| | seconds | records per second | transaction against it, target {TARGET:.2f}x |")
    print("| --- | ---: | ---: | ---: |")
    for name, seconds in medians.items():
        ratio = seconds / medians["transaction"]
        said = "" if name == "transaction" else f"{ratio:.2f}x, {'met' if ratio >= TARGET else 'missed'}"
        print(f"| {name} | {seconds:.2f} | {given.records / seconds:,.0f} | {said} |")


if __name__ == "__main__":
    main()
