"""Invariant 19: what Airflow announces is what the journal says, also when a person overruled it.

The operators' own `execute`, on a warehouse in memory; a function stands where Spark would be."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from tests.airflow.test_operators import Bench, no_spark
from tests.support.memory.world import A, B, rec
from tidemark.airflow.operators import (
    CheckpointOperator,
    IngestOperator,
    ReclockOperator,
    UpsertOperator,
    ValidateOperator,
)
from tidemark.airflow.replay import ReplayOperator
from tidemark.app.job import perform
from tidemark.core.ids import Txn
from tidemark.core.ledger import Event
from tidemark.core.seal import Opinion
from tidemark.pipeline.decide import accept
from tidemark.pipeline.repair import repair

pytestmark = pytest.mark.airflow
STEPS = {"ingest": IngestOperator, "validate": ValidateOperator, "upsert": UpsertOperator}


class Events:
    """What a task has added to its outlets."""

    def __init__(self) -> None:
        self.extras: dict[str, dict[str, Any]] = {}

    def add(self, asset: Any, extra: dict[str, Any]) -> None:
        self.extras[asset.name] = extra


class Airflow(Bench):
    """The tasks of a run, with what a person does to them."""

    opinion = Opinion()

    def deployment(self) -> Any:
        deployment = super().deployment()
        gate = SimpleNamespace(opinion=lambda staged: self.opinion)
        object.__setattr__(deployment.pipeline, "gate", gate)
        deployment.shards = (A, B)
        return deployment

    def task(self, name: str, *, clear_number: int = 0, run_id: str = "r", succeeds: bool = True) -> Any:
        """One try of a task. Airflow calls back when it has taken in the task's success."""
        kinds = {"reclock": ReclockOperator, "checkpoint": CheckpointOperator, **STEPS}
        more = {"pipeline": "shop"} if name == "checkpoint" else {}
        operator = kinds[name](task_id=name, pipeline_file="shop.yaml", **more)
        self.job = lambda order: perform(name, self.deployment(), order) and None
        context = self.context(run_id, clear_number=clear_number)
        # Airflow lets a run that is cleared begin anew.
        context["dag_run"].start_date = datetime(2026, 1, 1 + clear_number, tzinfo=UTC)
        self.events = Events()
        context["outlet_events"] = defaultdict(lambda: self.events)
        told = operator.execute(context)
        if succeeds:
            for call in operator.on_success_callback:
                call({"ti": SimpleNamespace(task=operator)})
        return told

    def run(self, *, clear_number: int = 0, marked: tuple[str, ...] = ()) -> dict[str, dict[str, Any]]:
        """A whole run; those that are `marked` as success were red. Returns its events."""
        for name in ("reclock", "ingest", "validate", "upsert", "checkpoint"):
            if name not in marked:
                self.task(name, clear_number=clear_number)
                continue
            with pytest.raises(AirflowFailException):
                self.task(name, clear_number=clear_number)
            clear_number += 1  # Airflow clears what was not run for the task that failed.
        return self.events.extras

    def journal(self, event: Event) -> list[dict[str, str]]:
        return [dict(entry.detail) for entry in self.world.journal(event)]


@pytest.fixture
def airflow(monkeypatch: pytest.MonkeyPatch) -> Airflow:
    found = Airflow(monkeypatch)
    monkeypatch.setattr("tidemark.app.tasks.publish_due", lambda *args, **kwargs: {})
    found.world.feed(rec("k", 1))
    return found


def lose_the_part(airflow: Airflow) -> Any:
    (part,) = airflow.world.log()[0].parts
    return part.path, airflow.world.files.pop(part.path)


def test_the_first_run_announces_what_its_gate_said(airflow: Airflow) -> None:
    (event,) = airflow.run().values()
    assert (event["verdict"], event["overruled"], event["repaired"]) == ("identical", {}, [])
    assert [entry["gate"] for entry in airflow.journal(Event.ANNOUNCED)] == ["identical"]


