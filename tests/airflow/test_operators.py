"""The operators by themselves: what they make of a job that has ended, and what they never call proven.

The warehouse is one in memory, and a function stands where Spark would be."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from airflow.providers.apache.spark.hooks.spark_submit import _mask_sensitive_values
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from tests.support.memory.world import World, rec
from tidemark.airflow.operators import (
    IngestOperator,
    ReclockOperator,
    UpsertOperator,
    ValidateOperator,
)
from tidemark.airflow.replay import ReplayOperator, ReplayReportOperator
from tidemark.airflow.steps import SparkStepOperator
from tidemark.app.job import Order, error_line, failure_in, perform
from tidemark.app.tasks import SparkNeeded
from tidemark.core.errors import InvalidUsage
from tidemark.pipeline.run import run

pytestmark = pytest.mark.airflow

Job = Callable[[Order], None]


class Bench:
    """A pipeline in memory, the steps of a run on it, and whatever job they submit."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world = World()
        self.job: Job = lambda order: None
        monkeypatch.setattr("tidemark.app.tasks.open_pipeline", lambda *args, **kwargs: self.deployment())
        for user in ("steps", "operators"):
            monkeypatch.setattr(f"tidemark.airflow.{user}.provide_connection", lambda *args: None)
        monkeypatch.setattr(SparkStepOperator, "connects", False)
        monkeypatch.setattr(SparkStepOperator, "submit", lambda _, context, order: self.job(order))

    def deployment(self) -> Any:
        pipeline = self.world.process()
        config = SimpleNamespace(name="shop")
        return SimpleNamespace(
            pipeline=pipeline,
            control=pipeline.control,
            plane=lambda: SimpleNamespace(sample=lambda *given, **more: ()),
            config=config,
            shards=(),
            up_to_date=lambda work: work(),
            proposal="",
            confirm=lambda pairs: None,
            setting_aside=lambda: None,
        )

    def context(self, run_id: str = "r", *, clear_number: int = 0, **params: Any) -> Any:
        run = SimpleNamespace(run_id=run_id, logical_date=None, clear_number=clear_number, start_date=None)
        return {"dag_run": run, "params": params}


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch)


def a_finished_run(bench: Bench) -> None:
    bench.world.feed(rec("k", 1))
    run(bench.world.process(), bench.world.attempt("r"))


