"""The fixtures of `tests.support`, for every test: a pytest plugin.

What is dear to start is started once per test process, when a test first asks for it, and stopped at the
process's end (`tests/conftest.py` orders the tests accordingly). What only one folder needs is a fixture of
that folder, and stopped when the process is done with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.kafka import Broker
    from tests.support.postgres import Postgres
    from tests.support.s3 import AtomicStore, ObjectStore
    from tidemark.spark.connect_server import Server

END_MILLISECONDS_MAX = 120_000
_databases = count(1)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A classic session on two cores; the JVM goes away with it."""
    from tests.support.spark import session

    started = session(tmp_path_factory.mktemp("spark"))
    yield started
    started.stop()


@pytest.fixture(scope="session")
def connect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A Spark Connect server of one core, where `spark` has two."""
    from tests.support.spark import connect_server_at

    with connect_server_at(tmp_path_factory.mktemp("connect")) as started:
        yield started


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A Kafka broker; topics are cheap, each test makes its own."""
    from tests.support.kafka import running_broker

    with running_broker(tmp_path_factory.mktemp("kafka")) as started:
        yield started


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL server."""
    from tests.support.postgres import start

    started = start()
    yield started
    started.stop()


@pytest.fixture
def database(postgres: Postgres) -> Iterator[str]:
    """A database of the test's own; its slots go with it, since a slot keeps the whole server's log."""
    name = f"test_{next(_databases)}"
    with postgres.connect() as db:
        db.execute(f"CREATE DATABASE {name}")
    yield name
    with postgres.connect() as db:
        # A slot is in use, and so is a database, until its sessions have really ended.
        db.execute(
            "SELECT pg_terminate_backend(pid, %s) FROM pg_stat_activity WHERE datname = %s",
            (END_MILLISECONDS_MAX, name),
        )
        db.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
            " WHERE database = %s AND NOT temporary",
            (name,),
        )
        db.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(scope="session")
def s3() -> Iterator[ObjectStore]:
    """An object store; each test takes a folder of its own."""
    from tests.support.s3 import object_store

    with object_store() as started:
        yield started


@pytest.fixture(scope="session")
def atomic_s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AtomicStore]:
    """An object store with atomic conditional puts; each test takes a folder of its own."""
    from tests.support.s3 import atomic_store

    with atomic_store(tmp_path_factory.mktemp("s3")) as started:
        yield started
