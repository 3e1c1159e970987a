"""Loads what every task of a pipeline needs into the processes that Airflow forks its tasks from.

Airflow finds it by the package's entry point. A task starts with what the executor's process has loaded
already. Without this plugin everything works the same, and each of a run's five tasks loads these libraries
by itself, a third of a second each, and every gate Great Expectations, which takes seconds. That one is
loaded only where tasks are forked from: a scheduler with its local executor, a worker. It brings Spark's
client along, which has no threads before it is used.
"""

from __future__ import annotations

import sys

from airflow.plugins_manager import AirflowPlugin

from tidemark import tasks

if not {"scheduler", "worker"}.isdisjoint(sys.argv[1:]):
    tasks.load_gate()


class TidemarkPlugin(AirflowPlugin):
    """Nothing but the imports above."""

    name = "tidemark"
