"""One Spark session, and one Kafka broker, for all tests of a process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.kafka_broker import Broker, running_broker
from tidemark.spark.session import build_session


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A small local session; the JVM goes away with it."""
    session = build_session(
        "tidemark-tests",
        master="local[2]",
        scratch_folder=tmp_path_factory.mktemp("spark"),
        confs={"spark.driver.memory": "1g", "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"},
    )
    yield session
    session.stop()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A Kafka broker, for all tests of a process that ask for one."""
    with running_broker(tmp_path_factory.mktemp("kafka")) as started:
        yield started