def test_regression_a_gate_that_is_marked_as_success_is_announced_with_what_it_said(airflow: Airflow) -> None:
    airflow.run()
    lose_the_part(airflow)
    (event,) = airflow.run(clear_number=1, marked=("validate",)).values()
    assert event["verdict"] == "differs"
    assert event["overruled"] == {"1": "the validate task was marked as success by hand"}
    (entry,) = airflow.journal(Event.OVERRULED)
    assert (entry["gate"], entry["run"]) == ("differs", "r")
    assert [entry["gate"] for entry in airflow.journal(Event.ANNOUNCED)] == ["identical", "differs"]


def test_a_proof_that_never_came_to_a_verdict_and_is_marked_is_not_announced_as_proven(
    airflow: Airflow,
) -> None:
    airflow.run()
    for name, clear_number in (("reclock", 1), ("ingest", 1), ("upsert", 2), ("checkpoint", 2)):
        airflow.task(name, clear_number=clear_number)
    (event,) = airflow.events.extras.values()
    assert event["verdict"] == "not proven"
    assert event["overruled"] == {"1": "the run went on without a verdict"}
    assert [entry["gate"] for entry in airflow.journal(Event.OVERRULED)] == ["not proven"]


def test_regression_a_proof_that_changes_nothing_wakes_nobody(airflow: Airflow) -> None:
    assert airflow.run()
    assert airflow.run(clear_number=1) == {}
    assert airflow.run(clear_number=2) == {}
    told = airflow.task("checkpoint", clear_number=3)
    assert (airflow.events.extras, told["shards"], told["unchanged"]) == ({}, {}, [1])
    assert len(airflow.journal(Event.ANNOUNCED)) == 1


def test_a_checkpoint_whose_events_airflow_did_not_take_announces_them_again(airflow: Airflow) -> None:
    for name in ("reclock", "ingest", "validate", "upsert"):
        airflow.task(name)
    airflow.task("checkpoint", succeeds=False)
    assert airflow.events.extras
    assert airflow.run(clear_number=1), "nobody has been told, however often the run was cleared"
    assert airflow.run(clear_number=2) == {}


def test_an_overruling_is_on_record_once_however_often_the_checkpoint_is_tried(airflow: Airflow) -> None:
    airflow.run()
    lose_the_part(airflow)
    for name in ("reclock", "ingest"):
        airflow.task(name, clear_number=1)
    with pytest.raises(AirflowFailException):
        airflow.task("validate", clear_number=1)
    for succeeds in (False, False, True):
        airflow.task("checkpoint", clear_number=2, succeeds=succeeds)
    assert len(airflow.journal(Event.OVERRULED)) == 1
    airflow.task("checkpoint", clear_number=3)
    assert (airflow.events.extras, len(airflow.journal(Event.OVERRULED))) == ({}, 1)
    airflow.run(clear_number=4, marked=("validate",))
    assert len(airflow.journal(Event.OVERRULED)) == 2, "another verdict, overruled another time"


def test_a_changed_verdict_and_a_repair_are_announced(airflow: Airflow) -> None:
    airflow.run()
    lost = lose_the_part(airflow)
    airflow.run(clear_number=1, marked=("validate",))
    airflow.world.files[lost[0]] = lost[1]
    (event,) = airflow.run(clear_number=3).values()
    assert (event["verdict"], event["overruled"], event["repaired"]) == ("identical", {}, [])
    lose_the_part(airflow)
    repair(airflow.deployment().pipeline, airflow.world.attempt("repair"), Txn(1))
    (event,) = airflow.run(clear_number=4).values()
    assert (event["verdict"], event["repaired"]) == ("identical", [1])
    assert airflow.run(clear_number=5) == {}


