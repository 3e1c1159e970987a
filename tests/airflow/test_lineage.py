"""What Airflow shows of a pipeline besides its runs: assets with producers before the first run and events
for what is new alone, names and texts of DAGs and tasks, links from a task to what it was about."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import Asset

from tests.airflow.conftest import PIPELINE
from tests.cli.test_daily import Plane, Shop
from tidemark.airflow import display, health_dag, maintain_dag, pipeline_dags, replay_dag, shard_asset
from tidemark.airflow.display import DataDocsLink, SparkLink, TransactionLink, txns_of
from tidemark.app.tasks import checkpoint
from tidemark.core.binding import Owner
from tidemark.core.ids import WriterToken
from tidemark.pipeline.context import Attempt

pytestmark = pytest.mark.airflow


@pytest.fixture
def dags(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "one.yaml").write_text(PIPELINE.format(name="one"))
    made = {**pipeline_dags(tmp_path), **replay_dag(tmp_path), **maintain_dag(tmp_path)}
    return {**made, **health_dag(tmp_path)}


def test_every_dag_and_task_says_what_it_is_and_does(dags: dict[str, Any]) -> None:
    assert set(dags) == {"one", "replay", "maintain", "health"}
    for dag in dags.values():
        assert dag.doc_md
        assert dag.dag_display_name
        for task in dag.tasks:
            assert task.doc_md, (dag.dag_id, task.task_id)
            assert task.task_display_name
    shown = {task.task_id: task.task_display_name for task in dags["one"].tasks}
    assert shown == {
        "reclock": "Bind input",
        "ingest": "Stage",
        "validate": "Gate",
        "upsert": "Seal and publish",
        "checkpoint": "Checkpoint",
    }
    assert [dag.dag_display_name for dag in dags.values()][1:] == [
        "Replay transactions",
        "Maintain pipelines",
        "Health of pipelines",
    ]


def test_shards_and_quarantine_have_a_producer_before_the_first_run_and_none_is_emitted_for_that(
    dags: dict[str, Any],
) -> None:
    """Airflow emits every asset that is an outlet when its task has succeeded."""
    task = dags["one"].get_task("checkpoint")
    assert [one for one in task.outlets if isinstance(one, Asset)] == [
        shard_asset("one", "orders"),
        shard_asset("one", "quarantine"),
    ]
    mine = Asset("x-mine://report")
    task.outlets.append(mine)
    task.pre_execute({})
    assert [one for one in task.outlets if isinstance(one, Asset)] == [mine], (
        "what a user added is the user's"
    )
    assert len(task.outlets) == 2, "the alias that events go through"


def test_a_run_that_quarantines_records_tells_those_who_wait_for_that(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    for name, bad in (("1.json", 0), ("2.json", 3)):
        shop.land(name)
        shop.work(name, Plane(bad=bad))
        told, _ = checkpoint(shop.deployment, Attempt(Owner(name), WriterToken(f"c{name}")))
        assert set(told["shards"]) == ({"t", "quarantine"} if bad else {"t"})
    event, seals = told["shards"]["quarantine"], shop.deployment.control.seals
    assert (event["rows"], event["txn_to"]) == (3, 2)
    seals.head()
    (seal,) = seals.read(2, 3)
    assert event["link"] == f"{seal.link:016x}", "histories with the same numbers differ in it"


KEY = SimpleNamespace(dag_id="one", run_id="manual__2026-01-01T00:00:00+00:00")


@pytest.mark.parametrize(
    ("pipeline", "txns", "address"),
    [
        ("", [7], "/tidemark/transaction?dag_id=one&txn=7"),
        ("", [7, 7], "/tidemark/transaction?dag_id=one&txn=7"),
        ("", [], "/tidemark/run?dag_id=one&run_id=manual__2026-01-01T00%3A00%3A00%2B00%3A00"),
        ("", [7, 8], "/tidemark/run?dag_id=one&run_id=manual__2026-01-01T00%3A00%3A00%2B00%3A00"),
        ("shop", [], "/tidemark/pipeline?dag_id=shop"),
        ("shop", [3], "/tidemark/transaction?dag_id=shop&txn=3"),
        ("a&b", [], "/tidemark/pipeline?dag_id=a%26b"),
    ],
)
def test_a_task_leads_to_the_page_of_what_it_was_about(pipeline: str, txns: list[int], address: str) -> None:
    task: Any = SimpleNamespace(pipeline_shown=pipeline, txns_shown=txns)
    assert TransactionLink().get_link(task, ti_key=KEY).endswith(address)


def test_a_gate_leads_to_its_data_docs_and_a_spark_task_to_the_address_that_its_connection_has(
    dags: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = dags["one"].get_task("validate")
    assert DataDocsLink().get_link(gate, ti_key=KEY).endswith("/tidemark/docs/one/index.html")
    assert sorted(one.name for one in gate.operator_extra_links) == ["Data Docs", "Spark UI", "Tidemark"]
    for extra, address in (
        ({"ui": "http://spark:4040"}, "http://spark:4040"),
        ({"ui": "javascript:alert(1)"}, ""),
        ({}, ""),
    ):
        found = SimpleNamespace(extra_dejson=extra)
        monkeypatch.setattr(display.BaseHook, "get_connection", lambda name, found=found: found)
        assert SparkLink().get_link(gate, ti_key=KEY) == address


def test_the_transactions_of_a_step_are_those_that_it_tells_of() -> None:
    told: dict[str, Any] = {
        "owned": {"count": 0, "ranges": []},
        "open": [4],
        "staged": [{"txn": 5}],
        "replayed": [6],
        "gone": {"7": "x"},
    }
    told |= {"verdicts": [{"txn": 8}], "findings": [{"txn": 11}]}
    told |= {"sealed": {"count": 1, "ranges": [[9, 9]]}, "lost": {"count": 2, "ranges": [[10, 11]]}}
    assert [txns_of(step, told) for step in ("reclock", "ingest", "validate", "upsert", "replay")] == [
        [4],
        [5, 6, 7],
        [8],
        [9, 9, 10, 11],
        [11],
    ]
    assert txns_of("maintain", told) == []
