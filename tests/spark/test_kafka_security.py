"""Reaching a broker: credentials that are right, wrong or not asked for, and no trace of them afterwards."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.kafka import PASSWORD, USER, Broker
from tests.support.kafka_pipeline import Rig, kv
from tidemark.core.errors import Determinate, InvalidUsage
from tidemark.sources.kafka.cluster import Cluster
from tidemark.spark.inputs import input_of

pytestmark = [pytest.mark.spark, pytest.mark.server]


def connection(broker: Broker, password: str) -> dict[str, str]:
    return {
        "bootstrap.servers": broker.secured,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": USER,
        "sasl.password": password,
    }


def test_a_connections_password_reaches_both_clients_and_is_written_nowhere(
    spark: SparkSession,
    broker: Broker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    text = json.dumps({"conn_type": "kafka", "extra": connection(broker, PASSWORD)})
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_SECURED", text)
    rig = Rig(spark, tmp_path, broker, broker.make("secured"), source={"kafka_config_id": "kafka_secured"})
    broker.send("secured", [kv("a", "1")])
    rig.run()
    assert rig.table() == {"a": "1"}
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    assert [path for path in files if PASSWORD.encode() in path.read_bytes()] == []
    bound = input_of(rig.config, rig.bindings()[0], today=rig.config)
    bound.read(spark, rig.config, bound.form(rig.config), cores=1).explain(extended=True)
    assert PASSWORD not in "".join(capfd.readouterr())
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_SECURED", text.replace(PASSWORD, "wrong-password"))
    with pytest.raises(InvalidUsage, match=r"refuses the credentials: .*check user, password") as refused:
        rig.run()
    assert "wrong-password" not in str(refused.value)


def test_a_broker_that_is_not_there_is_one_message_that_may_be_retried(broker: Broker) -> None:
    with socket.socket() as silent:  # Bound, so that nobody else gets it, and not listening.
        silent.bind(("127.0.0.1", 0))
        servers = f"127.0.0.1:{silent.getsockname()[1]}"
        cluster = Cluster(lambda: {"bootstrap.servers": servers}, wait_seconds_max=4)
        with pytest.raises(Determinate, match=rf"kafka at {servers} can't be reached in 4 s: .*refused"):
            cluster.describe(["t"])
    assert Cluster(lambda: {"bootstrap.servers": broker.servers}).describe(["no-such-topic"]) == {}
    with pytest.raises(InvalidUsage, match="the kafka client can't be set up"):
        Cluster(lambda: {"bootstrap.servers": servers, "security.protocol": "NONE"}).describe(["t"])
