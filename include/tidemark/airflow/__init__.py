"""Tidemark for Airflow 3. A DAGs folder needs two lines:

    from tidemark.airflow import pipeline_dags

    globals().update(pipeline_dags("/path/to/the/pipeline/files"))

Importing this, and so parsing a DAG, loads neither Spark nor a warehouse. The extra `airflow`.
"""

from __future__ import annotations

from tidemark.core.extras import require

require("airflow")

from tidemark.airflow.assets import shard_asset
from tidemark.airflow.consumers import ShardConsumerOperator, ShardUpperSensor, shard_task
from tidemark.airflow.dags import health_dag, maintain_dag, pipeline_dags, replay_dag
from tidemark.airflow.health import HealthOperator
from tidemark.airflow.operators import (
    CheckpointOperator,
    IngestOperator,
    MaintainOperator,
    ReclockOperator,
    UpsertOperator,
    ValidateOperator,
)
from tidemark.airflow.replay import ReplayOperator, ReplayPlanOperator, ReplayReportOperator

__all__ = [
    "CheckpointOperator",
    "HealthOperator",
    "IngestOperator",
    "MaintainOperator",
    "ReclockOperator",
    "ReplayOperator",
    "ReplayPlanOperator",
    "ReplayReportOperator",
    "ShardConsumerOperator",
    "ShardUpperSensor",
    "UpsertOperator",
    "ValidateOperator",
    "health_dag",
    "maintain_dag",
    "pipeline_dags",
    "replay_dag",
    "shard_asset",
    "shard_task",
]
