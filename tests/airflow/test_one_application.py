"""A run by submit starts one Spark application: ingest measures all rows, and the gate needs no Spark."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from airflow.sdk.exceptions import AirflowFailException

from tests.support.memory.plane import MemoryPlane
from tests.support.memory.world import World, rec
from tidemark.airflow.operators import IngestOperator, ReclockOperator, UpsertOperator, ValidateOperator
from tidemark.airflow.steps import SparkStepOperator
from tidemark.app.job import Order, perform
from tidemark.app.tasks import SparkNeeded
from tidemark.core.binding import Configuration
from tidemark.core.ids import WriterToken
from tidemark.core.ledger import Event
from tidemark.core.seal import Opinion, Staged
from tidemark.pipeline.context import Pipeline

pytestmark = pytest.mark.airflow

STEPS = {
    "reclock": ReclockOperator,
    "ingest": IngestOperator,
    "validate": ValidateOperator,
    "upsert": UpsertOperator,
}


def needed(*args: object, **kwargs: object) -> NoReturn:
    raise SparkNeeded


class WorkerPlane(MemoryPlane):
    """The data plane of a worker, which has no Spark: it finds and removes files, and reads no rows."""

    stage = read_back = replay = needed


class Strict:
    """Expectations that fail, and count how often they are asked."""

    def __init__(self) -> None:
        self.asked = 0

    def opinion(self, staged: Staged) -> Opinion:
        self.asked += 1
        return Opinion(failed=("amount is negative",))


class Cluster:
    """A pipeline in memory; the tasks of a run on it, and the applications that they submit."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world = World()
        self.submitted: list[str] = []
        self.configuration = Configuration.of("{}")
        self.gate: Any = None
        monkeypatch.setattr(
            "tidemark.app.tasks.open_pipeline", lambda *args, **kwargs: self.opened(spark=False)
        )
        for user in ("steps", "operators"):
            monkeypatch.setattr(f"tidemark.airflow.{user}.provide_connection", lambda *args: None)
        monkeypatch.setattr("tidemark.app.tasks.publish_due", lambda *args, **kwargs: {})
        monkeypatch.setattr(SparkStepOperator, "connects", False)
        monkeypatch.setattr(SparkStepOperator, "submit", lambda task, _, order: self.submit(task.step, order))

    def submit(self, step: str, order: Order) -> None:
        self.submitted.append(step)
        perform(step, self.opened(spark=True), order)

    def opened(self, *, spark: bool) -> Any:
        pipeline: Pipeline = self.world.process(configuration=self.configuration)
        if self.gate is not None:
            pipeline = replace(pipeline, gate=self.gate)
        if not spark:
            pipeline = replace(pipeline, plane=WorkerPlane(self.world.source, self.world.files))
        return SimpleNamespace(
            pipeline=pipeline,
            control=pipeline.control,
            config=SimpleNamespace(name="shop"),
            shards=(),
            up_to_date=lambda work: work(),
            proposal="",
            confirm=lambda pairs: None,
        )

    def run(self, *steps: str, clear_number: int = 0) -> list[str]:
        """Do the tasks of a run; the applications that they have submitted."""
        self.submitted.clear()
        run = SimpleNamespace(run_id="r", logical_date=None, clear_number=clear_number, start_date=None)
        for step in steps or STEPS:
            operator = STEPS[step](task_id=step, pipeline_file="shop.yaml")
            operator.execute({"dag_run": run, "params": {}})  # type: ignore[typeddict-item]
        return list(self.submitted)

    def verdicts(self, event: Event) -> list[str]:
        return [entry.detail["verdict"] for entry in self.world.journal(event)]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    cluster = Cluster(monkeypatch)
    cluster.world.feed(rec("k", 1))
    return cluster


def test_a_run_its_proof_and_their_retries_start_one_application_each(cluster: Cluster) -> None:
    assert cluster.run() == ["ingest"]
    assert cluster.world.log_txns() == [1]
    assert cluster.run() == [], "a retry finds all of it done"
    assert cluster.run(clear_number=1) == ["ingest"]
    assert cluster.run("validate", clear_number=1) == [], "a retry of the gate judges by what was measured"
    assert cluster.verdicts(Event.VERIFIED) == ["identical", "identical"]


def test_a_gate_that_is_cleared_alone_measures_again(cluster: Cluster) -> None:
    """Invariant 15: a clear asks for a new look, at parts that may have changed since."""
    cluster.run("reclock", "ingest", "validate")
    (path,) = cluster.world.files
    rows = cluster.world.files[path]
    cluster.world.files[path] = tuple(replace(row, value="tampered") for row in rows)
    with pytest.raises(AirflowFailException, match="the gate is red: transaction 1: differs"):
        cluster.run("validate", clear_number=1)
    assert cluster.submitted == ["validate"]
    cluster.world.files[path] = rows
    assert cluster.run("validate", "upsert", clear_number=2) == ["validate"]
    assert cluster.world.log_txns() == [1]


def test_expectations_that_were_changed_since_they_were_asked_are_asked_again(cluster: Cluster) -> None:
    cluster.run("reclock", "ingest")
    cluster.gate, cluster.configuration = Strict(), Configuration.of('{"generation": 0}')
    with pytest.raises(AirflowFailException, match="amount is negative"):
        cluster.run("validate")
    assert cluster.submitted == ["validate"]
    cluster.configuration = Configuration.of("{}")
    assert cluster.run("validate") == [], "as they were when they were asked"


def test_the_suite_is_asked_once_by_the_application_that_has_staged(cluster: Cluster) -> None:
    cluster.gate = Strict()
    assert cluster.run("reclock", "ingest") == ["ingest"]
    with pytest.raises(AirflowFailException, match="amount is negative"):
        cluster.run("validate")
    assert (cluster.gate.asked, cluster.submitted) == (1, [])
    assert cluster.verdicts(Event.JUDGED) == ["identical"], "what fails is the suite, and nothing is sealed"
    assert cluster.world.seals == []


def test_parts_that_are_not_what_was_written_are_found_by_the_read_back_and_judged_red(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = MemoryPlane.stage

    def torn(plane: MemoryPlane, binding: Any, token: WriterToken) -> Staged:
        staged = stage(plane, binding, token)
        (path,) = cluster.world.files
        rows = cluster.world.files[path]
        cluster.world.files[path] = tuple(replace(row, value="torn") for row in rows)
        return staged

    monkeypatch.setattr(MemoryPlane, "stage", torn)
    cluster.gate = Strict()
    assert cluster.run("reclock", "ingest") == ["ingest"]
    with pytest.raises(AirflowFailException, match="the gate is red: transaction 1: differs"):
        cluster.run("validate")
    assert (cluster.submitted, cluster.gate.asked) == ([], 0), "what was not written needs no opinion"
