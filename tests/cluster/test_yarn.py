"""A driver on a YARN mini-cluster: the same tables, by executors in containers without Python."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.shop import RECORDS, expected
from tests.support import ROOT
from tests.support.waiting import SECONDS_MAX
from tests.support.yarn import EXECUTORS, running_yarn

pytestmark = [pytest.mark.sweep, pytest.mark.spark, pytest.mark.slow]


def test_a_pipeline_lives_on_yarn(tmp_path: Path) -> None:
    (tmp_path / "yarn").mkdir()
    with running_yarn(tmp_path / "yarn") as environment:
        done = subprocess.run(
            [sys.executable, "-m", "tests.cluster.plain", str(tmp_path / "shop")], cwd=ROOT,
            env=os.environ | environment, capture_output=True, text=True, timeout=2 * SECONDS_MAX,
            check=False,
        )  # fmt: skip
    assert done.returncode == 0, (done.stdout[-2000:], done.stderr[-5000:])
    story: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    (decided,) = story["first"]["report"]["decided"]
    assert decided["seal"]["source"]["count"] == RECORDS
    assert story["fresh"] == expected(2)
    assert {one["verdict"] for one in story["replayed"]["findings"]} == {"identical"}
    # Who ran it, by Spark's own log: executors of a resource manager, and not this machine's threads.
    logs = [path for path in (tmp_path / "yarn" / "events").rglob("*") if path.is_file()]
    log = "".join(path.read_text() for path in logs)
    assert '"spark.master":"yarn"' in log
    assert log.count('"Event":"SparkListenerExecutorAdded"') == EXECUTORS
