"""Two more ways to drive an application on a cluster: a submitted job, and a Spark Connect server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import BaseHook, Connection

from scripts.local_airflow.processes import free_port
from tests.cluster import steps
from tests.cluster.shop import RECORDS, expected, land, make
from tests.support import ROOT
from tests.support.cluster import ONE_EXECUTOR, Cluster
from tests.support.spark import TOKEN, connect_client
from tidemark.airflow.operators import IngestOperator
from tidemark.app import reports, tasks
from tidemark.app.job import Order
from tidemark.core.ids import ShardId, Txn
from tidemark.pipeline.context import seal_at
from tidemark.pipeline.publish import last_published
from tidemark.spark.connect_server import start_server
from tidemark.spark.session import SHORT_JOBS

pytestmark = [pytest.mark.spark, pytest.mark.airflow, pytest.mark.slow]


@pytest.fixture
def driver(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """This process has the environment of a machine that drives applications on the cluster."""
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    return cluster


def test_a_submitted_application_runs_publishes_and_replays_on_a_cluster(
    driver: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`SparkSubmitOperator` in client mode: the driver runs here, and what it did is there afterwards."""
    found = Connection(conn_id="c", conn_type="spark", host=driver.url, extra='{"deploy-mode": "client"}')
    monkeypatch.setattr(BaseHook, "get_connection", classmethod(lambda cls, name: found))
    file = make(tmp_path / "shop")
    land(tmp_path / "shop", 0)
    before = driver.python_starts
    monkeypatch.setattr("tidemark.app.job.job_file", lambda step: Path(steps.__file__))
    order = Order(str(file), "run", "token", publish=True)
    tasks.reclock(tasks.open_to_bind(str(file), None, order.attempt), order.attempt)
    python = {"PYSPARK_PYTHON": str(driver.python)}
    step = IngestOperator(
        task_id="ingest", pipeline_file=file, conn_id="c", env_vars=python, conf=dict(ONE_EXECUTOR)
    )
    step.submit({}, order)  # type: ignore[typeddict-item]
    done = tasks.open_pipeline(file, None)
    done.control.seals.head()
    assert seal_at(done.pipeline, Txn(1)).source.count == RECORDS
    for shard, rows in expected(1).items():
        published = last_published(done.control, ShardId(shard))
        assert published is not None
        assert (published.txn, published.commit.digest.count) == (1, len(rows))
    told: Any = reports.replay_report(done, order.attempt, txn_from=1, txn_to=0)
    assert [one["verdict"] for one in told["findings"]] == ["identical"]
    assert driver.python_starts == before


@pytest.mark.sweep
def test_a_server_on_a_cluster_serves_the_command_and_a_consumer(driver: Cluster, tmp_path: Path) -> None:
    before = driver.python_starts
    confs = SHORT_JOBS | ONE_EXECUTOR
    with start_server(
        free_port(), TOKEN, folder=tmp_path / "server", master=driver.url, memory="1g", confs=confs
    ) as server:
        done = connect_client(
            "tests.cluster.connected", str(tmp_path / "shop"), folder=ROOT, TIDEMARK_SPARK_MASTER=server.url
        )
    assert done.returncode == 0, done.stderr[-5000:]
    assert done.stdout.splitlines()[-1] == f"loaded {RECORDS}"
    assert driver.python_starts == before
