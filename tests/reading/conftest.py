"""The Spark session of these tests; the process may have it already."""

from __future__ import annotations

from tests.spark.conftest import spark as spark  # noqa: PLC0414
