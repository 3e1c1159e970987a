"""A warm Spark: found by every command, told from a process that only has its number, and ended."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tests.support.waiting import SECONDS_MAX
from tidemark.app.workspace import open_deployment
from tidemark.cli.app import app
from tidemark.core.errors import InvalidUsage
from tidemark.spark import connect_server, session
from tidemark.spark.connect_server import Server

PIPELINE = """\
name: p
source: {type: files, path: in, format: json}
shards: [{name: t, schema: id BIGINT NOT NULL, keys: [id]}]
"""


def tell(*words: str) -> Result:
    return CliRunner().invoke(app, ["spark", *words])


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """Servers that are none: they sleep. Those that a test has started are ended."""
    processes: list[subprocess.Popen[bytes]] = []

    def start(port: int, token: str, *, folder: Path, memory: str) -> Server:
        folder.mkdir(parents=True, exist_ok=True)
        processes.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(6000)"]))
        return Server(f"sc://localhost:{port}", processes[-1], folder / "server.log")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TIDEMARK_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("TIDEMARK_SPARK_MASTER", raising=False)
    monkeypatch.setattr(connect_server, "start_server", start)
    (tmp_path / "p.yaml").write_text(PIPELINE)
    yield processes  # type: ignore[misc]
    for process in processes:
        process.kill()
        process.wait()


def test_a_warm_spark_is_started_once_and_ended(started: list[Any]) -> None:
    assert tell("status").exit_code == 1
    assert tell("start").exit_code == 0
    assert tell("status").exit_code == 0
    note = connect_server.folder() / "server.json"
    assert stat.S_IMODE(note.stat().st_mode) == 0o600
    assert (
        json.loads(note.read_text())["token"] not in tell("status").output + tell("status", "--json").output
    )
    assert isinstance(tell("start").exception, InvalidUsage)
    assert len(started) == 1
    # A child is a zombie until it is waited for, and counts as ended.
    assert tell("stop").exit_code == 0
    assert started[0].wait(SECONDS_MAX) != 0
    assert (note.exists(), tell("status").exit_code) == (False, 1)
    assert "there is no warm Spark" in tell("stop").output


def test_every_command_uses_it_with_its_token(
    started: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    used: list[tuple[str, object]] = []
    monkeypatch.setattr(session, "connect_session", lambda url, token=None: used.append((url, token)))
    monkeypatch.setattr(session, "build_session", lambda name, master, log_file: used.append((master, None)))
    server = connect_server.start(memory="1g")
    open_deployment("p", None).session()
    monkeypatch.setenv("TIDEMARK_SPARK_MASTER", "local[3]")
    open_deployment("p", None).session()
    monkeypatch.delenv("TIDEMARK_SPARK_MASTER")
    assert capsys.readouterr().err == ""
    started[0].kill()
    started[0].wait()
    open_deployment("p", None).session()
    assert used == [(server.url, server.token), ("local[3]", None), ("local[*]", None)]
    assert "has ended; this command starts its own Spark" in capsys.readouterr().err


def test_a_process_that_only_has_its_number_is_not_ended(started: list[Any]) -> None:
    connect_server.start(memory="1g")
    note = connect_server.folder() / "server.json"
    note.write_text(json.dumps({**json.loads(note.read_text()), "began": "12"}))
    assert tell("status").exit_code == 1
    assert tell("stop").exit_code == 0
    assert started[0].poll() is None
