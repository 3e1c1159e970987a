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
from tidemark.core.errors import InvalidUsage


def provide_connection(pipeline_file: str, environment: str | None) -> None:
    """Look the source's connection up, if it has one; `InvalidUsage` when there is no such connection."""
    source = load_pipeline(pipeline_file, environment or None).source
    if not isinstance(source, KafkaSource) or source.kafka_config_id is None:
        return
    name = source.kafka_config_id
    try:
        found = BaseHook.get_connection(name)
    except AirflowNotFoundException:
        raise InvalidUsage(f"there is no connection {name!r}", hint="make it in Airflow") from None
    os.environ[f"AIRFLOW_CONN_{name.upper()}"] = found.as_json()
