"""What the tests of maintenance share."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.maintenance import shop


@pytest.fixture(scope="session")
def fed_shop(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A shop with a state and a tail; to be copied, not changed."""
    root = tmp_path_factory.mktemp("fed")
    shop.feed(spark, root)
    return root
