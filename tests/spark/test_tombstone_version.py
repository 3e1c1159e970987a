"""A publish records the version of the tombstones that it wrote, whatever has come after it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tests.support.state import SHARD, StateRig, gone
from tidemark.core.ledger import CommitOutcome, Committed
from tidemark.delta.state_maintenance import DeltaStateKeeper, MaintainedState
from tidemark.spark.state_table import NextVersion

pytestmark = pytest.mark.spark


def test_regression_a_publish_records_the_tombstones_that_it_wrote_and_not_the_newest(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Maintenance commits to the tombstones right after the publish does, before its state is committed."""
    rig = StateRig(spark, tmp_path, ddl="k STRING, v STRING, s BIGINT", sequence_by="s")
    rig.append(("a", "1", 1), gone("b", 10))
    first = rig.publish()
    keeper = DeltaStateKeeper("p", {SHARD: MaintainedState(rig.spec.uri)})
    commit, made = NextVersion.commit, []

    def late(self: NextVersion, *args: Any, **known: Any) -> CommitOutcome:
        outcome = commit(self, *args, **known)
        if self.store.uri == rig.spec.tombstones and isinstance(outcome, Committed):
            made.append(outcome.version)
            keeper.merge(SHARD, tombstones=outcome.version)
        return outcome

    monkeypatch.setattr(NextVersion, "commit", late)
    rig.append(gone("a", 5), ("b", "late", 9))
    second = rig.publish()
    assert made == [second.commit.tombstones] == [first.commit.tombstones + 1]
    assert DeltaTable(rig.spec.tombstones).version() == made[0] + 1, "the merged ones are newer"
    rig.append(("a", "older", 4))
    assert rig.fresh() == []
    rig.publish()
    assert rig.state() == []
