"""Tidemark for Airflow 3. A DAGs folder needs two lines:

    from tidemark.airflow import pipeline_dags

    globals().update(pipeline_dags("/path/to/the/pipeline/files"))

Importing this package, and so parsing a DAG, loads neither Spark nor a warehouse. A public name is loaded on
first use, because Airflow imports the package's plugin and provider during its own import. The package needs
the extra `airflow`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from tidemark.core.errors import require

require("airflow")

if TYPE_CHECKING:
    from tidemark.airflow.assets import ShardConsumerOperator, ShardUpperSensor, shard_asset, shard_task
    from tidemark.airflow.dags import health_dag, maintain_dag, pipeline_dags, replace_dag, replay_dag
    from tidemark.airflow.operators import (
        CheckpointOperator,
        HealthOperator,
        IngestOperator,
        MaintainOperator,
        ReclockOperator,
        UpsertOperator,
        ValidateOperator,
    )
    from tidemark.airflow.replace import ApproveOperator, GenerationOperator, ReplacePlanOperator
    from tidemark.airflow.replay import ReplayOperator, ReplayPlanOperator, ReplayReportOperator

__all__ = [
    "ApproveOperator",
    "CheckpointOperator",
    "GenerationOperator",
    "HealthOperator",
    "IngestOperator",
    "MaintainOperator",
    "ReclockOperator",
    "ReplacePlanOperator",
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
    "replace_dag",
    "replay_dag",
    "shard_asset",
    "shard_task",
]

_MODULES: Final = ("assets", "dags", "operators", "replace", "replay")


def __getattr__(name: str) -> Any:
    """Load a public name from the module that defines it."""
    if name in __all__:
        for module in _MODULES:
            found = getattr(import_module(f"{__name__}.{module}"), name, None)
            if found is not None:
                return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
