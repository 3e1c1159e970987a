"""Tidemark's Airflow plugin: it adds the pages, and preloads libraries in the process that forks tasks.

Airflow finds the plugin by the package's entry point. The pages (`tidemark.airflow.pages`) are built only in
the API server.

A forked task starts with the libraries that the executor's process has loaded. Without this plugin tasks work
the same, but each of a run's five tasks loads these libraries itself, a third of a second each, and every
gate loads Great Expectations, which takes seconds. Great Expectations is preloaded only where tasks are
forked: in a scheduler with its local executor, and in a worker. It imports Spark's client, which starts no
thread before its first use.
"""

from __future__ import annotations

import sys
from typing import Any, Final

from airflow.plugins_manager import AirflowPlugin

from tidemark.app import tasks

if not {"scheduler", "worker"}.isdisjoint(sys.argv[1:]):
    tasks.load_gate()


PREFIX: Final = "/tidemark"
# Relative to the address of Airflow's pages, so they also work below a path prefix.
VIEWS: Final = (
    {"name": "Tidemark", "destination": "nav", "url_route": "tidemark", "href": "tidemark/pipelines"},
    {
        "name": "Tidemark",
        "destination": "dag",
        "url_route": "tidemark_pipeline",
        "href": "tidemark/pipeline?dag_id={DAG_ID}",
    },
    {
        "name": "Tidemark",
        "destination": "dag_run",
        "url_route": "tidemark_run",
        "href": "tidemark/run?dag_id={DAG_ID}&run_id={RUN_ID}",
    },
    {
        "name": "Tidemark",
        "destination": "task_instance",
        "url_route": "tidemark_task",
        "href": "tidemark/run?dag_id={DAG_ID}&run_id={RUN_ID}&task_id={TASK_ID}",
    },
)


class TidemarkPlugin(AirflowPlugin):
    """The pages. Importing this module also preloads the libraries that tasks need."""

    name = "tidemark"
    external_views = [dict(view) for view in VIEWS]  # noqa: RUF012

    @property
    def fastapi_apps(self) -> list[Any]:  # type: ignore[override]
        from tidemark.airflow.pages.app import pages_app

        return [{"app": pages_app(), "url_prefix": PREFIX, "name": "Tidemark"}]
