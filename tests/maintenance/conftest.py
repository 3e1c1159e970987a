"""One Spark session for these tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

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
