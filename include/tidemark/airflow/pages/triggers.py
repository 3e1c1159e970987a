"""Starting a run of a DAG, as Airflow's own REST API does it."""

from __future__ import annotations

from functools import cache
from typing import Any

from fastapi import Request


@cache
def _dags() -> Any:
    from airflow.api_fastapi.common.dagbag import create_dag_bag

    return create_dag_bag()


def start(dag_id: str, asked: dict[str, Any], *, note: str, user: Any, session: Any, request: Request) -> str:
    """Start a run with this conf, and the reason as its note; returns its id."""
    from airflow.api_fastapi.core_api.datamodels.dag_run import TriggerDAGRunPostBody
    from airflow.api_fastapi.core_api.routes.public.dag_run import trigger_dag_run

    body = TriggerDAGRunPostBody(logical_date=None, conf=asked, note=note)
    made = trigger_dag_run(dag_id, body, _dags(), user, session, request)
    return str(made.run_id if hasattr(made, "run_id") else made.dag_run_id)
