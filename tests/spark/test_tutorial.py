"""The tutorial is followed, command by command, and prints what the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ROOT
from tests.support.spark import TOKEN
from tidemark.spark.connect_server import Server

pytestmark = [pytest.mark.spark, pytest.mark.server, pytest.mark.slow]

PAGE = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
# A block of commands, and the block after it, if there is one, of what they print.
STEPS = re.findall(r"```sh\n(.*?)```(?:\s*```text\n(.*?)```)?", PAGE, re.DOTALL)
SECONDS_MAX = 300


def pattern(line: str) -> str:
    """A line of the page as an expression: spaces at its end don't count, `…` is any text."""
    return ".*".join(re.escape(piece) for piece in line.split("…")) + r"\s*"


def test_the_page_has_commands_and_what_they_print() -> None:
    assert len(STEPS) >= 8
    assert sum(bool(printed) for _, printed in STEPS) >= 7


def test_whoever_follows_the_tutorial_sees_what_it_says(connect_server: Server, tmp_path: Path) -> None:
    environ = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "TIDEMARK_SPARK_MASTER": connect_server.url,
        "SPARK_CONNECT_AUTHENTICATE_TOKEN": TOKEN,
        "COLUMNS": "200",
    }
    for commands, printed in STEPS:
        done = subprocess.run(
            ["bash", "-ec", commands],
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS_MAX,
        )
        assert done.returncode == 0, (commands, done.stdout, done.stderr[-3000:])
        lines = iter(done.stdout.splitlines())
        for wanted in printed.splitlines():
            assert any(re.fullmatch(pattern(wanted), line) for line in lines), (wanted, done.stdout)


def test_its_two_lines_for_airflow_are_those_of_the_page_on_airflow() -> None:
    """Which `tests/airflow/test_wheel.py` follows to a green run."""
    (lines,) = re.findall(r"```python\n(from tidemark\.airflow.*?)```", PAGE, re.DOTALL)
    assert lines in (ROOT / "docs" / "airflow.md").read_text(encoding="utf-8")