def test_a_proof_that_a_job_did_not_make_is_not_green(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    a_finished_run(bench)
    validate = ValidateOperator(task_id="validate", pipeline_file="shop.yaml")
    monkeypatch.setattr(validate, "without_spark", no_spark)
    with pytest.raises(AirflowException, match="this attempt left no verdict on transactions 1"):
        validate.execute(bench.context(clear_number=1))

    def other(order: Order) -> None:
        """The driver of an earlier try, which judges under its own token."""
        perform("validate", bench.deployment(), Order("shop.yaml", "r", "another", cleared=True, round=1))

    bench.job = other
    with pytest.raises(AirflowException, match="no verdict"):
        validate.execute(bench.context(clear_number=1))
    bench.job = lambda order: perform("validate", bench.deployment(), order) and None
    (told,) = validate.execute(bench.context(clear_number=1))["verdicts"]
    assert (told["txn"], told["verdict"], told["replayed"]) == (1, "identical", True)


def test_regression_a_red_gate_names_the_environment_that_it_is_red_in(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_finished_run(bench)
    (part,) = bench.world.log()[0].parts
    del bench.world.files[part.path]
    bench.job = lambda order: perform("validate", bench.deployment(), order) and None
    repair = "tidemark replay /shop.yaml --from 1 --to 1 --mode repair -e"
    validate = ValidateOperator(task_id="validate", pipeline_file="/shop.yaml", environment="prod")
    with pytest.raises(AirflowFailException, match=f"{repair} prod"):
        validate.execute(bench.context(clear_number=1))
    monkeypatch.setenv("TIDEMARK_ENVIRONMENT", "lab")
    validate.environment = None
    with pytest.raises(AirflowFailException, match=f"{repair} lab"):
        validate.execute(bench.context(clear_number=2))


def test_every_try_submits_a_driver_of_its_own() -> None:
    assert not ValidateOperator(task_id="validate", pipeline_file="shop.yaml", durable=True).durable


def no_spark(*args: object) -> NoReturn:
    raise SparkNeeded


def test_a_replay_that_judged_too_little_is_not_green(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    for value in (1, 2):
        bench.world.commit(rec("k", value))
    replay = ReplayOperator(task_id="replay", pipeline_files={"shop": "shop.yaml"})
    monkeypatch.setattr(replay, "without_spark", no_spark)
    context = bench.context(pipeline="shop", txn_from=1, txn_to=None, mode="verify", dry_run=False)
    with pytest.raises(AirflowException, match="no verdict on transactions 1, 2"):
        replay.execute(context)


def test_a_report_on_nothing_is_red() -> None:
    report = ReplayReportOperator(task_id="report", report={"findings": [], "restored": []})
    with pytest.raises(AirflowFailException, match="nothing was proven"):
        report.execute({})  # type: ignore[typeddict-item]


def test_a_killed_task_ends_what_was_submitted_as_the_provider_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a cluster the process here has ended long ago, and the driver is killed over its own API."""
    ended: list[str] = []
    monkeypatch.setattr(SparkSubmitOperator, "on_kill", lambda self: ended.append(self.task_id))
    ingest = IngestOperator(task_id="ingest", pipeline_file="shop.yaml")
    ingest.on_kill()
    assert ended == [], "nothing was submitted"
    ingest._hook = SimpleNamespace()
    ingest.on_kill()
    assert ended == ["ingest"]


def test_a_killed_task_interrupts_its_work_on_a_warm_server() -> None:
    ended: list[str] = []
    ingest = IngestOperator(task_id="ingest", pipeline_file="shop.yaml")
    ingest._connected = SimpleNamespace(
        interruptAll=lambda: ended.append("interrupted"), stop=lambda: ended.append("stopped")
    )
    ingest.on_kill()
    assert ended == ["interrupted", "stopped"]


def test_a_job_that_was_overtaken_is_retried(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    upsert = UpsertOperator(task_id="upsert", pipeline_file="shop.yaml")
    monkeypatch.setattr(upsert, "without_spark", no_spark)
    with pytest.raises(AirflowException, match="upsert has ended, and work is left for it: retry") as error:
        upsert.execute(bench.context())
    assert not isinstance(error.value, AirflowFailException)


def test_regression_a_cleared_run_that_never_bound_anything_asks_for_the_sources_tables(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []

    def opened(*args: object, binds: bool = False) -> Any:
        asked.append(binds)
        return bench.deployment()

    monkeypatch.setattr("tidemark.app.tasks.open_pipeline", opened)
    bench.world.feed(rec("k", 1))
    reclock = ReclockOperator(task_id="reclock", pipeline_file="shop.yaml")
    assert reclock.execute(bench.context(clear_number=1))["owned"]["ranges"] == [[1, 1]]
    assert asked[-1], "its first reclock has failed, and nothing is bound"
    assert reclock.execute(bench.context(clear_number=2))["owned"]["ranges"] == [[1, 1]]
    assert not asked[-1], "what is bound is proven, and needs no source"
    reclock.execute(bench.context("other"))
    assert asked[-1]


def test_regression_a_failure_that_speaks_of_a_password_is_told_in_full() -> None:
    """The provider hides the word after it, which may be the end of what we say."""
    error = InvalidUsage("the column password_hash is not declared", hint="name the secret column")
    line = _mask_sensitive_values(f"{error_line(error)}\n")
    assert failure_in(line) == {"message": str(error), "retry": False}


def test_an_order_names_the_run_and_when_it_began(bench: Bench) -> None:
    context = bench.context("scheduled__1", clear_number=2)
    context["dag_run"].start_date = datetime(2026, 1, 2, tzinfo=UTC)
    owner = IngestOperator(task_id="ingest", pipeline_file="shop.yaml").order(context).attempt.owner
    assert (owner.run_id, owner.begun) == ("scheduled__1", "2026-01-02T00:00:00+00:00")
