"""Run a real Debezium and write down what it sends, byte by byte: `make debezium`.

One Connect process has a connector for every one of `SETTINGS`, all on the same database; each has topics of
its own. What they wrote goes into `recorded/`, one file for each setting, which the tests read.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psycopg
from confluent_kafka import Consumer, TopicPartition

from tests.debezium import workload
from tests.debezium.connect import running_connect, versions
from tests.debezium.recorded import FOLDER, Recording, Sent, write
from tests.support.kafka import Broker, running_broker
from tests.support.postgres import PASSWORD, Postgres, start

DATABASE = "shop"
WAIT_SECONDS_MAX = 180
CONVERTERS = ("key.converter", "value.converter")


def converted(*, schemas: bool, nulls: bool = True) -> dict[str, str]:
    """How records are written: with their schemas or without; `nulls` stay, or become columns' defaults."""
    made = dict.fromkeys(CONVERTERS, "org.apache.kafka.connect.json.JsonConverter")
    made |= {f"{name}.schemas.enable": str(schemas).lower() for name in CONVERTERS}
    if nulls:
        made["value.converter.replace.null.with.default"] = "false"
    return made


def modes(decimals: str, times: str) -> dict[str, str]:
    return {"decimal.handling.mode": decimals, "time.precision.mode": times}


SETTINGS: dict[str, dict[str, str]] = {
    # What a connector does where nobody sets anything, and transactions beside it.
    "defaults": {**converted(schemas=True, nulls=False), "provide.transaction.metadata": "true"},
    "schema_string_connect": {**converted(schemas=True), **modes("string", "connect")},
    "schema_double_isostring": {**converted(schemas=True), **modes("double", "isostring")},
    "precise_microseconds": {**converted(schemas=False), **modes("precise", "microseconds")},
    "string_isostring": {**converted(schemas=False), **modes("string", "isostring")},
    "double_connect": {**converted(schemas=False), **modes("double", "connect")},
    "precise_nanoseconds": {**converted(schemas=False), **modes("precise", "nanoseconds")},
}


def connector(server: Postgres, name: str, settings: dict[str, str]) -> dict[str, str]:
    """A connector on the database, whose topics begin with its name."""
    return {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "tasks.max": "1",
        "database.hostname": "127.0.0.1",
        "database.port": str(server.port),
        "database.user": "owner",
        "database.password": PASSWORD,
        "database.dbname": DATABASE,
        "topic.prefix": name,
        "plugin.name": "pgoutput",
        "slot.name": name,
        "publication.name": "shop",
        "publication.autocreate.mode": "disabled",
        "schema.include.list": "shop",
        "skipped.operations": "none",
        "topic.creation.default.partitions": "2",
        "topic.creation.default.replication.factor": "1",
        **settings,
    }


def statements(text: str) -> list[str]:
    return [one for one in text.split(";\n") if one.strip()]


def waited_for(what: str, met: Any, alive: Any) -> None:
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not met():
        if time.monotonic() > deadline or not alive():
            raise RuntimeError(f"it did not happen: {what}")
        time.sleep(0.2)


def change_the_database(server: Postgres, broker: Broker, alive: Any) -> None:
    """All changes, once every connector follows; then the end, in every connector's topics."""
    with server.connect(DATABASE) as database:
        active = "SELECT count(*) FROM pg_replication_slots WHERE active"

        def follow() -> bool:
            found = database.execute(active).fetchone()
            return found is not None and found[0] == len(SETTINGS)

        waited_for("every connector follows", follow, alive)
        for statement in statements(workload.CHANGES):
            database.execute(statement.encode())
        database.execute("INSERT INTO shop.ends VALUES (1)")
    ends = {f"{name}.shop.ends" for name in SETTINGS}
    waited_for("the end is written", lambda: ends <= broker.admin.list_topics().topics.keys(), alive)


def sent(broker: Broker, prefix: str) -> list[Sent]:
    """All records of a connector's topics, by topic, partition and offset."""
    topics = broker.admin.list_topics().topics
    places = [
        TopicPartition(name, number, 0)
        for name, topic in topics.items()
        if name.startswith(f"{prefix}.")
        for number in topic.partitions
    ]
    consumer = Consumer(
        {"bootstrap.servers": broker.servers, "group.id": "recorder", "enable.partition.eof": True}
    )
    consumer.assign(places)
    found, open_places = [], len(places)
    while open_places:
        message = consumer.poll(WAIT_SECONDS_MAX)
        if message is None:
            raise RuntimeError("the records can't be read")
        if message.error():
            open_places -= 1
            continue
        headers = [(name, value) for name, value in message.headers() or ()]
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        found.append(Sent(topic, partition, offset, message.key(), message.value(), headers))
    consumer.close()
    return sorted(found, key=lambda one: (one.topic, one.partition, one.offset))


def made_by(database: psycopg.Connection) -> dict[str, str]:
    """What was recorded, and with what."""
    return {**versions(), "postgresql": str(database.info.server_version // 10_000)}


def record(server: Postgres, scratch: Path) -> None:
    """Write a file for every setting."""
    with server.connect() as database:
        database.execute(f"CREATE DATABASE {DATABASE}".encode())
    with server.connect(DATABASE) as database:
        database.execute((workload.TABLES + workload.FIRST_ROWS).encode())
        database.execute("CREATE PUBLICATION shop FOR TABLES IN SCHEMA shop")
        made = made_by(database)
    connectors = {name: connector(server, name, settings) for name, settings in SETTINGS.items()}
    with running_broker(scratch / "kafka") as broker:
        with running_connect(scratch / "connect", broker, connectors) as process:
            change_the_database(server, broker, lambda: process.poll() is None)
        FOLDER.mkdir(exist_ok=True)
        for name, settings in SETTINGS.items():
            records = sent(broker, name)
            write(FOLDER / f"{name}.jsonl", Recording(made, settings, records))
            sys.stdout.write(f"{name}: {len(records)} records\n")


def main() -> int:
    """Record every setting; where that fails, show the end of Connect's log."""
    server = start()
    try:
        with tempfile.TemporaryDirectory(prefix="debezium-") as folder:
            try:
                record(server, Path(folder))
            except RuntimeError as error:
                log = Path(folder) / "connect" / "connect.log"
                sys.stderr.write(f"{log.read_text()[-8000:] if log.exists() else ''}\n{error}\n")
                return 1
    finally:
        server.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
