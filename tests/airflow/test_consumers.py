"""Functions that read a shard as tasks of a DAG: what they may be given, and how."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG, task

from tidemark.airflow import shard_task
from tidemark.airflow.assets import ShardConsumerOperator

pytestmark = pytest.mark.airflow

HOW = {"pipeline_file": "shop.yaml", "shard": "orders", "consumer": "billing"}


def test_regression_arguments_by_place_reach_the_function_and_bring_their_tasks() -> None:
    called: list[tuple[Any, ...]] = []

    @task
    def rate() -> float:
        return 0.2

    @shard_task(**HOW)
    def bill(batch: Any, rate: float, currency: str = "EUR", *, note: str = "") -> None:
        called.append((batch, rate, currency, note))

    with DAG("billing", schedule=None) as dag:
        bill(0.1, "SEK", note="first")
        bill(rate())
    plain, waiting = dag.get_task("bill"), dag.get_task("bill__1")
    assert isinstance(plain, ShardConsumerOperator)
    plain._call(SimpleNamespace(lower=1, txn=2, skipped={}))
    assert [one[1:] for one in called] == [(0.1, "SEK", "first")]
    assert waiting.upstream_task_ids == {"rate"}
    assert list(waiting.op_kwargs) == ["rate"]


def test_arguments_that_do_not_fit_the_function_are_refused_when_the_dag_is_made() -> None:
    @shard_task(**HOW)
    def bill(batch: Any, rate: float) -> None: ...

    @shard_task(**HOW)
    def every(batch: Any, *rates: float) -> None: ...

    @shard_task(**HOW)
    def first(batch: Any, rate: float, /) -> None: ...

    with DAG("billing", schedule=None):
        with pytest.raises(TypeError, match="too many positional arguments"):
            bill(0.1, 0.2)
        with pytest.raises(TypeError, match="multiple values for argument 'rate'"):
            bill(0.1, rate=0.2)
        with pytest.raises(TypeError, match="missing a required argument: 'rate'"):
            bill()
        with pytest.raises(TypeError, match="every can't be given 'rates' by name"):
            every(0.1)
        with pytest.raises(TypeError, match="first can't be given 'batch' by name"):
            first(0.1)


@pytest.mark.parametrize(
    ("is_new", "needs_snapshot", "wanted"),
    [
        (True, False, ["snapshot", "change"]),
        (False, True, ["snapshot", "change"]),
        (False, False, ["change"]),
    ],
)
def test_a_snapshot_comes_first_for_a_new_consumer_and_for_one_that_agrees_to_a_replacement(
    is_new: bool, needs_snapshot: bool, wanted: list[str]
) -> None:
    def batch(what: str) -> SimpleNamespace:
        return SimpleNamespace(what=what, lower=1, txn=2, skipped={})

    reader: Any = SimpleNamespace(
        frontier=3,
        is_new=is_new,
        needs_snapshot=needs_snapshot,
        snapshot=lambda: batch("snapshot"),
        listen=lambda: [batch("change")],
    )
    taken: list[str] = []

    def copy(batch: Any) -> None:
        taken.append(batch.what)

    made = ShardConsumerOperator(task_id="copy", python_callable=copy, snapshot=True, **HOW)
    assert made._deliver(reader)["batches"] == len(wanted)
    assert taken == wanted
