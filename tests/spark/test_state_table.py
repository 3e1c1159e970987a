"""Spark reads states that it did not commit, and what it does to them is understood."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.state_table import APP, Hand
from tidemark.core.ledger import Committed
from tidemark.delta.deletion_vectors import read_vectors
from tidemark.delta.head import read_head
from tidemark.delta.state_status import read_state_status
from tidemark.spark.session import confs_set

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_spark_reads_every_version_and_its_vectors_are_read_and_its_own_work_is_followed(
    spark: SparkSession, tmp_path: Path
) -> None:
    """What delta-rs and Polars read is in `tests/delta/test_state_table.py` too."""
    hand = Hand(tmp_path / "state")
    hand.create()
    models = []
    for at in range(8):
        upserts = dict.fromkeys(range(at % 3, 60, 5), f"{at}")
        hand.publish(upserts, set(range(at, 60, 7)) - upserts.keys())
        models.append(dict(hand.model))

    def by_spark(version: int | None = None) -> dict[int, str]:
        reader = spark.read.format("delta")
        reader = reader if version is None else reader.option("versionAsOf", version)
        return {row.k: row.v for row in reader.load(str(hand.root)).collect()}

    def by_others() -> list[dict[int, str]]:
        return [hand.by_delta_rs(), hand.by_polars()]

    assert [by_spark(1), by_spark()] == [models[0], hand.model]
    # Found through a filter, by statistics that are true; and counted by them.
    frame = spark.read.format("delta").load(str(hand.root))
    assert (frame.where("k = 10").collect()[0].v, frame.count()) == (hand.model[10], len(hand.model))

    # Spark's own vectors are read by us: the same rows, whatever made them.
    spark.sql(f"DELETE FROM delta.`{hand.root}` WHERE k % 2 = 1")
    hand.model = {key: value for key, value in hand.model.items() if key % 2 == 0}
    head = hand.table.head()
    vectors = {path: file.vector for path, file in head.files.items() if file.vector is not None}
    assert {vector.place[:8] for vector in vectors.values()} - {"_vectors"}, vectors
    read_vectors(hand.table.store, vectors)
    assert head.rows == len(hand.model)
    assert hand.publish({2: "after", 7: "after"}) == Committed(head.version + 1)
    assert by_others() == [hand.model] * 2

    # A purge of Spark's, which changes no row and is judged so; a vacuum of everything; publishing goes on.
    # Its compaction is in `test_state.py`.
    spark.sql(f"REORG TABLE delta.`{hand.root}` APPLY (PURGE)")
    hand.publish({3: "x", 4: "y"}, {2, 6})
    done = read_state_status(str(hand.root), app=APP, since=None).foreign_writes
    assert {one.split()[-1] for one in done} == {"DELETE", "WRITE"}, "the publishes have no facts here"
    confs = {
        "spark.databricks.delta.retentionDurationCheck.enabled": "false",
        # A listing of ten thousand tasks, which is the default, takes minutes on a small machine.
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
    }
    with confs_set(spark, confs):
        spark.sql(f"VACUUM delta.`{hand.root}` RETAIN 0 HOURS")
    assert (hand.root / "_vectors").is_dir()
    assert by_others() == [hand.model] * 2
    hand.publish({5: "z"}, {8})
    assert read_head(hand.table.store).rows == len(hand.model)
    assert [by_spark(), *by_others()] == [hand.model] * 3
