"""A DAG that checks every pipeline for alarms, and fails once for each."""

from __future__ import annotations

import os
from pathlib import Path

from tidemark.airflow import health_dag

PROJECT = Path(__file__).resolve().parents[1]
PIPELINES = os.environ.get("TIDEMARK_PIPELINES") or PROJECT / "include" / "pipelines"

globals().update(health_dag(PIPELINES))
