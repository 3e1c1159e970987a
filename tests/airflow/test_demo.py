"""The demo by itself: where it writes, whatever its user has set."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.airflow.conftest import PROJECT
from tests.support.waiting import SECONDS_MAX

pytestmark = [pytest.mark.airflow, pytest.mark.slow]

CODE = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
import demo
from tidemark.app.tasks import open_pipeline
names = ("WAREHOUSE", "ROOT", "PIPELINES", "ENVIRONMENT")
left = [name for name in names if f"TIDEMARK_{name}" in os.environ]
print(json.dumps([str(demo.LANDING), str(demo.TABLES), open_pipeline(demo.PIPELINE, None).root, left]))
"""


def test_regression_the_demo_stays_in_its_own_folder_whatever_its_user_has_set(tmp_path: Path) -> None:
    mine = {f"TIDEMARK_{name}": str(tmp_path / "mine") for name in ("WAREHOUSE", "ROOT", "PIPELINES", "HOME")}
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(PROJECT / "scripts")],
        env={**os.environ, **mine, "TIDEMARK_ENVIRONMENT": "prod"},
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS_MAX,
    )
    assert done.returncode == 0, done.stderr
    folder = PROJECT / ".tidemark" / "demo"
    tables = str(folder / "warehouse" / "demo")
    assert json.loads(done.stdout) == [str(folder / "landing"), tables, tables, []]
