"""Loads what every task of a pipeline needs into the processes that Airflow forks its tasks from.

A task starts with what the executor's process has loaded already. Without this file everything works the
same, and each of a run's five tasks loads these libraries by itself, a third of a second each. Spark and
Great Expectations are not among them: only some tasks need them, and they would make every process larger.
"""

from __future__ import annotations

from airflow.plugins_manager import AirflowPlugin

import tidemark.tasks  # noqa: F401


class TidemarkPlugin(AirflowPlugin):
    """Nothing but the import above."""

    name = "tidemark"
