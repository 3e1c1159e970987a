"""A real Kafka broker on loopback, from its Maven jars: no container, no root, ready in seconds.

One node in KRaft mode, with a listener that asks for nothing, one that asks for a user and a password, and
one that asks for them by SCRAM over TLS, with a certificate of its own authority. Its jars are fetched once
into the project's own folder, with the sums of `kafka.lock`; what Spark ships already (Scala, Jackson,
codecs, logging) is taken from there.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyspark
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
)

from scripts.local_airflow.processes import free_port
from tests.support import ROOT
from tests.support.certificates import Authority
from tidemark.runtime import jars as ivy
from tidemark.runtime.jars import fetch, read_lock
from tidemark.runtime.machine import home, use_java

LOCK = Path(__file__).with_suffix(".lock")
USER, PASSWORD = "reader", "s3cret-of-the-broker"
READY_SECONDS_MAX = 180
FROM_SPARK = (
    "jackson-annotations", "jackson-core", "jackson-databind", "jackson-dataformat-yaml", "log4j-api",
    "log4j-core", "log4j-slf4j2-impl", "lz4-java", "scala-library", "scala-reflect", "slf4j-api",
    "snakeyaml", "snappy-java", "zstd-jni",
)  # fmt: skip
JVM = ("-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")
SCRAM_LOGIN = "org.apache.kafka.common.security.scram.ScramLoginModule"

Record = tuple[Any, Any]
"""Key and value; text is sent as it is, bytes too, None is none."""


@dataclass
class Broker:
    """A running broker."""

    servers: str
    secured: str
    scrammed: str
    authority: Authority

    @cached_property
    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.servers, "log_level": 0})

    def make(self, topic: str, partitions: int = 1, **settings: str) -> str:
        """A new topic; settings with `_` for `.`."""
        config = {name.replace("_", "."): value for name, value in settings.items()}
        made = NewTopic(topic, num_partitions=partitions, replication_factor=1, config=config)
        self.admin.create_topics([made])[topic].result()
        self._until(lambda: self._has(topic, partitions))
        return topic

    def configure(self, topic: str, **settings: str) -> None:
        """Change settings of a topic."""
        entries = [
            ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
            for name, value in settings.items()
        ]
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
        self.admin.incremental_alter_configs([resource])[resource].result()
        wanted = {entry.name: entry.value for entry in entries}
        self._until(lambda: wanted.items() <= self._settings_of(topic).items())

    def grow(self, topic: str, partitions: int) -> None:
        self.admin.create_partitions([NewPartitions(topic, partitions)])[topic].result()
        self._until(lambda: self._has(topic, partitions))

    def remove(self, topic: str) -> None:
        """Delete a topic, and wait until nobody sees it any more."""
        self.admin.delete_topics([topic])[topic].result()
        self._until(lambda: topic not in self.admin.list_topics(timeout=10).topics)

    # What the controller has decided, the broker tells its clients a moment later.

    @staticmethod
    def _until(told: Callable[[], bool]) -> None:
        deadline = time.monotonic() + READY_SECONDS_MAX
        while not told():
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def _has(self, topic: str, partitions: int) -> bool:
        """Whether clients see a topic with so many partitions, and where to write them."""
        found = self.admin.list_topics(topic, timeout=10).topics[topic]
        led = [one for one in found.partitions.values() if one.error is None and one.leader >= 0]
        return found.error is None and len(led) == partitions

    def _settings_of(self, topic: str) -> dict[str, str | None]:
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        (asked,) = self.admin.describe_configs([resource]).values()
        return {name: entry.value for name, entry in asked.result().items()}

    def expire(self, topic: str, partition: int, below: int) -> None:
        """Let the broker forget the offsets below one, as its retention would."""
        self._until(lambda: self._is_expired(TopicPartition(topic, partition, below)))

    def _is_expired(self, below: TopicPartition) -> bool:
        """A log that was compacted a moment ago may still refuse, whatever the topic's settings say."""
        (asked,) = self.admin.delete_records([below]).values()
        try:
            asked.result()
        except KafkaException as error:
            if error.args[0].code() == KafkaError.POLICY_VIOLATION:
                return False
            raise
        return True

    def producer(self, **settings: Any) -> Producer:
        given = {name.replace("_", "."): value for name, value in settings.items()}
        # Without it a batch that is sent again, to a topic that is new, may come after the next one.
        kept = {"enable.idempotence": True, "linger.ms": 5}
        return Producer({"bootstrap.servers": self.servers, "log_level": 0, **kept, **given})

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
        failed: list[Any] = []
        for key, value in records:
            producer.produce(
                topic, value, key=key, partition=partition, headers=dict(headers or {}), timestamp=timestamp,
                on_delivery=lambda error, _: failed.append(error) if error else None,
            )  # fmt: skip
            producer.poll(0)
        assert producer.flush(READY_SECONDS_MAX) == 0
        assert failed == []


