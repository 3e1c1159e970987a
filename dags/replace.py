"""A DAG to start by hand: it replaces a pipeline's settings by those of its file, without downtime."""

from __future__ import annotations

import os
from pathlib import Path

from tidemark.airflow import replace_dag

PROJECT = Path(__file__).resolve().parents[1]
PIPELINES = os.environ.get("TIDEMARK_PIPELINES") or PROJECT / "include" / "pipelines"
SPARK = os.environ.get("TIDEMARK_SPARK_CONN_ID") or "spark_default"

globals().update(replace_dag(PIPELINES, conn_id=SPARK, publisher_pool="tidemark_publishers"))
