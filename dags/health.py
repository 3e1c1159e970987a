"""A DAG that looks for what needs somebody, in every pipeline, and is red once for each alarm."""

from __future__ import annotations

import os
from pathlib import Path

from tidemark.airflow import health_dag

PROJECT = Path(__file__).resolve().parents[1]
PIPELINES = os.environ.get("TIDEMARK_PIPELINES") or PROJECT / "include" / "pipelines"

globals().update(health_dag(PIPELINES))