def test_a_repair_by_the_replay_dag_is_announced_by_it_once(airflow: Airflow) -> None:
    airflow.run()
    lose_the_part(airflow)
    replay = ReplayOperator(task_id="replay", pipeline_files={"shop": "shop.yaml"})

    def events(mode: str) -> dict[str, dict[str, Any]]:
        airflow.job = lambda order: perform("replay", airflow.deployment(), order) and None
        context = airflow.context(
            "replay", pipeline="shop", txn_from=1, txn_to=None, mode=mode, dry_run=False
        )
        found = Events()
        context["outlet_events"] = defaultdict(lambda: found)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(replay, "without_spark", no_spark)
            replay.execute(context)
        for call in replay.on_success_callback:
            call({"ti": SimpleNamespace(task=replay)})
        return found.extras

    assert events("verify") == {}, "what is damaged still is"
    (event,) = events("repair").values()
    assert (event["verdict"], event["repaired"], event["run_id"]) == ("identical", [1], "replay")
    assert airflow.run(clear_number=1) == {}
    assert events("repair") == {}


def test_what_was_accepted_is_announced_with_what_the_gate_said_of_it(airflow: Airflow) -> None:
    airflow.opinion = Opinion(failed=("amount is negative",))
    airflow.task("reclock")
    airflow.task("ingest")
    with pytest.raises(AirflowFailException):
        airflow.task("validate")
    accept(airflow.deployment().pipeline, airflow.world.attempt("cli"), Txn(1), reason="a refund")
    airflow.task("upsert", clear_number=1)
    airflow.task("checkpoint", clear_number=1)
    (event,) = airflow.events.extras.values()
    assert event["verdict"] == "expectations not met"
    assert event["overruled"] == {"1": "accepted although expectations not met: a refund"}
    assert airflow.journal(Event.OVERRULED) == [], "the journal has the acceptance"


def test_another_runs_event_is_not_repeated_and_another_runs_verdict_overrules_nothing(
    airflow: Airflow,
) -> None:
    for name in ("reclock", "ingest", "validate"):
        airflow.task(name)
    airflow.world.feed(rec("k", 2))
    for name in ("reclock", "ingest", "validate", "upsert", "checkpoint"):
        airflow.task(name, run_id="s")
    assert [(one["txn_from"], one["txn_to"]) for one in airflow.events.extras.values()] == [(1, 2)]
    airflow.task("upsert")
    airflow.task("checkpoint")
    assert airflow.events.extras == {}
    lose_the_part(airflow)
    with pytest.raises(AirflowFailException):
        airflow.task("validate", clear_number=1)
    airflow.task("checkpoint", run_id="s")
    (event,) = airflow.events.extras.values()
    assert (event["txn_from"], event["verdict"], event["overruled"]) == (1, "differs", {})


@pytest.mark.parametrize("callbacks", ["on_failure_callback", "on_retry_callback"])
def test_the_log_of_a_task_that_fails_ends_with_the_reason_outside_of_a_folded_group(callbacks: str) -> None:
    said: list[str] = []
    validate = ValidateOperator(task_id="validate", pipeline_file="shop.yaml")
    log = SimpleNamespace(info=said.append, error=lambda text, *values: said.append(text % values))
    context = {
        "ti": SimpleNamespace(task=SimpleNamespace(log=log)),
        "exception": ValueError("the gate is red"),
    }
    for call in getattr(validate, callbacks):
        call(context)
    assert said == ["::endgroup::", "the gate is red"]
    for call in getattr(validate, callbacks):
        call({**context, "exception": None})
    assert len(said) == 2


def test_what_is_not_sealed_cant_be_marked_into_a_table(airflow: Airflow) -> None:
    airflow.opinion = Opinion(failed=("amount is negative",))
    airflow.task("reclock")
    airflow.task("ingest")
    with pytest.raises(AirflowFailException):
        airflow.task("validate")
    with pytest.raises(AirflowFailException, match="does not meet its expectations"):
        airflow.task("upsert", clear_number=1)
    assert airflow.task("checkpoint", clear_number=2)["shards"] == {}
    assert (airflow.events.extras, airflow.world.log()) == ({}, [])
    assert airflow.journal(Event.ANNOUNCED) == []
