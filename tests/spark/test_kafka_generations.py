"""Generations on real topics: the candidate follows live input, its promotion reaches a consumer, and input
that the broker has removed is named before anything is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support.kafka import Broker
from tests.support.kafka_pipeline import KV, TABLE, Rig, kv
from tidemark.app.consume import Consumer
from tidemark.app.deployment import Deployment
from tidemark.app.generation import Generations
from tidemark.app.generation_plan import plan
from tidemark.app.views import open_errors
from tidemark.core.errors import InvalidUsage
from tidemark.core.replay import Verdict
from tidemark.pipeline.publish import verify_state

pytestmark = [pytest.mark.spark, pytest.mark.server]
OLD: dict[str, Any] = {"shard": {**KV, "apply_as_deletes": "v = 'gone'"}}
LENGTHS = {
    "type": "expect_column_value_lengths_to_be_between",
    "kwargs": {"column": "v", "max_value": 4},
    "action": "quarantine",
}
NEW: dict[str, Any] = {
    "shard": {**KV, "apply_as_deletes": "v = 'away'", "expectations": [LENGTHS]},
    "generation": 1,
}


def applied(deployment: Deployment, copy: dict[str, str]) -> dict[str, str]:
    """What a consumer's table has after the batches that it has not had yet."""
    with Consumer(deployment, "t", "copy") as consumer:
        for batch in consumer.listen():
            for row in sorted(batch.frame.collect(), key=lambda row: int(row["_txn"])):
                copy.pop(row["k"], None)
                if row["_op"] == "U":
                    copy[row["k"]] = row["v"]
    return copy


def test_a_candidate_follows_a_topic_and_its_promotion_reaches_the_consumer(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    """A rule for deletes and an expectation: consumer at 2, promotion at 5."""
    topic = broker.make("followed", 2)
    old = Rig(spark, tmp_path, broker, topic, **OLD)
    new = Rig(spark, tmp_path, broker, topic, **NEW)

    def sent(rig: Rig, *records: tuple[str, str | None]) -> None:
        for number, record in enumerate(records):
            broker.send(topic, [kv(*record)], partition=number % 2)
        rig.run()

    sent(old, ("a", "gone"), ("b", "away"), ("c", "long value"), ("d", None))
    sent(old, ("a", "x"), ("b", "gone"), ("e", "away"))
    copy = applied(old.opened(), {})
    works = Generations(new.opened())
    found = plan(works.deployment)
    assert (found.refused, found.transactions, found.records) == ((), 2, 7)
    begun = works.start(reason="other rules")
    pair = works.pair(begun)
    assert [(one.txn, one.source_equal) for one in pair.follow(new.attempt())] == [(1, True), (2, True)]
    # Live input, by the settings in charge, though the file is deployed; one transaction is left to the
    # promotion.
    sent(new, ("f", "gone"), ("g", "another long one"))
    assert [one.txn for one in pair.follow(new.attempt())] == [3]
    sent(new, ("c", "away"), ("h", "y"))
    broker.send(topic, [kv("i", "away")])
    offsets = new.committed()
    done = works.pair(begun).promote(new.attempt())
    assert (done.txn, done.generation) == (5, 1)
    assert new.committed() == offsets, "a promotion acknowledges nothing"
    expected = {"a": "x", "b": "gone", "f": "gone", "h": "y"}
    assert new.seen() == expected
    # What came while it was promoted is read by the new rules.
    new.run()
    assert new.seen() == expected
    assert {row["_key"] for row in open_errors(new.opened(), "t").collect()} == {'{"k":"g"}'}
    assert applied(new.opened(), copy) == expected
    assert verify_state((last := new.opened()).control, last.state(), TABLE) is not None
    assert {one.verdict for one in new.replayed()} == {Verdict.IDENTICAL}


def test_input_that_a_broker_has_removed_is_named_by_the_plan_and_refused_by_the_start(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    topic = broker.make("eaten", 2)
    route = {"column": "v", "equals": "x"}
    shards = [
        {"name": "t", **KV, "route": {"column": "v", "equals": "w"}},
        {"name": "u", **KV, "route": route},
    ]
    old = Rig(spark, tmp_path, broker, topic, shards=shards)
    for number, value in enumerate("wxx"):
        broker.send(topic, [kv(str(number), value)] * 2)
        old.run()
    broker.expire(topic, 0, 3)
    changed = [{**shard, "apply_as_deletes": "v = 'gone'"} for shard in shards]
    new = Rig(spark, tmp_path, broker, topic, shards=changed, generation=1)
    works = Generations(new.opened())
    found = plan(works.deployment)
    assert sorted(found.gone) == [1, 2]
    assert found.gone[1] == "offsets 0 to 1 of eaten-0 have expired: the partition begins at 3"
    assert "its input is gone for transaction 1" in found.shards["t"]
    assert "its input is gone for transaction 2" in found.shards["u"]
    with pytest.raises(
        InvalidUsage, match=r"input of transaction 1 is gone \(and that of 1 more\): offsets 0"
    ):
        works.start(reason="too late")
    assert works.candidate is None
    assert works.deployment.control.leases.head().upper == 1, "nothing is held"
    assert plan(works.deployment, from_now=True).refused == ()
    broker.configure(topic, cleanup_policy="compact")
    assert plan(works.deployment).caveat.startswith("topic 'eaten' is compacted")
