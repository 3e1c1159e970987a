"""Tombstones beside a state: the version that a publish records, and what maintenance removes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tests.support.deployed import arrive, begun
from tests.support.state import SHARD, StateRig, gone, rows_of
from tidemark.app.maintenance import MaintenanceReport, maintain, plan, terms_of
from tidemark.app.views import read, read_quarantine
from tidemark.core.ids import ShardId, WriterToken
from tidemark.core.ledger import CommitOutcome, Committed
from tidemark.delta.state_maintenance import DeltaStateKeeper, MaintainedState
from tidemark.pipeline.publish import publish
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


def test_maintenance_removes_tombstones_that_no_record_in_time_can_lose_to(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The lateness is in seconds, and the sequences are times."""
    works = begun(
        spark, tmp_path, schema="k INT, v STRING, at TIMESTAMP", keys=["k"], sequence_by="at", lateness=60,
        apply_as_deletes="v = 'gone'", publish="manual",
    )  # fmt: skip
    shard = ShardId("t")

    def record(key: int, value: str, at: str) -> dict[str, Any]:
        return {"k": key, "v": value, "at": f"2026-01-01T{at}Z"}

    def late(report: MaintenanceReport) -> list[tuple[str, int]]:
        return [(one.what, one.files) for one in report.chores if "tombstones" in one.what]

    arrive(works, record(1, "gone", "00:01:00"))
    publish(works.control, works.state(), shard, token=WriterToken("first"))
    arrive(works, record(2, "here", "00:02:00"))
    assert late(plan(works, terms_of(works))) == [], "what waits to be published is judged by its own time"
    publish(works.control, works.state(), shard, token=WriterToken("second"))
    assert late(plan(works, terms_of(works))) == [], "one minute is not more than the lateness"
    arrive(works, record(2, "here", "00:02:01"))
    publish(works.control, works.state(), shard, token=WriterToken("third"))
    assert late(plan(works, terms_of(works))) == [("remove late tombstones", 1)]
    done = maintain(works, WriterToken("keeper"), terms_of(works), watch=False)
    assert late(done) == [("removed late tombstones", 1)]
    assert late(plan(works, terms_of(works))) == []
    arrive(works, record(1, "late", "00:00:59"), record(3, "in time", "00:01:01"))
    assert [row[0] for row in rows_of(read(works, shard).select("k"))] == [2, 3]
    assert read_quarantine(works, as_of=4).count() == 1
