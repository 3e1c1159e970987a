"""A command that needs no rows loads no engine: most of its time would go into that."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bench.start import done
from tests.support.waiting import SECONDS_MAX
from tidemark.cli.app import app

HEAVY = {"airflow", "great_expectations", "numpy", "pandas", "pyarrow", "pyspark"}
PROGRAM = """\
import sys
from tidemark.cli.app import main
try:
    main()
except SystemExit as end:
    code = end.code
print("loaded:", *sys.modules, file=sys.stderr)
sys.exit(code)
"""


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a pipeline with nothing left to do."""
    return done(tmp_path_factory.mktemp("idle"))


def command(pipeline: Path, *words: str) -> tuple[str, set[str]]:
    """What a command prints, and the modules that it has loaded by its end."""
    arguments = [sys.executable, "-c", PROGRAM, *words]
    ended = subprocess.run(
        arguments, cwd=pipeline.parent, capture_output=True, text=True, timeout=SECONDS_MAX, check=False
    )
    assert ended.returncode == 0, (words, ended.stdout, ended.stderr)
    return ended.stdout, set(ended.stderr.split("loaded:")[1].split())


def test_a_run_with_nothing_to_do_starts_no_spark_and_loads_no_engine(pipeline: Path) -> None:
    told, loaded = command(pipeline, "run", "idle.yaml")
    assert "no new transaction" in told
    assert "checkpoint 1" in told
    assert not loaded & HEAVY
    assert "rich" not in loaded  # Nobody looks at a terminal.


def test_regression_a_run_to_be_proven_that_never_bound_anything_asks_for_the_sources_tables(
    pipeline: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(
        "tidemark.app.deployment.discovered", lambda config: asked.append(config.name) or config
    )
    words = ["run", str(pipeline), "--run-id", "monday", "--prove"]
    for _ in range(2):
        assert CliRunner().invoke(app, words).exit_code == 0
    assert asked == ["idle"], "the second one finds what is decided for the run"


@pytest.mark.parametrize("words", ["--help", "check idle.yaml", "status idle.yaml", "txns idle.yaml"])
def test_a_command_that_only_looks_loads_no_engine(pipeline: Path, words: str) -> None:
    _, loaded = command(pipeline, *words.split())
    assert not loaded & HEAVY


def test_a_command_loads_no_other_command(pipeline: Path) -> None:
    _, loaded = command(pipeline, "status", "idle.yaml")
    found = {name for name in loaded if name.startswith("tidemark.cli.")}
    assert found == {f"tidemark.cli.{name}" for name in ("app", "shared", "status")}
