"""A whole pipeline on a topic: send records, run, and look at tables, bindings and quarantine."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from tests.support.kafka import Broker, Record
from tidemark.app.deployment import Deployment, new_token
from tidemark.app.views import View, read
from tidemark.config import PipelineConfig
from tidemark.core.binding import Binding, Owner
from tidemark.core.ids import ShardId, Txn
from tidemark.core.publish import Published
from tidemark.core.replay import Finding
from tidemark.core.seal import Seal
from tidemark.pipeline.context import Attempt
from tidemark.pipeline.publish import publish
from tidemark.pipeline.run import RunReport, replay, run
from tidemark.sources.kafka.cluster import Cluster
from tidemark.sources.kafka.manifest import KafkaManifest

TABLE = ShardId("t")
QUARANTINE = ShardId("quarantine")
KV = {"schema": "k STRING, v STRING", "keys": ["k"]}

Row = dict[str, Any]


def kv(key: str | None, value: str | None) -> Record:
    """A record of the table (k, v) that has its key in both places; without a value it is a tombstone."""
    document = None if value is None else json.dumps({"k": key, "v": value})
    return (None if key is None else json.dumps({"k": key}), document)


class Rig:
    """A pipeline below a folder, named for its first topic. Every call opens it anew: what is kept is in the
    folder and in the broker."""

    def __init__(
        self, spark: SparkSession, root: Path, broker: Broker, *topics: str, name: str = "", **settings: Any
    ) -> None:
        self.spark, self.root, self.broker = spark, root, broker
        shards = settings.pop("shards", None) or [{"name": "t", **settings.pop("shard", KV)}]
        source = {"type": "kafka", "topics": list(topics), **settings.pop("source", {})}
        if "kafka_config_id" not in source:
            source["bootstrap_servers"] = source.get("bootstrap_servers", broker.servers)
        name = name or re.sub(r"\W", "_", topics[0].lower())
        self.settings: Row = {"name": name, "source": source, "warehouse": "wh", "shards": shards, **settings}

    @property
    def config(self) -> PipelineConfig:
        return PipelineConfig.model_validate(self.settings).at(self.root)

    def opened(self) -> Deployment:
        return Deployment(self.config, lambda: self.spark)

    @staticmethod
    def attempt() -> Attempt:
        return Attempt(Owner(new_token()), new_token())

    def run(self, **settings: Any) -> RunReport:
        return run(self.opened().pipeline, self.attempt(), **settings)

    def replayed(self) -> tuple[Finding, ...]:
        last = self.opened().control.seals.head().upper - 1
        return replay(self.opened().pipeline, self.attempt(), txn_from=Txn(1), txn_to=Txn(last))

    def bindings(self) -> list[Binding]:
        ledger = self.opened().control.bindings
        return list(ledger.read(1, ledger.head().upper))

    def ranges(self) -> list[dict[str, list[int]]]:
        """What each transaction reads."""
        manifests = [KafkaManifest.from_json(binding.manifest) for binding in self.bindings()]
        return [{one.name: [one.lower, one.upper] for one in made.ranges} for made in manifests]

    def seals(self) -> list[Seal]:
        ledger = self.opened().control.seals
        return list(ledger.read(1, ledger.head().upper))

    def rows(self, shard: ShardId = TABLE) -> list[Row]:
        """The rows of a shard's log, transaction by transaction."""
        log = self.root / "wh" / self.settings["name"] / shard / "log"
        sealed = [seal.shards[shard].parts for seal in self.seals() if shard in seal.shards]
        return [
            row for parts in sealed for part in parts for row in pq.read_table(log / part.path).to_pylist()
        ]

    def table(self, shard: ShardId = TABLE) -> dict[Any, Any]:
        """The current value of each key, from the log alone: the last row by transaction stands."""
        keys = list(self.config.shard(shard).keys)
        found: dict[Any, Any] = {}
        for row in self.rows(shard):
            key = row[keys[0]] if len(keys) == 1 else tuple(row[key] for key in keys)
            found.pop(key, None)
            if row["_op"] == "U":
                values = [value for name, value in row.items() if name[0] != "_" and name not in keys]
                found[key] = values[0] if len(values) == 1 else tuple(values)
        return found

    def seen(self, view: View = View.FRESH, shard: ShardId = TABLE) -> dict[Any, Any]:
        """What a reader of the product sees, in the form of `table`."""
        found: dict[Any, Any] = {}
        keys = list(self.config.shard(shard).keys)
        for row in read(self.opened(), shard, view=view).collect():
            key = row[keys[0]] if len(keys) == 1 else tuple(row[key] for key in keys)
            assert key not in found
            values = [value for name, value in row.asDict().items() if name not in keys]
            found[key] = values[0] if len(values) == 1 else tuple(values)
        return found

    def publish(self, shard: ShardId = TABLE) -> None:
        works = self.opened()
        done = publish(works.control, works.state(), shard, token=new_token())
        assert isinstance(done, Published)

    def committed(self) -> dict[str, int]:
        """The consumer group's offsets, as the broker has them."""
        cluster = Cluster(lambda: {"bootstrap.servers": self.broker.servers})
        return cluster.committed(f"tidemark-{self.settings['name']}", self.bindings()[-1].upper.as_dict())
