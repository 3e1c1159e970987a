"""A DAG for each pipeline file of `include/pipelines`: reclock, ingest, validate, upsert, checkpoint."""

from __future__ import annotations

import os
from pathlib import Path

from tidemark.airflow import pipeline_dags

PROJECT = Path(__file__).resolve().parents[1]
PIPELINES = os.environ.get("TIDEMARK_PIPELINES") or PROJECT / "include" / "pipelines"
SPARK = os.environ.get("TIDEMARK_SPARK_CONN_ID") or "spark_default"

# Overlapping runs are safe, and a run that hangs does not delay the next one.
globals().update(
    pipeline_dags(PIPELINES, conn_id=SPARK, publisher_pool="tidemark_publishers", max_active_runs=2)
)
