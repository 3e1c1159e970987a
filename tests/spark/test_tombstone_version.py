"""A publish records the version of the tombstones that it wrote, whatever has come after it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tests.support.state import SHARD, StateRig, gone
from tidemark.delta.upkeep import DeltaStateKeeper, KeptState
from tidemark.spark import state_write

pytestmark = pytest.mark.spark


def test_regression_a_publish_records_the_tombstones_that_it_wrote_and_not_the_newest(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Maintenance commits to the tombstones right after the publish does, before its state is committed."""
    rig = StateRig(spark, tmp_path, ddl="k STRING, v STRING, s BIGINT", sequence_by="s")
    rig.append(("a", "1", 1), gone("b", 10))
    first = rig.publish()
    keeper = DeltaStateKeeper("p", {SHARD: KeptState(rig.spec.uri)})
    tidy, made = state_write.tidy_log, []

    def late(uri: str, options: Any, version: int) -> None:
        tidy(uri, options, version)
        if uri == rig.spec.tombstones:
            made.append(version)
            keeper.merge(SHARD, tombstones=version)

    monkeypatch.setattr(state_write, "tidy_log", late)
    rig.append(gone("a", 5), ("b", "late", 9))
    second = rig.publish()
    assert made == [second.commit.tombstones] == [first.commit.tombstones + 1]
    assert DeltaTable(rig.spec.tombstones).version() == made[0] + 1, "the merged ones are newer"
    rig.append(("a", "older", 4))
    assert rig.fresh() == []
    rig.publish()
    assert rig.state() == []
