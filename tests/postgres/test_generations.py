"""Generations of a database's pipeline: the captured files are the candidate's input, and its lease keeps
them. A column that the table gets meanwhile is named, and does not keep the candidate from its promotion."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support.postgres_pipeline import ITEMS, ITEMS_SCHEMA, Rig, attempt
from tidemark.app.consume import Consumer
from tidemark.app.deployment import Deployment, new_token
from tidemark.app.generation import Generations
from tidemark.app.generation_plan import plan
from tidemark.app.maintenance import Terms, maintain
from tidemark.app.publish import run_and_publish
from tidemark.app.views import open_errors
from tidemark.core.errors import InvalidUsage
from tidemark.core.ids import ShardId, Txn
from tidemark.pipeline.publish import verify_state

pytestmark = [pytest.mark.server, pytest.mark.spark]
MakeRig = Callable[..., Rig]
LATE = Terms(10**15, Txn(99), Txn(99), 0)
"""Maintenance long after everything."""
CHEAP = {
    "type": "expect_column_values_to_be_between",
    "kwargs": {"column": "price", "max_value": 10},
    "action": "quarantine",
}


def shard(schema: str = ITEMS_SCHEMA, *expectations: dict[str, Any]) -> dict[str, Any]:
    route = {"table": "public.items"}
    return {"name": "items", "schema": schema, "keys": ["id"], "route": route, "expectations": expectations}


def applied(deployment: Deployment, copy: dict[int, str]) -> dict[int, str]:
    """What a consumer's table has after the batches that it has not had yet."""
    with Consumer(deployment, "items", "copy") as consumer:
        for batch in consumer.listen():
            for row in sorted(batch.frame.collect(), key=lambda row: int(row["_txn"])):
                copy.pop(row["id"], None)
                if row["_op"] == "U":
                    copy[row["id"]] = row["name"]
    return copy


def test_captured_files_are_kept_for_a_candidate_while_the_table_gets_a_column(
    rig: MakeRig, spark: SparkSession
) -> None:
    works = rig(spark, items=(ITEMS_SCHEMA, ["id"]))
    works.ready(ITEMS, "INSERT INTO items VALUES (1, 'pen', 2), (2, 'car', 20)")
    captured = works.root / "wh" / "p" / "_captured"

    def run(*statements: str, **settings: Any) -> None:
        works.transaction(*statements)
        run_and_publish(works.begun(**settings), attempt())

    old, new = {"shards": [shard()]}, {"shards": [shard(ITEMS_SCHEMA, CHEAP)], "generation": 1}
    wider = {"shards": [shard(f"{ITEMS_SCHEMA}, note STRING", CHEAP)], "generation": 1}
    run(**old)
    run("UPDATE items SET price = 30 WHERE id = 1", "INSERT INTO items VALUES (3, 'ink', 3)", **old)
    copy = applied(works.begun(**old), {})
    assert sorted(copy) == [1, 2, 3]
    keyed = {"shards": [{**shard(), "keys": ["name"]}], "generation": 1}
    (refused,) = plan(works.begun(**keyed)).refused
    assert "captured changes have the keys that they were captured with" in refused
    generations = Generations(works.begun(**new))
    pair = generations.pair(generations.start(reason="nothing dear"))
    assert [one.txn for one in pair.follow(attempt(), transactions_max=1)] == [1]

    # The pipeline goes on and is maintained, until its table has a column that it does not know.
    run("INSERT INTO items VALUES (4, 'cup', 4)", "DELETE FROM items WHERE id = 3", **new)
    files = sorted(path.name for path in captured.iterdir())
    assert maintain(works.begun(**new), new_token(), LATE, watch=False).since == 1
    assert sorted(path.name for path in captured.iterdir()) == files, "the candidate's lease keeps them"
    with pytest.raises(InvalidUsage, match="column 'note' is not declared"):
        run("ALTER TABLE items ADD note text", "INSERT INTO items VALUES (5, 'hat', 5, 'n')", **new)

    generations = Generations(works.begun(**new))
    promoted = generations.pair(generations.required()).promote(attempt())
    assert (promoted.txn, promoted.generation) == (4, 1)
    assert works.rows("items", **new) == [(1, "pen", Decimal("2.00")), (4, "cup", Decimal("4.00"))]
    run("UPDATE items SET price = 5, note = 'm' WHERE id = 2", **wider)
    expected = [
        (1, "pen", Decimal("2.00"), None), (2, "car", Decimal("5.00"), "m"),
        (4, "cup", Decimal("4.00"), None), (5, "hat", Decimal("5.00"), "n"),
    ]  # fmt: skip
    assert works.rows("items", **wider) == expected
    last = works.begun(**wider)
    assert verify_state(last.control, last.state(), ShardId("items")) is not None
    assert {row["_key"] for row in open_errors(last, "items").collect()} == {'{"id":1}'}
    assert applied(last, copy) == {1: "pen", 2: "car", 4: "cup", 5: "hat"}

    # Nothing keeps the input any more, so no later candidate can read it.
    assert maintain(works.begun(**wider), new_token(), LATE, watch=False).since > 1
    later = {**wider, "generation": 2}
    found = plan(works.begun(**later))
    assert 1 in found.gone
    assert "its input is gone for transaction" in found.shards["items"]
    with pytest.raises(InvalidUsage, match="the input of transaction 1 is gone"):
        Generations(works.begun(**later)).start(reason="too late")
