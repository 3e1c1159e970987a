"""A real Kafka broker on loopback, from its Maven jars: no container, no root, ready in seconds.

One node in KRaft mode, with a listener that asks for nothing and one that asks for a user and a password. Its
jars are fetched once into the project's own folder, with the sums of `kafka_broker.lock`; what Spark ships
already (Scala, Jackson, codecs, logging) is taken from there.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyspark
from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
)

from tidemark.airflow.processes import free_port
from tidemark.home import home
from tidemark.spark import ivy
from tidemark.spark.jars import fetch, read_lock
from tidemark.spark.java import use_java

LOCK = Path(__file__).with_suffix(".lock")
USER, PASSWORD = "reader", "s3cret-of-the-broker"
READY_SECONDS_MAX = 60
FROM_SPARK = (
    "jackson-annotations", "jackson-core", "jackson-databind", "jackson-dataformat-yaml", "log4j-api",
    "log4j-core", "log4j-slf4j2-impl", "lz4-java", "scala-library", "scala-reflect", "slf4j-api",
    "snakeyaml", "snappy-java", "zstd-jni",
)  # fmt: skip
JVM = ("-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule"

Record = tuple[Any, Any]
"""Key and value; text is sent as it is, bytes too, None is none."""


@dataclass
class Broker:
    """A running broker."""

    servers: str
    secured: str

    @cached_property
    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.servers, "log_level": 0})

    def make(self, topic: str, partitions: int = 1, **settings: str) -> str:
        """A new topic; settings with `_` for `.`."""
        config = {name.replace("_", "."): value for name, value in settings.items()}
        made = NewTopic(topic, num_partitions=partitions, replication_factor=1, config=config)
        self.admin.create_topics([made])[topic].result()
        return topic

    def configure(self, topic: str, **settings: str) -> None:
        """Change settings of a topic."""
        entries = [
            ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
            for name, value in settings.items()
        ]
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
        self.admin.incremental_alter_configs([resource])[resource].result()

    def grow(self, topic: str, partitions: int) -> None:
        self.admin.create_partitions([NewPartitions(topic, partitions)])[topic].result()

    def remove(self, topic: str) -> None:
        """Delete a topic, and wait until nobody sees it any more."""
        self.admin.delete_topics([topic])[topic].result()
        deadline = time.monotonic() + READY_SECONDS_MAX
        while topic in self.admin.list_topics(timeout=10).topics:
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def expire(self, topic: str, partition: int, below: int) -> None:
        """Let the broker forget the offsets below one, as its retention would."""
        asked = self.admin.delete_records([TopicPartition(topic, partition, below)])
        for future in asked.values():
            future.result()

    def producer(self, **settings: Any) -> Producer:
        given = {name.replace("_", "."): value for name, value in settings.items()}
        return Producer({"bootstrap.servers": self.servers, "linger.ms": 5, "log_level": 0, **given})

    def send(
        self,
        topic: str,
        records: Sequence[Record],
        *,
        partition: int = 0,
        headers: Mapping[str, bytes] | None = None,
        timestamp: int = 1_700_000_000_000,
    ) -> None:
        """Records to one partition, in order; their time is fixed, so that two topics can be compared."""
        producer = self.producer()
        for key, value in records:
            producer.produce(
                topic, value, key=key, partition=partition, headers=dict(headers or {}), timestamp=timestamp
            )
            producer.poll(0)
        assert producer.flush(30) == 0


@contextmanager
def running_broker(folder: Path) -> Iterator[Broker]:
    """Start a broker whose data is in the folder, and stop it."""
    port, secured, controller = (free_port() for _ in range(3))
    settings = folder / "server.properties"
    folder.mkdir(parents=True, exist_ok=True)
    settings.write_text(_settings(folder, port, secured, controller))
    java = [str(use_java().home / "bin" / "java"), *JVM, "-cp", _class_path()]
    with (folder / "broker.log").open("wb") as log:
        format_ = [*java, "kafka.tools.StorageTool", "format", "-t", "MkU3OEVBNTcwNTJENDM2Qg", "-c", settings]
        subprocess.run(format_, stdout=log, stderr=log, check=True, timeout=READY_SECONDS_MAX)
        process = subprocess.Popen([*java, "kafka.Kafka", settings], stdout=log, stderr=log)
    try:
        broker = Broker(f"127.0.0.1:{port}", f"127.0.0.1:{secured}")
        _wait(broker, process, folder / "broker.log")
        yield broker
    finally:
        # Nothing of it is kept, so it need not end in order.
        process.kill()
        process.wait(timeout=30)


def _wait(broker: Broker, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + READY_SECONDS_MAX
    while True:
        try:
            broker.admin.list_topics(timeout=1)
            return
        except KafkaException:
            late = process.poll() is not None or time.monotonic() > deadline
            assert not late, f"the broker does not answer: {log.read_text()[-2000:]}"


def _class_path() -> str:
    # In a process of its own: the resolver's JVM and a Spark session don't go together in one.
    subprocess.run([sys.executable, "-m", "tests.kafka_broker"], cwd=LOCK.parents[1], check=True)
    folder, jars = jars_folder(), read_lock(LOCK)
    spark = Path(pyspark.__file__).parent / "jars"
    shipped = [next(spark.glob(f"{name}-[0-9]*.jar")) for name in FROM_SPARK]
    return ":".join(str(path) for path in [*(folder / jar.coordinate.filename for jar in jars), *shipped])


def jars_folder() -> Path:
    return home() / "kafka-jars"


def _settings(folder: Path, port: int, secured: int, controller: int) -> str:
    listeners = f"OPEN://127.0.0.1:{port},SECURED://127.0.0.1:{secured}"
    lines = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listeners": f"{listeners},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": listeners,
        "inter.broker.listener.name": "OPEN",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,OPEN:PLAINTEXT,SECURED:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.secured.plain.sasl.jaas.config": f'{LOGIN} required user_{USER}="{PASSWORD}";',
        "log.dirs": str(folder / "data"),
        "auto.create.topics.enable": "false",
        "log.retention.ms": "-1",
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "1",
        "group.initial.rebalance.delay.ms": "0",
        "log.cleaner.backoff.ms": "200",
        "log.cleaner.min.cleanable.ratio": "0.01",
    }
    return "".join(f"{name}={value}\n" for name, value in lines.items())


if __name__ == "__main__":
    fetch(jars_folder(), read_lock(LOCK), ivy.download)
