"""The DAGs that serve all pipelines of a folder: one each for replays, maintenance and alarms."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Param, chain

from tidemark.airflow.documents import of_dag
from tidemark.airflow.factory import (
    DEFAULT_ARGS,
    HEALTH,
    MAINTAIN,
    REPLAY,
    RESERVED,
    START,
    loaded,
    made_by_this_file,
)
from tidemark.airflow.health import HealthOperator
from tidemark.airflow.operators import MaintainOperator
from tidemark.airflow.pages.registry import TAG
from tidemark.airflow.replays import ReplayOperator, ReplayPlanOperator, ReplayReportOperator
from tidemark.core.errors import InvalidUsage
from tidemark.pipeline.replay import MODES, VERIFY


def _files(folder: str | Path, environment: str | None, dag_id: str) -> dict[str, str]:
    """The pipelines that can be used, with their files; `pipeline_dags` reports the others. `InvalidUsage`
    when one of them has the id of the DAG that is made for all."""
    found = loaded(folder, environment)
    files = {
        config.name: str(Path(folder).absolute() / file) for file, config in sorted(found.pipelines.items())
    }
    if dag_id in files and dag_id not in RESERVED:
        raise InvalidUsage(f"{files[dag_id]}: the DAG {dag_id!r} is another one", hint="name one differently")
    if dag_id in {dag.dag_id for dag in made_by_this_file()}:
        raise InvalidUsage(f"this DAG file has a DAG {dag_id!r} already", hint="give this one a dag_id")
    return {name: file for name, file in files.items() if name not in RESERVED}


def replay_dag(
    folder: str | Path,
    *,
    environment: str | None = None,
    conn_id: str = "spark_default",
    dag_id: str = REPLAY,
    default_args: Mapping[str, Any] | None = None,
    **dag_kwargs: Any,
) -> dict[str, DAG]:
    """A DAG for people: choose a pipeline and a range, and have it proven again, or repaired."""
    files = _files(folder, environment, dag_id)
    if not files:
        return {}
    params = {
        "pipeline": Param(
            next(iter(files)), type="string", enum=list(files), description="The pipeline to replay"
        ),
        "txn_from": Param(1, type="integer", minimum=1, description="The first transaction"),
        "txn_to": Param(
            None, type=["integer", "null"], minimum=1, description="The last one; all by default"
        ),
        "mode": Param(
            VERIFY,
            type="string",
            enum=list(MODES),
            description="verify writes nothing; repair restores lost parts of identical input",
        ),
        "dry_run": Param(False, type="boolean", description="Only say what would be read"),
    }
    settings: dict[str, Any] = {
        "schedule": None,
        "catchup": False,
        "tags": [TAG],
        "description": "Read recorded input again and prove, or repair, what was written",
        "default_args": {"owner": TAG, **(default_args or {})},
        **of_dag(REPLAY),
        **dag_kwargs,
    }
    with DAG(dag_id, params=params, **settings) as dag:
        plan = ReplayPlanOperator(task_id="plan", pipeline_files=files, environment=environment)
        replay = ReplayOperator(
            task_id="replay", pipeline_files=files, environment=environment, conn_id=conn_id
        )
        report = ReplayReportOperator(task_id="report", report=replay.output)
        chain(plan, replay, report)
    return {dag.dag_id: dag}


def maintain_dag(
    folder: str | Path,
    *,
    environment: str | None = None,
    conn_id: str = "spark_default",
    publisher_pool: str = "default_pool",
    dag_id: str = MAINTAIN,
    default_args: Mapping[str, Any] | None = None,
    **dag_kwargs: Any,
) -> dict[str, DAG]:
    """A DAG that looks after all pipelines: publish what is due, merge, let go, delete (`tidemark.upkeep`).

    Its tasks warn in their logs of what soon can't be proven any more."""
    files = _files(folder, environment, dag_id)
    settings: dict[str, Any] = {
        "schedule": "@daily",
        "start_date": START,
        "catchup": False,
        "max_active_runs": 1,
        "tags": [TAG],
        "description": "Publish what is due, merge small files, let go and delete what nobody needs",
        "default_args": {**DEFAULT_ARGS, **(default_args or {})},
        **of_dag(MAINTAIN),
        **dag_kwargs,
    }
    if not files:
        return {}
    with DAG(dag_id, **settings) as dag:
        for name, file in files.items():
            MaintainOperator(
                task_id=name,
                pipeline_file=file,
                environment=environment,
                conn_id=conn_id,
                pool=publisher_pool,
            )
    return {dag.dag_id: dag}


def health_dag(
    folder: str | Path,
    *,
    environment: str | None = None,
    dag_id: str = HEALTH,
    default_args: Mapping[str, Any] | None = None,
    **dag_kwargs: Any,
) -> dict[str, DAG]:
    """A DAG that looks for alarms, a task per pipeline: red once for each one, with what to do about it.

    `default_args={"on_failure_callback": ...}` takes a notifier. It needs no Spark."""
    files = _files(folder, environment, dag_id)
    settings: dict[str, Any] = {
        "schedule": "*/10 * * * *",
        "start_date": START,
        "catchup": False,
        "max_active_runs": 1,
        "tags": [TAG],
        "description": "Look for what needs somebody: blocked, stalled, behind, quarantine, kept log",
        "default_args": {**DEFAULT_ARGS, **(default_args or {})},
        **of_dag(HEALTH),
        **dag_kwargs,
    }
    if not files:
        return {}
    with DAG(dag_id, **settings) as dag:
        for name, file in files.items():
            HealthOperator(task_id=name, pipeline_file=file, environment=environment)
    return {dag.dag_id: dag}
