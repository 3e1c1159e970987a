"""The Airflow of this project's folder, as `make ui`, `make stop` and the demo use it.

`python -m scripts.local_airflow.project start|stop|status`. While it runs, commands use the ports that it was
started with.
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from scripts.local_airflow.embedded import DATABASE, PORT, STARTED, USER, EmbeddedAirflow
from tidemark.core.errors import TidemarkError

SPARK_PORT_DEFAULT = 15_002


def project_airflow(**more: Any) -> EmbeddedAirflow:
    """The Airflow of this project's folder, with its DAGs and settings. If it is running, its recorded ports
    and starter win."""
    from tidemark.runtime.machine import home

    project = Path(__file__).resolve().parents[2]
    given = {
        "port": int(os.environ.get("PORT") or PORT),
        "spark_port": int(os.environ.get("SPARK_PORT") or SPARK_PORT_DEFAULT),
        **more,
    }
    airflow = EmbeddedAirflow(
        home=home() / "airflow",
        dags=project / "dags",
        plugins=project / "plugins",
        settings=project / "airflow_settings.yaml",
        environ={"TIDEMARK_SPARK_CONN_ID": "spark_connect_default"},
        **given,
    )
    return replace(airflow, **recorded(airflow.home)) if airflow.running() else airflow


def recorded(home: Path) -> dict[str, Any]:
    """The recorded ports and starter of a folder's Airflow; empty if there is no valid record."""
    try:
        told = json.loads((home / STARTED).read_text())
        return {name: told[name] for name in ("port", "spark_port", "starter")}
    except (OSError, ValueError, KeyError):
        return {}


def main(arguments: list[str]) -> int:
    """`prepare SETTINGS [DAG …]` for the Airflow of the environment; `start`, `stop` and `status` for the
    project's."""
    try:
        return obey(*(arguments or ["status"]))
    except TidemarkError as error:
        sys.stderr.write(f"{error}\n")
        return 1


def obey(command: str, *rest: str) -> int:
    """Run a command; returns the exit code."""
    from scripts.local_airflow.settings import load_settings, read_settings, spark_settings

    if command == "prepare":
        from airflow.utils.db import upgradedb

        upgradedb()
        if (Path(os.environ["AIRFLOW_HOME"]) / "airflow.db").exists():
            read_while_written(Path(os.environ["AIRFLOW_HOME"]) / "airflow.db")
        settings, *at_rest = rest or ("",)
        if settings:
            load_settings(read_settings(Path(settings)))
        load_settings(spark_settings(os.environ))
        pause(at_rest)
        return 0
    airflow = project_airflow()
    if command == "start":
        airflow.prepare()
        airflow.start()
    elif command == "stop":
        airflow.stop()
    alive = airflow.running()
    where = f"{airflow.url}   user {USER}, password {airflow.password}" if alive else "not running"
    sys.stdout.write(f"Airflow: {where}\n")
    dead = airflow.dead()
    for name in dead:
        log = airflow.home / ("postgres" if name == DATABASE else "logs") / f"{name}.log"
        sys.stderr.write(f"its {name} has ended: see {log}; `make ui` starts it again\n")
    return 1 if dead else 0


def pause(dags: Sequence[str]) -> None:
    """Pause the DAGs that Airflow knows; new ones start paused anyway."""
    from airflow.models.dag import DagModel
    from airflow.utils.session import create_session
    from sqlalchemy import update

    with create_session() as session:
        session.execute(update(DagModel).where(DagModel.dag_id.in_(dags)).values(is_paused=True))


def read_while_written(database: Path) -> None:
    """Set WAL mode, so that Airflow's components can read while another writes; the file keeps the mode."""
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