@contextmanager
def running_broker(folder: Path) -> Iterator[Broker]:
    """Start a broker whose data is in the folder, and stop it."""
    ports = [free_port() for _ in range(4)]
    settings = folder / "server.properties"
    authority = Authority.make(folder / "certificates")
    settings.write_text(_settings(folder, authority, *ports))
    java = [str(use_java().home / "bin" / "java"), *JVM, "-cp", class_path()]
    with (folder / "broker.log").open("wb") as log:
        format_ = [*java, "kafka.tools.StorageTool", "format", "-t", "MkU3OEVBNTcwNTJENDM2Qg", "-c", settings]
        for mechanism in SCRAM:
            format_ += ["--add-scram", f"{mechanism}=[name={USER},password={PASSWORD}]"]
        subprocess.run(format_, stdout=log, stderr=log, check=True, timeout=READY_SECONDS_MAX)
        process = subprocess.Popen([*java, "kafka.Kafka", settings], stdout=log, stderr=log)
    try:
        broker = Broker(*(f"127.0.0.1:{port}" for port in ports[:3]), authority)
        _wait(broker, process, folder / "broker.log")
        yield broker
    finally:
        # Nothing of it is kept, so it need not end in order.
        process.kill()
        process.wait()


def _wait(broker: Broker, process: subprocess.Popen[bytes], log: Path) -> None:
    """Until it answers, and has set up its groups: it begins with that when it is first asked about one, and
    refuses until it is done."""
    deadline = time.monotonic() + READY_SECONDS_MAX
    for asked in (lambda: broker.admin.list_topics(timeout=1), lambda: _ask_for_a_group(broker)):
        while True:
            try:
                asked()
                break
            except KafkaException:
                late = process.poll() is not None or time.monotonic() > deadline
                assert not late, f"the broker does not answer: {log.read_text()[-2000:]}"
                time.sleep(0.1)


def _ask_for_a_group(broker: Broker) -> None:
    member = Consumer({"bootstrap.servers": broker.servers, "group.id": "first", "log_level": 0})
    try:
        (found,) = member.committed([TopicPartition("none", 0)], timeout=10)
        if found.error is not None:
            raise KafkaException(found.error)
    finally:
        member.close()


def class_path() -> str:
    """The broker's jars, fetched where they are not there yet."""
    # In a process of its own: the resolver's JVM and a Spark session don't go together in one.
    subprocess.run([sys.executable, "-m", "tests.support.kafka"], cwd=ROOT, check=True)
    folder, jars = jars_folder(), read_lock(LOCK)
    spark = Path(pyspark.__file__).parent / "jars"
    shipped = [next(spark.glob(f"{name}-[0-9]*.jar")) for name in FROM_SPARK]
    return ":".join(str(path) for path in [*(folder / jar.coordinate.filename for jar in jars), *shipped])


def jars_folder() -> Path:
    return home() / "kafka-jars"


def _settings(
    folder: Path, authority: Authority, port: int, secured: int, scrammed: int, controller: int
) -> str:
    listeners = f"OPEN://127.0.0.1:{port},SECURED://127.0.0.1:{secured},SCRAMMED://127.0.0.1:{scrammed}"
    protocols = "CONTROLLER:PLAINTEXT,OPEN:PLAINTEXT,SECURED:SASL_PLAINTEXT,SCRAMMED:SASL_SSL"
    certificate, key = (Path(file).read_text() for file in authority.sign("broker"))
    lines = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listeners": f"{listeners},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": listeners,
        "inter.broker.listener.name": "OPEN",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": protocols,
        "listener.name.secured.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.scrammed.sasl.enabled.mechanisms": ",".join(SCRAM),
        "listener.name.secured.plain.sasl.jaas.config": f'{LOGIN} required user_{USER}="{PASSWORD}";',
        **{
            f"listener.name.scrammed.{mechanism.lower()}.sasl.jaas.config": f"{SCRAM_LOGIN} required;"
            for mechanism in SCRAM
        },
        "listener.name.scrammed.ssl.keystore.type": "PEM",
        "listener.name.scrammed.ssl.keystore.certificate.chain": _line(certificate),
        "listener.name.scrammed.ssl.keystore.key": _line(key),
        "listener.name.scrammed.ssl.truststore.type": "PEM",
        "listener.name.scrammed.ssl.truststore.certificates": _line(Path(authority.file).read_text()),
        "listener.name.scrammed.ssl.client.auth": "requested",
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


def _line(text: str) -> str:
    """A text of several lines as a properties file has it."""
    return text.replace("\n", "\\n")


if __name__ == "__main__":
    fetch(jars_folder(), read_lock(LOCK), ivy.download_jars)
