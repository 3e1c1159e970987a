"""How a Spark starts that nobody is to see: its own noise goes to its log, also when it does not start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.waiting import SECONDS_MAX

pytestmark = pytest.mark.spark

PROGRAM = """\
import sys
from pathlib import Path
from tidemark.core.errors import Determinate
from tidemark.spark.session import build_session
try:
    build_session("t", log_file=Path(sys.argv[1]), confs={"spark.driver.memory": "nonsense"})
except Determinate as error:
    print(error.hint, error.fact)
"""


def test_a_java_that_does_not_start_says_why_in_its_error_and_nothing_on_the_terminal(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "spark.log"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(log)],
        capture_output=True,
        text=True,
        check=True,
        timeout=SECONDS_MAX,
    )
    assert done.stderr == ""
    assert done.stdout.startswith(f"see {log}; then retry Spark's Java ended before it was ready: ")
    assert "nonsense" in done.stdout
    assert "nonsense" in log.read_text()
