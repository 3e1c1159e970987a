"""The connection of a source: from Airflow into the environment of the step, and nowhere else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tidemark.config import KafkaSource, load_pipeline
from tidemark.core.errors import InvalidUsage
from tidemark.sources.kafka.connection import settings_of
from tidemark.sources.postgres.slot import parameters_of

pytestmark = pytest.mark.airflow

PIPELINE = """
name: p
source: {type: kafka, kafka_config_id: kafka_of_airflow, topics: [t]}
shards: [{name: t, schema: "a INT", keys: [a]}]
"""
DATABASE = """
name: p
envelope: debezium
source: {type: postgres, postgres_conn_id: db_of_airflow, slot: s, publication: p}
shards: [{name: t, schema: "a INT", keys: [a], route: {table: public.t}}]
"""
VARIABLE = "AIRFLOW_CONN_KAFKA_OF_AIRFLOW"


def test_a_source_finds_the_connection_that_airflow_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.sdk import BaseHook, Connection
    from airflow.sdk.exceptions import AirflowNotFoundException

    from tidemark.airflow.steps import provide_connection

    extra = '{"bootstrap.servers": "b:9092", "sasl.password": "hidden-word"}'
    kept = {
        "kafka_of_airflow": Connection(conn_id="kafka_of_airflow", conn_type="kafka", extra=extra),
        "db_of_airflow": Connection(
            conn_id="db_of_airflow", conn_type="postgres", host="h", port=5, schema="d", login="u",
            password="p%", extra='{"sslmode": "require", "cursor": "dict"}',
        ),
    }  # fmt: skip

    def found(name: str) -> Connection:
        if name not in kept:
            raise AirflowNotFoundException(name)
        return kept[name]

    def down(name: str) -> Connection:
        raise RuntimeError("the backend is down")

    # Stands in for the backend, which only a running task can ask.
    monkeypatch.setattr(BaseHook, "get_connection", found)
    monkeypatch.setenv(VARIABLE, "")
    monkeypatch.setenv("AIRFLOW_CONN_DB_OF_AIRFLOW", "")
    file = tmp_path / "p.yaml"
    file.write_text(PIPELINE)
    provide_connection(str(file), "")
    source = load_pipeline(file).source
    assert isinstance(source, KafkaSource)
    assert settings_of(source, os.environ) == {"bootstrap.servers": "b:9092", "sasl.password": "hidden-word"}
    file.write_text(DATABASE)
    provide_connection(str(file), None)
    assert parameters_of("db_of_airflow") == {
        "host": "h", "port": "5", "dbname": "d", "user": "u", "password": "p%", "sslmode": "require",
    }  # fmt: skip
    # One that is not there is told by who needs it; any other failure of Airflow's is not taken for that.
    kept.clear()
    monkeypatch.setenv(VARIABLE, "")
    file.write_text(PIPELINE)
    provide_connection(str(file), None)
    with pytest.raises(InvalidUsage, match="there is no connection 'kafka_of_airflow'"):
        settings_of(source, os.environ)
    monkeypatch.setattr(BaseHook, "get_connection", down)
    with pytest.raises(RuntimeError, match="the backend is down"):
        provide_connection(str(file), None)


def test_a_source_of_files_asks_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.sdk import BaseHook

    from tidemark.airflow.steps import provide_connection

    asked: list[str] = []
    monkeypatch.setattr(BaseHook, "get_connection", asked.append)

    file = tmp_path / "p.yaml"
    source = "{type: files, path: in, format: json}"
    file.write_text(PIPELINE.replace("{type: kafka, kafka_config_id: kafka_of_airflow, topics: [t]}", source))
    before = dict(os.environ)
    provide_connection(str(file), None)
    assert (asked, dict(os.environ)) == ([], before)
