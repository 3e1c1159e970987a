"""The project's own Airflow: found where it listens, refused in words, and quiet about what was before."""

from __future__ import annotations

import json
import os
import socket
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tidemark.airflow import project
from tidemark.airflow.embedded import STARTED, EmbeddedAirflow
from tidemark.submitter import started_at

pytestmark = pytest.mark.airflow


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of an Airflow that was started by a demo, at ports of its own."""
    monkeypatch.setenv("TIDEMARK_HOME", str(tmp_path))
    for name in ("PORT", "SPARK_PORT"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "airflow"
    folder.mkdir()
    (folder / STARTED).write_text(json.dumps({"port": 1234, "spark_port": 1235, "starter": "demo"}))
    return folder


def test_an_airflow_that_runs_is_found_at_the_ports_that_it_was_started_with(home: Path) -> None:
    alive = {"scheduler": [os.getpid(), started_at(os.getpid())]}
    (home / "processes.json").write_text(json.dumps(alive))
    found = project.project_airflow(port=99)
    assert (found.port, found.spark_port, found.starter) == (1234, 1235, "demo")


def test_who_looks_while_a_process_is_noted_finds_all_that_were_noted_before(home: Path) -> None:
    airflow, noted = project.project_airflow(), home / "processes.json"
    airflow._remember("scheduler", os.getpid())
    with noted.open() as looked_at:
        airflow._remember("triggerer", os.getpid())
        assert json.loads(looked_at.read()).keys() == {"scheduler"}
    assert json.loads(noted.read_text()).keys() == {"scheduler", "triggerer"}


def test_one_that_does_not_run_is_started_where_it_is_wanted(home: Path) -> None:
    found = project.project_airflow(port=99)
    assert (found.port, found.spark_port, found.starter) == (99, project.SPARK_PORT_DEFAULT, "")


def test_a_port_in_use_is_told_and_nothing_is_started(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(EmbeddedAirflow, "prepare", lambda self: None)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setenv("PORT", str(taken.getsockname()[1]))
        assert project.main(["start"]) == 1
    assert "is in use: stop what uses it, or set PORT" in capsys.readouterr().err
    assert not (home / "processes.json").exists()


def test_a_dag_put_to_rest_starts_nothing_and_the_others_stay_as_they_were(home: Path) -> None:
    airflow = project.project_airflow()
    airflow.put_to_rest("demo")  # Where there is no database, there is nothing to pause.
    with closing(sqlite3.connect(home / "airflow.db")) as database:
        airflow.put_to_rest("demo")
        database.execute("CREATE TABLE dag (dag_id TEXT, is_paused BOOLEAN)")
        database.executemany("INSERT INTO dag VALUES (?, ?)", [("demo", 0), ("orders", 0)])
        database.commit()
        airflow.put_to_rest("demo")
        assert database.execute("SELECT * FROM dag").fetchall() == [("demo", 1), ("orders", 0)]
