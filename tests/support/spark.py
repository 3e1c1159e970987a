"""Sessions and servers for tests: small, with one compiler, in folders of their own."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support import ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidemark.spark.connect_server import Server

TOKEN = secrets.token_hex(16)
"""Of every Connect server of this process."""
CLIENT_SECONDS_MAX = 600
FEW_ROWS = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.databricks.delta.snapshotPartitions": "1",
}
"""For a few hundred rows, planning again and compiling code costs more than all the work."""


def session(folder: Path, *, cores: int = 2, confs: Mapping[str, str] | None = None) -> SparkSession:
    """A classic session whose JVM keeps its files below a folder.

    It plans once and compiles no code: its queries are as small as those of a table of few rows. Sessions
    that the product makes of it for many rows, and Connect servers, have Spark's own settings.
    """
    from tidemark.spark.session import SHORT_JOBS, build_session

    started = build_session(
        "tidemark-tests",
        master=f"local[{cores}]",
        scratch_folder=folder,
        confs={"spark.driver.memory": "1g", **SHORT_JOBS, **(confs or {})},
    )
    # Set later, and so not given to the sessions that are made of this one.
    for name, value in FEW_ROWS.items():
        started.conf.set(name, value)
    return started


def connect_server_at(folder: Path, *, cores: int = 1) -> Server:
    """A Spark Connect server in a process of its own, which asks for `TOKEN`."""
    from scripts.local_airflow.processes import free_port
    from tidemark.spark.connect_server import start_server
    from tidemark.spark.session import SHORT_JOBS

    master = f"local[{cores}]"
    return start_server(free_port(), TOKEN, folder=folder, master=master, memory="1g", confs=SHORT_JOBS)


def connect_client(
    *words: str, folder: Path, token: str = TOKEN, **more: str
) -> subprocess.CompletedProcess[str]:
    """`python -m …` as a client of a Connect server: a process has classic sessions or such, never both."""
    from tidemark.spark.connect_server import TOKEN_VARIABLE

    found = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-m", *words],
        env={**os.environ, TOKEN_VARIABLE: token, "PYTHONPATH": found, **more},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=CLIENT_SECONDS_MAX,
        check=False,
    )
