"""A DAG to start by hand: it proves, or repairs, a chosen range of a chosen pipeline's transactions."""

from __future__ import annotations

import os
from pathlib import Path

from tidemark.airflow import replay_dag

PROJECT = Path(__file__).resolve().parents[1]
PIPELINES = os.environ.get("TIDEMARK_PIPELINES") or PROJECT / "include" / "pipelines"
SPARK = os.environ.get("TIDEMARK_SPARK_CONN_ID") or "spark_default"

globals().update(replay_dag(PIPELINES, conn_id=SPARK))
