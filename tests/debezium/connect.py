"""Kafka Connect with Debezium's connector for PostgreSQL, from its Maven jars: one process, many connectors.

It works beside the test broker and takes from there, and from Spark, what they have already. Its own jars are
fetched into the project's folder with the sums of `connect.lock`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from scripts.local_airflow.processes import free_port
from tests.support.kafka import Broker, class_path
from tidemark.runtime import jars
from tidemark.runtime.jars import fetch, read_lock
from tidemark.runtime.machine import home, use_java

LOCK = Path(__file__).with_name("connect.lock")
STOP_SECONDS_MAX = 60
# Not UTC, so that a time which depends on where the connector runs would be seen.
JVM = ("-Xmx768m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Duser.timezone=America/New_York")


def versions() -> dict[str, str]:
    """What the lock says that runs."""
    locked = {jar.coordinate.artifact: jar.coordinate.version for jar in read_lock(LOCK)}
    return {"debezium": locked["debezium-connector-postgres"], "kafka": locked["connect-runtime"]}


@contextmanager
def running_connect(
    folder: Path, broker: Broker, connectors: Mapping[str, Mapping[str, str]]
) -> Iterator[subprocess.Popen[bytes]]:
    """Start Connect with these connectors; at the end it is stopped in order, so all it read is written."""
    folder.mkdir(parents=True, exist_ok=True)
    worker = {
        "bootstrap.servers": broker.servers,
        "listeners": f"http://127.0.0.1:{free_port()}",
        "key.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "offset.storage.file.filename": str(folder / "offsets"),
        "offset.flush.interval.ms": "1000",
    }
    files = [_written(folder / "worker.properties", worker)]
    files += [
        _written(folder / f"{name}.properties", {"name": name, **settings})
        for name, settings in connectors.items()
    ]
    java = [str(use_java().home / "bin" / "java"), *JVM, "-cp", _class_path()]
    with (folder / "connect.log").open("wb") as log:
        started = [*java, "org.apache.kafka.connect.cli.ConnectStandalone", *files]
        process = subprocess.Popen(started, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _written(path: Path, settings: Mapping[str, str]) -> str:
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return str(path)


def _class_path() -> str:
    # In a process of its own, like the broker's.
    subprocess.run([sys.executable, "-m", "tests.debezium.connect"], cwd=LOCK.parents[2], check=True)
    own = [str(_jars_folder() / jar.coordinate.filename) for jar in read_lock(LOCK)]
    return os.pathsep.join([*own, class_path()])


def _jars_folder() -> Path:
    return home() / "debezium-jars"


if __name__ == "__main__":
    fetch(_jars_folder(), read_lock(LOCK), jars.download_jars)
