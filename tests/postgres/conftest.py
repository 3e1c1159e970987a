"""One PostgreSQL server and one Spark session for all tests of a process."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from tests.postgres.server import Server, start
from tests.spark.conftest import spark as spark  # noqa: PLC0414

_numbers = count(1)


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    started = start()
    yield started
    started.stop()


@pytest.fixture
def database(server: Server) -> Iterator[str]:
    """A database of the test's own; its slots go with it, since a slot keeps the whole server's log."""
    name = f"test_{next(_numbers)}"
    with server.connect() as db:
        db.execute(f"CREATE DATABASE {name}")
    yield name
    with server.connect() as db:
        db.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,))
        db.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
            " WHERE database = %s AND NOT temporary",
            (name,),
        )
        db.execute(f"DROP DATABASE {name} WITH (FORCE)")
