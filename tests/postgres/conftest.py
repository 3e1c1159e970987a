"""What the tests of PostgreSQL share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support.postgres import Postgres
from tests.support.postgres_pipeline import CONN_ID, Rig


@pytest.fixture
def rig(
    postgres: Postgres, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Rig]:
    """Make a pipeline: its tables as keywords, each with schema and keys, `spark` where rows are read."""
    monkeypatch.setenv(f"AIRFLOW_CONN_{CONN_ID.upper()}", postgres.uri(database))

    def make(spark: SparkSession | None = None, settings: dict[str, Any] | None = None, **tables: Any) -> Rig:
        return Rig(postgres, database, tmp_path, spark, tables, settings or {})

    return make
