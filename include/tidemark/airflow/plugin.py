"""Tidemark's plugin: its pages in Airflow, and what tasks need, loaded where they are forked from.

Airflow finds it by the package's entry point. The pages are made only where Airflow asks for them, in its API
server (`tidemark.airflow.pages`).

A task starts with what the executor's process has loaded already. Without this plugin tasks work the same,
and each of a run's five loads these libraries by itself, a third of a second each, and every gate Great
Expectations, which takes seconds. That one is loaded only where tasks are forked from: a scheduler with its
local executor, a worker. It brings Spark's client along, which has no threads before it is used.
"""

from __future__ import annotations

import sys
from typing import Any, Final

from airflow.plugins_manager import AirflowPlugin

from tidemark.app import tasks

if not {"scheduler", "worker"}.isdisjoint(sys.argv[1:]):
    tasks.load_gate()


PREFIX: Final = "/tidemark"
# Relative to the address that Airflow's pages are at, wherever that is.
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
)


class TidemarkPlugin(AirflowPlugin):
    """The pages, and the imports above."""

    name = "tidemark"
    external_views = [dict(view) for view in VIEWS]  # noqa: RUF012

    @property
    def fastapi_apps(self) -> list[Any]:  # type: ignore[override]
        from tidemark.airflow.pages.app import pages_app

        return [{"app": pages_app(), "url_prefix": PREFIX, "name": "Tidemark"}]
