"""The stack is started once for all end-to-end tests of a worker, and stopped at the end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.e2e.stack import CONSUMER, DAGS, PROJECT, Project, Stack
from tests.kafka_broker import PASSWORD, USER, Broker, running_broker
from tidemark.airflow.client import AirflowClient
from tidemark.airflow.embedded import EmbeddedAirflow
from tidemark.airflow.processes import free_port
from tidemark.home import jars_folder
from tidemark.spark.session import SHORT_JOBS

EXPECTATIONS = [
    {
        "type": "expect_column_values_to_be_between",
        "kwargs": {"column": "amount", "min_value": 0},
        "action": "fail",
    }
]
CANARY = "canary-7d1f0c2ab94e"
OTHER_DAGS = ("replay", "replay_submitted", "maintain", "consumer", "waiter")
DAGS_SECONDS_MAX = 600


def make_projects(root: Path) -> dict[str, Project]:
    """A pipeline for each story, so that none disturbs another."""
    names = (
        "scheduled", "manual", "cleared", "killed", "overlapping", "backfilled", "replayed",
        "changed", "consumed", "submitted", "secret", "forgotten",
    )  # fmt: skip
    schedules = {"scheduled": "* * * * *", "backfilled": "@daily"}
    projects = {name: Project.make(root, name, schedule=schedules.get(name)) for name in names}
    topic = {"type": "kafka", "kafka_config_id": "kafka_e2e", "topics": ["orders"]}
    projects["streamed"] = Project.make(root, "streamed", source=topic)
    red = Project.make(root, "red")
    config = yaml.safe_load(red.file.read_text())
    config["shards"][0]["expectations"] = EXPECTATIONS
    red.file.write_text(yaml.safe_dump(config))
    return {**projects, "red": red}


def wait_for_dags(client: AirflowClient, names: set[str]) -> None:
    """Airflow is well before it has read its DAG files: until then it knows of none of them."""
    deadline = time.monotonic() + DAGS_SECONDS_MAX
    while missing := names - {one["dag_id"] for one in client.call("GET", "/dags", limit=100)["dags"]}:
        assert time.monotonic() < deadline, f"{missing}: {client.call('GET', '/importErrors')}"
        time.sleep(0.5)


@pytest.fixture(scope="package")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with running_broker(tmp_path_factory.mktemp("kafka")) as started:
        yield started


@pytest.fixture(scope="package")
def stack(tmp_path_factory: pytest.TempPathFactory, broker: Broker) -> Iterator[Stack]:
    root = tmp_path_factory.mktemp("e2e")
    projects = make_projects(root / "projects")
    dags = root / "dags"
    dags.mkdir()
    (dags / "pipelines.py").write_text(DAGS.format(folder=str(root / "projects"), confs=SHORT_JOBS))
    (dags / "consumer.py").write_text(CONSUMER.format(folder=str(projects["consumed"].folder)))
    settings = root / "airflow_settings.yaml"
    kafka = {
        "bootstrap.servers": broker.secured,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": USER,
        "sasl.password": PASSWORD,
    }
    connections = [
        {"conn_id": "spark_default", "conn_type": "spark", "conn_host": "local[*]", "conn_password": CANARY},
        {"conn_id": "kafka_e2e", "conn_type": "kafka", "conn_extra": kafka},
    ]
    settings.write_text(yaml.safe_dump({"airflow": {"connections": connections}}))
    airflow = EmbeddedAirflow(
        home=root / "airflow",
        dags=dags,
        settings=settings,
        plugins=PROJECT / "plugins",
        port=free_port(),
        spark_port=free_port(),
        spark_confs=SHORT_JOBS,
        environ={
            "TIDEMARK_HOME": str(root / "tidemark"),
            "TIDEMARK_TEST_SECRET": CANARY,
            # The DAG files stay as they are.
            "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "3600",
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "60",
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "5",
        },
    )
    (root / "tidemark").mkdir()
    (root / "tidemark" / "jars").symlink_to(jars_folder())
    # The warm server's token is the canary too: made beforehand, where it would be made otherwise.
    (airflow.home / "secrets").mkdir(parents=True, mode=0o700)
    (airflow.home / "secrets" / "spark").write_text(CANARY)
    airflow.prepare()
    try:
        airflow.start()
        client = airflow.client()
        wait_for_dags(client, {*projects, *OTHER_DAGS})
        yield Stack(root, airflow, client, projects)
    finally:
        airflow.stop()
