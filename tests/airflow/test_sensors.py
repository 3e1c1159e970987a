"""A wait outlives trouble that passes, and ends at once where waiting can't help."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred

from tidemark.airflow import assets
from tidemark.app.deployment import new_token
from tidemark.app.tasks import open_pipeline
from tidemark.core.binding import Owner
from tidemark.core.errors import Determinate, Indeterminate, InvalidUsage
from tidemark.core.ids import Txn
from tidemark.pipeline.context import Attempt
from tidemark.pipeline.decide import skip
from tidemark.pipeline.reclock import reclock

pytestmark = pytest.mark.airflow

PIPELINE_FILE = """
name: shop
source: {type: files, path: in, format: json, settle_seconds: 0}
warehouse: wh
shards:
  - {name: orders, schema: k STRING NOT NULL, keys: [k]}
"""


def looks(monkeypatch: pytest.MonkeyPatch, *found: int | Exception) -> list[int | Exception]:
    """What the looks at the shard find, one after the other; returns what is left."""
    left = list(found)

    def upper_of(*args: object) -> int:
        one = left.pop(0)
        if isinstance(one, Exception):
            raise one
        return one

    monkeypatch.setattr(assets, "upper_of", upper_of)
    return left


def fired(txn: int) -> Any:
    trigger = assets.ShardUpperTrigger(
        pipeline_file="p.yaml", environment=None, shard="orders", txn=txn, poke_seconds=0.0
    )

    async def first() -> Any:
        return (await anext(trigger.run())).payload

    return asyncio.run(first())


def test_the_trigger_looks_again_after_trouble_that_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    left = looks(monkeypatch, Determinate("the store does not answer"), 2, Indeterminate("lost reply"), 3)
    assert (fired(2), left) == ({"upper": 3}, [])


def test_the_trigger_ends_where_waiting_cannot_help(monkeypatch: pytest.MonkeyPatch) -> None:
    looks(monkeypatch, InvalidUsage("there is no shard 'orders'"))
    assert fired(2) == {"error": "there is no shard 'orders'"}


def test_the_sensor_waits_through_trouble_that_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    sensor = assets.ShardUpperSensor(task_id="wait", pipeline_file="p.yaml", shard="orders", txn=2)
    looks(monkeypatch, Determinate("the store does not answer"), Determinate("again"), InvalidUsage("no"))
    with pytest.raises(TaskDeferred):
        sensor.execute({})  # type: ignore[typeddict-item]
    assert not sensor.poke({})  # type: ignore[typeddict-item]
    with pytest.raises(AirflowFailException, match="no"):
        sensor.poke({})  # type: ignore[typeddict-item]


def test_regression_m11_a_transaction_that_does_not_touch_the_shard_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text('{"k": "a"}\n')
    file = tmp_path / "shop.yaml"
    file.write_text(PIPELINE_FILE)
    pipeline, attempt = open_pipeline(file, None).pipeline, Attempt(Owner("run"), new_token())
    reclock(pipeline, attempt)
    assert assets.upper_of(str(file), None, "orders") == 1
    skip(pipeline, attempt, Txn(1), reason="poisoned")
    assert assets.upper_of(str(file), None, "orders") == 2
