"""Several shards read at one transaction while others write: a pair that one transaction wrote is never seen
torn, in the states, in the fresh view or in the logs. Invariant 15."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Mapping
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.support.attempts import ingest, validate
from tests.support.deployed import attempt
from tidemark.app import views
from tidemark.app.consume import leases_of
from tidemark.app.deployment import Deployment
from tidemark.app.publish import publish_due
from tidemark.app.views import View, read, read_together
from tidemark.config import PipelineConfig
from tidemark.core.errors import InvalidUsage
from tidemark.core.ids import ShardId, Txn
from tidemark.pipeline.checkpoint import checkpoint
from tidemark.pipeline.publish import publish
from tidemark.pipeline.reclock import reclock
from tidemark.pipeline.run import run
from tidemark.pipeline.upsert import bring_up_log, commit_staged

pytestmark = pytest.mark.spark

ORDERS, ITEMS = ShardId("orders"), ShardId("items")
TXNS = 4
WAIT_SECONDS_MAX = 240


def opened(spark: SparkSession, root: Path) -> Deployment:
    """Orders and their items in one stream; each of both is published at times of its own."""
    (root / "in").mkdir(exist_ok=True)
    tables = [
        {"name": "orders", "schema": "id BIGINT, txn BIGINT", "keys": ["id"]},
        {
            "name": "items",
            "schema": "id BIGINT, order_id BIGINT, txn BIGINT",
            "keys": ["id"],
            "publish": {"every_transactions": 2},
        },
    ]
    settings = {
        "name": "shop",
        "source": {"type": "files", "path": "in", "format": "json", "settle_seconds": 0},
        "warehouse": "wh",
        "shards": [{**table, "route": {"column": "table", "equals": table["name"]}} for table in tables],
    }
    return Deployment(PipelineConfig.model_validate(settings).at(root), lambda: spark)


def arrive(root: Path, txn: int) -> None:
    """What one source transaction writes: a new order with its two items, and a change of the first order
    and of its first item."""
    rows = [
        {"table": "orders", "id": txn, "txn": txn},
        {"table": "items", "id": 2 * txn, "order_id": txn, "txn": txn},
        {"table": "items", "id": 2 * txn + 1, "order_id": txn, "txn": txn},
        {"table": "orders", "id": 1, "txn": txn},
        {"table": "items", "id": 2, "order_id": 1, "txn": txn},
    ]
    file = root / "in" / f"{txn:03}.json"
    whole = file.with_suffix(".part")
    whole.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    whole.rename(file)


def tables_at(txn: int) -> tuple[set[Any], set[Any]]:
    """Orders as (id, txn) and items as (id, order, txn) after so many transactions, by hand."""
    orders = {(number, txn if number == 1 else number) for number in range(1, txn + 1)}
    items = {(2 * n + at, n, txn if (n, at) == (1, 0) else n) for n in range(1, txn + 1) for at in (0, 1)}
    return orders, items


def logs_at(txn: int) -> tuple[set[Any], set[Any]]:
    """The same in the logs, where every change is, with the transaction that it belongs to."""
    orders = {(number, txn_, txn_) for txn_ in range(1, txn + 1) for number in {1, txn_}}
    items = {
        (number, number // 2, txn_, txn_)
        for txn_ in range(1, txn + 1)
        for number in {2, 2 * txn_, 2 * txn_ + 1}
    }
    return orders, items


def rows_of(frames: Mapping[str, DataFrame], *more: str) -> tuple[set[Any], set[Any]]:
    """What is in both, as sets, read by one job; nothing may be there twice."""
    orders = frames[ORDERS].selectExpr("0 AS n", "id", "null AS order_id", "txn", *more)
    items = frames[ITEMS].selectExpr("1 AS n", "id", "order_id", "txn", *more)
    found = orders.unionAll(items).collect()
    assert len(set(found)) == len(found)
    sets = [{tuple(row)[1:] for row in found if row["n"] == n} for n in (0, 1)]
    return {(id_, *rest) for id_, _, *rest in sets[0]}, sets[1]


def check(works: Deployment, view: View, as_of: int | None = None) -> int:
    """Read both shards, compare them with what the source wrote, and tell as of which transaction."""
    found = read_together(works, view=view, as_of=as_of)
    if view is View.LOG:
        assert rows_of(found.rows, "_txn") == logs_at(found.txn)
    else:
        assert rows_of(found.rows) == tables_at(found.txn)
    return found.txn


def publish_of(works: Deployment, shard: ShardId) -> None:
    publish(works.control, works.state(), shard, token=attempt().token)


def test_a_transaction_that_is_in_one_log_only_is_in_no_read_of_both(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    works = opened(spark, tmp_path)
    assert [check(works, view) for view in View] == [0, 0, 0]
    arrive(tmp_path, 1)
    run(works.pipeline, attempt())
    publish_of(works, ORDERS)  # The state of the orders is at 1, that of the items nowhere.
    arrive(tmp_path, 2)
    ours = attempt()
    (txn,) = reclock(works.pipeline, ours).finish
    staged: Any = ingest(works.pipeline, ours, txn)
    commit_staged(works.pipeline, ours, staged, validate(works.pipeline, staged))
    bring_up_log(works.pipeline, ORDERS)
    reader = opened(spark, tmp_path)
    assert [check(reader, view) for view in View] == [0, 1, 1]
    with pytest.raises(InvalidUsage, match="can't be read together as of transaction 2") as refused:
        read_together(reader, as_of=2)
    assert refused.value.hint == "all of them have 0 to 1"
    publish_of(works, ITEMS)  # At 1, for more is not in its log; then the orders go on to 2.
    publish_of(works, ORDERS)
    assert check(reader, View.STATE) == 1
    bring_up_log(works.pipeline, ITEMS)
    checkpoint(works.pipeline)
    assert [check(reader, view) for view in View] == [1, 2, 2]
    assert read_together(reader, ["orders"], view=View.STATE).txn == 2

    def read_slowly(*args: Any, **kwargs: Any) -> DataFrame:
        """Maintenance comes by after each shard."""
        frame = read(*args, **kwargs)
        leases_of(works).announce(consumers={}, window=Txn(2))
        return frame

    monkeypatch.setattr(views, "read", read_slowly)
    logs = read_together(reader, view=View.LOG).rows
    orders, items = logs_at(2)
    assert rows_of(logs, "_txn") == tuple({row for row in rows if row[-1] == 2} for rows in (orders, items))


def test_a_reader_never_sees_a_pair_torn_while_transactions_flow(spark: SparkSession, tmp_path: Path) -> None:
    failed: list[BaseException] = []
    written = threading.Event()
    begun: list[float] = [0]
    begins = threading.Condition()
    works = opened(spark, tmp_path)

    def write() -> None:
        try:
            for txn in range(1, TXNS + 1):
                # One read of each view lies between two transactions, and one more goes on beside the next,
                # however slow they are; all else is chance.
                with begins:
                    wanted = begun[0] + len(View) + 1
                    assert begins.wait_for(lambda: begun[0] >= wanted, WAIT_SECONDS_MAX)  # noqa: B023
                arrive(tmp_path, txn)
                ours = attempt()
                run(works.pipeline, ours)
                publish_due(works, ours)
        except BaseException as error:
            failed.append(error)
        finally:
            written.set()

    writer = threading.Thread(target=write)
    reader = opened(spark, tmp_path)
    seen: dict[View, set[int]] = {view: set() for view in View}
    writer.start()
    try:
        for view in cycle(View):
            if written.is_set():
                break
            with begins:
                begun[0] += 1
                begins.notify()
            seen[view].add(check(reader, view))
    finally:
        with begins:
            begun[0] = math.inf
            begins.notify()
        writer.join(WAIT_SECONDS_MAX)
    assert not writer.is_alive()
    assert not failed
    # It was between the writes that it read.
    assert all(any(0 < txn < TXNS for txn in seen[view]) for view in View), seen
    assert [check(reader, view) for view in View] == [TXNS, TXNS, TXNS]
