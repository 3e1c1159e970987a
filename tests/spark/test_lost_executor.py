"""Scenario P11, with a real cluster and a real loss."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.connect_client import shown
from tests.spark.lost_executor import RECORDS, transaction

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_p11_a_lost_executor_reruns_a_stage_and_nothing_is_counted_twice(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Invariant 7: what a stage that ran twice has counted is that of one that ran once."""
    (tmp_path / "lost").mkdir()
    (tmp_path / "whole").mkdir()
    top = str(Path(__file__).parents[2])
    found_in = os.pathsep.join([top, os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.lost_executor", str(tmp_path / "lost")],
        env={**os.environ, "PYTHONPATH": found_in},
        cwd=top,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["killed"] == 1
    assert found["again"] >= 1
    rig, binding = transaction(spark, tmp_path / "whole")
    whole = rig.plane().replay(binding)
    assert whole.source.count == RECORDS + 1
    assert found["digests"] == found["back"] == shown(whole.digests)
