"""What a failed job of Spark means: what may be tried again, and what never will be read."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tidemark.config import KafkaSource
from tidemark.core.errors import Determinate, TidemarkError
from tidemark.core.ids import Txn
from tidemark.core.replay import InputGone
from tidemark.sources.files.bound_files import BoundFile, Manifest
from tidemark.sources.kafka.manifest import Range
from tidemark.spark.columns import literal
from tidemark.spark.failures import translated
from tidemark.spark.inputs import FilesInput, Input, TopicsInput

PASSING = ["Too many open files", "Permission denied", "No space left on device"]


def told(said: str, read: Input) -> TidemarkError:
    return translated(PySparkException(f"Caused by: java.io.FileNotFoundException: {said}"), Txn(7), read)


@pytest.mark.parametrize("trouble", PASSING)
def test_regression_what_a_worker_can_not_open_is_no_input_that_is_gone(tmp_path: Path, trouble: str) -> None:
    """Java gives all of these one name. Whoever takes them for lost input is told to skip the transaction."""
    (tmp_path / "a.json").write_text("{}")
    files = FilesInput(str(tmp_path), Manifest("json", (BoundFile(0, "a.json", 2, "", 0),)))
    source = KafkaSource.model_validate(
        {"type": "kafka", "topics": ["t"], "bootstrap_servers": "127.0.0.1:1"}
    )
    topics = TopicsInput(source, (Range("t", 0, 0, 5),))
    said = f"/scratch/shuffle_0_0_0.data ({trouble})"
    for read in (files, topics):
        assert type(told(said, read)) is Determinate
    (tmp_path / "a.json").unlink()
    assert isinstance(told(f"{tmp_path}/a.json (No such file or directory)", files), InputGone)


@pytest.mark.spark
@pytest.mark.parametrize("text", ["a${x}b", "${env:HOME}", "$1", "${spark.app.name}", "\\${x}'"])
def test_regression_spark_puts_no_variables_into_literals(spark: SparkSession, text: str) -> None:
    (row,) = spark.range(1).selectExpr(f"{literal(text)} AS text").collect()
    assert row["text"] == text
