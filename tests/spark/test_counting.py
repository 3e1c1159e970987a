"""Counts depend on what is read, and on nothing that another session of the same Spark does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Observation, SparkSession

from tests.spark.connect_client import TWO_SHARDS
from tests.support.ingest import Rig, make_rig
from tidemark.core.ids import WriterToken
from tidemark.spark import session

pytestmark = pytest.mark.spark

RECORDS: Sequence[Any] = [
    {"id": 1, "t": "a", "v": 1.0},
    {"id": 1, "t": "b", "v": 2.0},
    {"id": 1, "t": "a", "v": 3.0},
    "broken",
]


@pytest.fixture
def rig(spark: SparkSession, tmp_path: Path) -> Rig:
    return make_rig(spark, tmp_path, *TWO_SHARDS)


def test_regression_counts_that_spark_loses_are_taken_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario V1: a Connect server waits a tenth of a second for its listener bus, and then sends none."""
    binding = rig.bind_records(RECORDS)
    plane = rig.plane()
    counted = plane.stage(binding, WriterToken("counted"))
    monkeypatch.setattr(Observation, "get", {})
    lost = plane.stage(binding, WriterToken("lost"))
    assert lost.digests == counted.digests == plane.replay(binding).digests
    assert lost.watermark == counted.watermark
    assert {shard: added.digest.count for shard, added in lost.shards.items()} == {
        "a": 1,
        "b": 1,
        "quarantine": 1,
    }
    assert plane.read_back(lost) == lost.digests


def test_regression_rows_that_a_killed_attempt_has_persisted_are_not_read_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invariant 6: all sessions of a Spark share one cache, which finds entries by their plan. A replay would
    prove the rows that another attempt read, whatever became of the file since."""
    binding = rig.bind_records(RECORDS)
    monkeypatch.setattr(type(rig.spark.range(1)), "unpersist", lambda frame, blocking=False: frame)
    staged = rig.plane().stage(binding, WriterToken("killed"))
    path = rig.root / "in" / "f0.json"
    path.write_text(path.read_text().replace("3.0", "4.0"))
    replayed = rig.plane().replay(binding)
    changed = {name for name, digest in staged.digests.items() if replayed.digests[name] != digest}
    assert changed == {"source", "shard:a"}


def new_observation(spark: SparkSession) -> Any:
    """One of the JVM's, which nobody fills."""
    return spark.sparkContext._jvm.org.apache.spark.sql.Observation()  # type: ignore[union-attr]


def test_regression_what_is_late_or_can_not_be_collected_has_not_come(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy listener bus takes longer than a tenth of a second, at which Spark's own look fails; an empty
    row is what Spark gives where the node that counts was optimised away."""
    monkeypatch.setattr(session, "OBSERVED_SECONDS_MAX", 0.05)
    seen = Observation()
    seen._jo = new_observation(spark)
    assert not session.has_arrived(seen)
    empty = spark.sparkContext._jvm.org.apache.spark.sql.Row.empty()  # type: ignore[union-attr]
    seen._jo.setMetricsAndNotify(empty)
    assert not session.has_arrived(seen)


def test_counts_that_a_classic_session_never_gets_are_not_waited_for_for_ever(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invariant 14: a full listener bus drops events, and Spark's own wait has no end."""

    class Dropped(Observation):
        def _on(self, frame: Any, *columns: Any) -> Any:
            observed = super()._on(frame, *columns)
            self._jo = new_observation(rig.spark)
            return observed

    binding = rig.bind_records(RECORDS)
    plane = rig.plane()
    counted = plane.replay(binding)
    monkeypatch.setattr(session, "Observation", Dropped)
    monkeypatch.setattr(session, "OBSERVED_SECONDS_MAX", 0.05)
    assert plane.replay(binding).digests == counted.digests
