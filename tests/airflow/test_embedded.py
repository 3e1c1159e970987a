"""The project's own Airflow: found where it listens, refused in words, and quiet about what was before."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import tempfile
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import create_engine, select, text
from sqlalchemy.orm import sessionmaker
from sqlalchemy.pool import StaticPool

from scripts.local_airflow import project
from scripts.local_airflow.embedded import SPARK, STARTED, EmbeddedAirflow
from scripts.local_airflow.postgres import LocalPostgres
from tidemark.app.job import started_at
from tidemark.core.errors import Determinate

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


def test_a_dag_put_to_rest_starts_nothing_and_the_others_stay_as_they_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from airflow.models.dag import DagModel
    from airflow.utils import session as airflow_session

    engine = create_engine("sqlite://", poolclass=StaticPool)
    monkeypatch.setattr(airflow_session, "create_session", sessionmaker(engine).begin)
    with engine.begin() as database:
        database.execute(text("CREATE TABLE dag (dag_id TEXT, is_paused BOOLEAN)"))
        database.execute(text("INSERT INTO dag VALUES ('demo', FALSE), ('orders', FALSE)"))
    project.pause(["demo"])
    with engine.begin() as database:
        found = database.execute(select(DagModel.dag_id, DagModel.is_paused))
        assert [tuple(row) for row in found] == [("demo", True), ("orders", False)]


def test_what_should_run_and_does_not_is_named(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    alive = {name: [os.getpid(), started_at(os.getpid())] for name in ("api-server", "triggerer", SPARK)}
    (home / "processes.json").write_text(json.dumps(alive))
    assert project.main(["status"]) == 1
    said = capsys.readouterr().err
    assert f"its scheduler has ended: see {home / 'logs' / 'scheduler.log'}" in said
    assert [line.split()[1] for line in said.splitlines()][:2] == ["scheduler", "dag-processor"]


def test_data_is_made_whole_and_what_is_there_is_served_again_by_the_next_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = Path(tempfile.mkdtemp(prefix="tidemark-pg-"))
    folder.chmod(0o711)
    server = LocalPostgres(folder / "server", "a password")
    killed = folder / "initdb"
    killed.write_text('#!/bin/sh\nmkdir -p "$2" && touch "$2/PG_VERSION" && kill -9 $$\n')
    killed.chmod(0o755)
    try:
        with monkeypatch.context() as half_way:
            half_way.setattr(LocalPostgres, "_program", staticmethod(lambda _: str(killed)))
            with pytest.raises(Determinate, match="could not be set up"):
                server.start()
        for _ in range(2):
            process = server.start()
            server.make("airflow")
            server.make("airflow")
            with psycopg.connect(server.conninfo("airflow"), autocommit=True) as db:
                db.execute("CREATE TABLE IF NOT EXISTS seen (at timestamp DEFAULT now())")
                db.execute("INSERT INTO seen DEFAULT VALUES")
                found = db.execute("SELECT count(*) FROM seen").fetchone()
            process.send_signal(signal.SIGINT)
            process.wait()
    finally:
        shutil.rmtree(folder)
    assert found == (2,)


def test_a_folder_that_the_server_can_not_reach_leaves_airflow_with_sqlite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    tmp_path.chmod(0o700)
    airflow = EmbeddedAirflow(home=tmp_path / "airflow", dags=tmp_path)
    assert airflow.environment()["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"].startswith("sqlite:///")
