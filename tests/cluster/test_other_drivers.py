"""Two more ways to drive an application on a cluster: a submitted job, and a Spark Connect server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import BaseHook, Connection

from scripts.local_airflow.processes import free_port
from tests.cluster.shop import RECORDS, land, make
from tests.support import ROOT
from tests.support.cluster import Cluster
from tests.support.spark import TOKEN, connect_client
from tidemark.airflow.operators import IngestOperator
from tidemark.app import tasks
from tidemark.app.job import Order
from tidemark.spark.connect_server import start_server
from tidemark.spark.session import SHORT_JOBS

pytestmark = [pytest.mark.spark, pytest.mark.airflow, pytest.mark.slow]


@pytest.fixture
def driver(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """This process has the environment of a machine that drives applications on the cluster."""
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    return cluster


def test_a_submitted_job_stages_on_a_cluster(
    driver: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`SparkSubmitOperator` in client mode: the driver runs here, and what it staged is there afterwards."""
    found = Connection(conn_id="c", conn_type="spark", host=driver.url, extra='{"deploy-mode": "client"}')
    monkeypatch.setattr(BaseHook, "get_connection", classmethod(lambda cls, name: found))
    file = make(tmp_path / "shop")
    land(tmp_path / "shop", 0)
    before = driver.python_starts
    order = Order(str(file), "run", "token")
    tasks.reclock(tasks.open_to_bind(str(file), None, order.attempt), order.attempt)
    step = IngestOperator(
        task_id="ingest", pipeline_file=file, conn_id="c", env_vars={"PYSPARK_PYTHON": str(driver.python)}
    )
    step.submit({}, order)  # type: ignore[typeddict-item]
    told: Any = step.after_submit(order)
    assert [(one["txn"], one["read"]) for one in told["staged"]] == [(1, RECORDS)]
    assert driver.python_starts == before


def test_a_server_on_a_cluster_serves_the_command_and_a_consumer(driver: Cluster, tmp_path: Path) -> None:
    before = driver.python_starts
    with start_server(
        free_port(), TOKEN, folder=tmp_path / "server", master=driver.url, memory="1g", confs=SHORT_JOBS
    ) as server:
        done = connect_client(
            "tests.cluster.connected", str(tmp_path / "shop"), folder=ROOT, TIDEMARK_SPARK_MASTER=server.url
        )
    assert done.returncode == 0, done.stderr[-5000:]
    assert done.stdout.splitlines()[-1] == f"loaded {RECORDS}"
    assert driver.python_starts == before
