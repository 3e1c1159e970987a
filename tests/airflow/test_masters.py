"""What is made of a Spark connection: a master and how a job gets there, or a server's address."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import BaseHook, Connection
from pyspark.sql.connect.client import DefaultChannelBuilder

from tidemark.airflow.dags import pipeline_dags
from tidemark.airflow.operators import IngestOperator
from tidemark.airflow.steps import connect_url, master_of
from tidemark.app.job import Order
from tidemark.core.errors import InvalidUsage
from tidemark.spark.session import connect_address

pytestmark = pytest.mark.airflow


def connection(conn_type: str = "spark", **given: Any) -> Connection:
    return Connection(conn_id="c", conn_type=conn_type, **given)


@pytest.mark.parametrize(
    ("found", "master"),
    [
        (connection(), "local[*]"),
        (connection(host="local[2]"), "local[2]"),
        (connection(host="yarn"), "yarn"),
        (connection(host="spark://one", port=7077), "spark://one:7077"),
        (connection(host="localhost", port=7077), "spark://localhost:7077"),
        (connection("k8s", host="one", port=6443), "k8s://one:6443"),
    ],
)
def test_the_master_is_the_one_that_the_provider_submits_to(found: Connection, master: str) -> None:
    assert master_of(found) == master


@pytest.mark.parametrize("deploy_mode", ["cluster", "client"])
def test_a_standalone_cluster_gets_no_driver_in_python(
    deploy_mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's own script refuses it with a stack trace, after the task has waited for it."""
    found = connection(host="spark://one:7077", extra=f'{{"deploy-mode": "{deploy_mode}"}}')
    sent: list[list[str]] = []

    def send(step: SparkSubmitOperator, context: object) -> None:
        sent.append(step._get_hook()._build_spark_submit_command(step.application))

    monkeypatch.setattr(BaseHook, "get_connection", classmethod(lambda cls, name: found))
    monkeypatch.setattr("tidemark.runtime.jars.jar_paths", lambda: [Path("delta.jar")])
    monkeypatch.setattr("tidemark.runtime.machine.use_java", lambda: None)
    monkeypatch.setattr(SparkSubmitOperator, "execute", send)
    step = IngestOperator(task_id="ingest", pipeline_file="shop.yaml")
    if deploy_mode == "cluster":
        with pytest.raises(InvalidUsage, match="set the deploy-mode to client"):
            step.submit({}, Order("shop.yaml", "r", "t"))  # type: ignore[typeddict-item]
        assert sent == []
        return
    step.submit({}, Order("shop.yaml", "r", "t"))  # type: ignore[typeddict-item]
    (command,) = sent
    assert command[command.index("--deploy-mode") :][:2] == ["--deploy-mode", "client"]


JSON = '{{"conn_type": "spark", "host": "spark://one:7077", "extra": {{"deploy-mode": "{mode}"}}}}'


@pytest.mark.parametrize(
    ("variable", "given", "is_refused"),
    [
        (JSON.format(mode="cluster"), {}, True),
        ("spark://spark%3A%2F%2Fone:7077?deploy-mode=cluster", {}, True),
        (JSON.format(mode="client"), {"deploy_mode": "cluster"}, True),
        ("spark://one:7077", {"conf": {"spark.submit.deployMode": "cluster"}}, True),
        (JSON.format(mode="cluster"), {"deploy_mode": "client"}, False),
        (JSON.format(mode="cluster").replace("spark://one:7077", "yarn"), {}, False),
        ("spark-connect://one:15002", {"deploy_mode": "cluster"}, False),
        # A task says what is wrong with it, or finds another one in a backend that no DAG file asks.
        ("{", {"deploy_mode": "cluster"}, False),
        ("", {"deploy_mode": "cluster"}, False),
    ],
)
def test_a_dag_whose_connection_is_in_the_environment_is_refused_when_it_is_parsed(
    variable: str, given: dict[str, Any], is_refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(BaseHook, "get_connection", classmethod(lambda cls, name: asked.append(name)))
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", variable)
    (tmp_path / "shop.yaml").write_text(
        "name: shop\nsource: {type: files, path: in, format: json}\n"
        "shards: [{name: orders, schema: id BIGINT NOT NULL, keys: [id]}]\n"
    )
    dags = pipeline_dags(tmp_path, default_args=given)
    problems = [str(one) for dag in dags.values() for one in getattr(dag, "problems", ())]
    assert asked == []
    if not is_refused:
        assert (list(dags), problems) == (["shop"], [])
        return
    (problem,) = problems
    assert "shop" not in dags
    assert "shop.yaml" in problem
    assert "Spark can't run a driver in Python on the standalone cluster spark://one:7077" in problem
    assert "set the deploy-mode to client" in problem


@pytest.mark.parametrize("token", ["plain", "a=b;c%41d", "with/slash+and space", "ü#?&"])
@pytest.mark.parametrize("host", ["localhost", "sc://localhost", "sc://localhost/"])
def test_regression_any_token_reaches_the_server_that_the_connection_names(token: str, host: str) -> None:
    for more in ({}, {"login": "me;you", "extra": '{"use_ssl": true}'}):
        url = connect_url(connection("spark_connect", host=host, port=15002, password=token, **more))
        assert "token" not in url
        read = DefaultChannelBuilder(connect_address(url, token))
        assert (read.endpoint, read.token, read.userId) == ("localhost:15002", token, more.get("login"))
        assert read.use_ssl is bool(more)


def test_a_connection_without_a_host_is_refused_before_its_token_is_in_a_url() -> None:
    with pytest.raises(InvalidUsage, match="the connection 'c' has no host"):
        connect_url(connection("spark_connect", password="hidden-word"))
