"""The connection that a pipeline's source names, put where a step looks for it.

Airflow's connections may be in its database or in any secrets backend, and only a task can ask for them. A
step, here or in a Spark job that this task submits, reads the environment: so the connection goes into this
process's own, which a submitted job inherits. It is on no command line.
"""

from __future__ import annotations

import os

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException

from tidemark.config import KafkaSource, load_pipeline
from tidemark.config.source import PostgresSource


def provide_connection(pipeline_file: str, environment: str | None) -> None:
    """Look the source's connection up, if it has one. Whoever needs one that is not there says so itself: a
    replay of captured changes needs none. Any other failure is Airflow's own, and a retry may do."""
    name = _named_by(load_pipeline(pipeline_file, environment or None).source)
    if name is None:
        return
    try:
        found = BaseHook.get_connection(name)
    except AirflowNotFoundException:
        return
    os.environ[f"AIRFLOW_CONN_{name.upper()}"] = found.as_json()


def _named_by(source: object) -> str | None:
    match source:
        case KafkaSource():
            return source.kafka_config_id
        case PostgresSource():
            return source.postgres_conn_id
        case _:
            return None
