"""One PostgreSQL server for all tests of a process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.postgres.rig import CONN_ID, Rig
from tests.postgres.server import Server, start

END_MILLISECONDS_MAX = 120_000
_numbers = count(1)


@pytest.fixture(scope="package")
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


@pytest.fixture
def rig(server: Server, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Rig]:
    """Make a pipeline: its tables as keywords, each with schema and keys, `spark` where rows are read."""
    monkeypatch.setenv(f"AIRFLOW_CONN_{CONN_ID.upper()}", server.uri(database))

    def make(spark: SparkSession | None = None, settings: dict[str, Any] | None = None, **tables: Any) -> Rig:
        return Rig(server, database, tmp_path, spark, tables, settings or {})

    return make
