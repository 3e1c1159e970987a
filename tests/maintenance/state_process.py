"""A process that maintains one state, to be killed: `python -m tests.maintenance.state_process ROOT`."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.maintenance.shop import SHARD, config_at
from tidemark.app.deployment import Deployment
from tidemark.delta.state_maintenance import DeltaStateKeeper, MaintainedState
from tidemark.pipeline.maintain import maintain_state


def no_spark() -> None:
    raise AssertionError("a state is kept in shape without Spark")


def keep_in_shape(root: Path) -> None:
    """Merge, purge and vacuum, with no history to keep."""
    deployment = Deployment(config_at(root), no_spark)  # type: ignore[arg-type]
    kept = MaintainedState(deployment.shard_uri(SHARD), history_days=0)
    keeper = DeltaStateKeeper("shop", {SHARD: kept})
    maintain_state(deployment.control, keeper, SHARD, merge=True, purge=True, vacuum=True)


if __name__ == "__main__":
    keep_in_shape(Path(sys.argv[1]))
