"""One Kafka broker and one Spark Connect server for all tests of a process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kafka_broker import Broker, running_broker
from tests.spark.connect_rig import TOKEN
from tidemark.airflow.processes import free_port
from tidemark.spark.connect import Server, start_server
from tidemark.spark.session import SHORT_JOBS


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A Kafka broker, for all tests of a process that ask for one."""
    with running_broker(tmp_path_factory.mktemp("kafka")) as started:
        yield started


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A warm Spark of one core, where the tests' own session has two."""
    folder = tmp_path_factory.mktemp("connect")
    with start_server(
        free_port(), TOKEN, folder=folder, master="local[1]", memory="1g", confs=SHORT_JOBS
    ) as started:
        yield started
