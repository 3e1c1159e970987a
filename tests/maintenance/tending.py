"""A process that keeps one state in shape, to be killed at it: `python -m tests.maintenance.tending ROOT`."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from pyspark.sql import SparkSession

from tests.maintenance.shop import SHARD, config_at
from tidemark.assemble import Deployment
from tidemark.pipeline.tend import tend
from tidemark.spark.session import SHORT_JOBS, build_session
from tidemark.spark.spec import StateSpecs, specs_of
from tidemark.spark.upkeep import SparkStateKeeper


def keep_in_shape(spark: SparkSession, root: Path) -> None:
    """Merge, purge and vacuum, with no history to keep."""
    deployment = Deployment(config_at(root), lambda: spark)
    spec = replace(specs_of(deployment.config).of(SHARD), history_days=0)
    keeper = SparkStateKeeper(spark, StateSpecs("shop", {SHARD: spec}))
    tend(
        deployment.control, deployment.state(), keeper, SHARD, merge=True, purge=True, vacuum=True,
    )  # fmt: skip


if __name__ == "__main__":
    given = Path(sys.argv[1])
    keep_in_shape(
        build_session("tending", master="local[1]", scratch_folder=given / "scratch", confs=SHORT_JOBS), given
    )
