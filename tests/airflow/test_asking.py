"""A red gate that asks a person: what may be chosen, what becomes of the answer, and what never does.

The operators' own methods, on a warehouse in memory; a function stands where Spark would be."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, TaskAwaitingInput

from tests.airflow.test_operators import no_spark
from tests.airflow.test_truth import Airflow, airflow  # noqa: F401
from tests.support.memory.world import World, rec
from tidemark.airflow.operators import UpsertOperator, ValidateOperator, options_of
from tidemark.app.job import perform
from tidemark.config import load_pipeline
from tidemark.core.ids import Txn
from tidemark.core.ledger import Event
from tidemark.core.replay import Finding, Verdict
from tidemark.core.seal import Opinion
from tidemark.pipeline.decide import skip
from tidemark.pipeline.validate import Gated, Judged

pytestmark = pytest.mark.airflow
ANN = {"id": "7", "name": "ann"}


class Desk:
    """The validate task of a run that asks, and the person who answers."""

    def __init__(self, airflow: Airflow, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
        self.airflow = airflow
        self.questions: list[dict[str, Any]] = []
        send = "airflow.sdk.execution_time.hitl.upsert_hitl_detail"
        monkeypatch.setattr(send, lambda **question: self.questions.append(question))

    def context(self, clear_number: int = 0) -> Any:
        found = self.airflow.context("r", clear_number=clear_number)
        found["ti"] = SimpleNamespace(id="ti-1")
        return found

    def judge(self, **opinion: Any) -> TaskAwaitingInput:
        """Come to a red gate, and wait."""
        self.airflow.opinion = Opinion(**opinion)
        self.airflow.task("reclock")
        self.airflow.task("ingest")
        self.airflow.job = lambda order: perform("validate", self.airflow.deployment(), order) and None
        with pytest.raises(TaskAwaitingInput) as waiting:
            self.task().execute(self.context())
        return waiting.value

    def task(self) -> ValidateOperator:
        return ValidateOperator(task_id="validate", pipeline_file="shop.yaml", on_red="ask")

    def answer(self, waiting: TaskAwaitingInput, choice: str, reason: str = "a refund", **event: Any) -> Any:
        told = {"chosen_options": [choice], "params_input": {"reason": reason}, "responded_by_user": ANN}
        assert waiting.kwargs is not None
        method = getattr(self.task(), waiting.method_name)
        return method(self.context(), event={**told, **event}, **waiting.kwargs)

    @property
    def decisions(self) -> list[tuple[int, str]]:
        return [(seal.txn, str(seal.decision)) for seal in self.airflow.world.seals]


@pytest.fixture
def desk(airflow: Airflow, monkeypatch: pytest.MonkeyPatch) -> Desk:  # noqa: F811
    return Desk(airflow, monkeypatch)


@pytest.mark.parametrize(("choice", "event"), [("Accept", Event.ACCEPTED), ("Skip", Event.SKIPPED)])
def test_what_a_person_chooses_is_done_without_spark_and_is_in_the_journal_with_the_name(
    desk: Desk, choice: str, event: Event
) -> None:
    waiting = desk.judge(failed=("the amount is negative",))
    (question,) = desk.questions
    assert (question["ti_id"], question["options"]) == ("ti-1", ["Accept", "Skip", "Fail"])
    assert question["subject"] == "The gate is red: transaction 1"
    assert "the amount is negative" in question["body"]
    assert waiting.timeout.days == 7, "every wait has an end"
    assert desk.decisions == [], "nothing is sealed meanwhile"
    desk.airflow.job = no_spark
    desk.answer(waiting, choice)
    assert desk.decisions == [(1, str(event))]
    (entry,) = desk.airflow.journal(event)
    assert (entry["user"], entry["reason"]) == ("ann", "a refund")
    desk.airflow.task("upsert")
    desk.airflow.task("checkpoint")
    assert len(desk.airflow.world.seals) == 1


def test_who_chooses_to_fail_or_never_answers_lets_the_run_fail_and_seals_nothing(desk: Desk) -> None:
    waiting = desk.judge(failed=("red",))
    with pytest.raises(AirflowFailException, match="ann leaves the gate red: no thanks"):
        desk.answer(waiting, "Fail", "no thanks")
    with pytest.raises(AirflowFailException, match="no decision was made in time: too late"):
        desk.answer(waiting, "Accept", error="too late", error_type="timeout")
    with pytest.raises(AirflowFailException, match="'Destroy' is none of Accept, Skip, Fail"):
        desk.answer(waiting, "Destroy")
    with pytest.raises(AirflowFailException, match="the decision has no user"):
        desk.answer(waiting, "Accept", responded_by_user=None)
    assert desk.decisions == []


def test_an_answer_without_a_reason_is_asked_for_again(desk: Desk) -> None:
    waiting = desk.judge(failed=("red",))
    with pytest.raises(TaskAwaitingInput) as again:
        desk.answer(waiting, "Accept", "  ")
    assert (len(desk.questions), desk.decisions) == (2, [])
    desk.answer(again.value, "Accept")
    assert desk.decisions == [(1, "accepted")]


def test_an_answer_is_not_used_for_what_was_judged_again_since(desk: Desk) -> None:
    waiting = desk.judge(failed=("red",))
    desk.judge(failed=("red for another reason",))
    with pytest.raises(
        AirflowFailException, match="transaction 1 has a newer verdict than the one in question"
    ):
        desk.answer(waiting, "Accept")
    assert desk.decisions == []


def test_what_somebody_else_has_decided_meanwhile_stays(desk: Desk) -> None:
    waiting = desk.judge(failed=("red",))
    world = desk.airflow.world
    skip(world.process(), world.attempt("bob"), world.bindings[0].txn, reason="poisoned")
    desk.answer(waiting, "Accept")
    assert desk.decisions == [(1, "skipped")]


def test_what_passed_below_a_red_transaction_is_sealed_before_it_is_decided(desk: Desk) -> None:
    world = desk.airflow.world = World(records_max=1)
    world.feed(rec("k", 1), rec("k", 2))
    opinions = {1: Opinion(), 2: Opinion(failed=("red",))}
    opened = desk.airflow.deployment

    def deployment() -> Any:
        made = opened()
        gate = SimpleNamespace(opinion=lambda staged: opinions[staged.txn])
        object.__setattr__(made.pipeline, "gate", gate)
        return made

    desk.airflow.deployment = deployment  # type: ignore[method-assign]
    desk.airflow.task("reclock")
    desk.airflow.task("ingest")
    assert len(world.bindings) == 2
    with pytest.raises(TaskAwaitingInput) as waiting:
        desk.task().execute(desk.context())
    desk.answer(waiting.value, "Accept")
    assert desk.decisions == [(1, "committed"), (2, "accepted")]


def sets_aside(desk: Desk, *failed: str) -> None:
    """From now on the pipeline has an expectation that single rows break; this fails without those rows."""
    opened = desk.airflow.deployment

    def deployment() -> Any:
        made, aside = opened(), opened()
        gate = SimpleNamespace(opinion=lambda staged: Opinion(failed=failed))
        object.__setattr__(aside.pipeline, "gate", gate)
        made.setting_aside = lambda: aside
        return made

    desk.airflow.deployment = deployment  # type: ignore[method-assign]


def test_rows_are_quarantined_on_request_and_what_is_staged_then_passes_the_gate(desk: Desk) -> None:
    sets_aside(desk)
    waiting = desk.judge(failed=("the amount is negative",))
    assert desk.questions[0]["options"] == ["Accept", "Quarantine", "Skip", "Fail"]
    told = desk.answer(waiting, "Quarantine")
    assert [one["verdict"] for one in told["verdicts"]] == ["identical"]
    (entry,) = desk.airflow.journal(Event.REQUESTED)
    assert (entry["what"], entry["user"], entry["reason"]) == ("quarantine", "ann", "a refund")
    assert desk.decisions == [], "the upsert task seals it, as it seals any that passed"
    desk.airflow.task("upsert")
    assert desk.decisions == [(1, "committed")]


def test_a_gate_that_is_red_without_these_rows_too_asks_again(desk: Desk) -> None:
    sets_aside(desk, "there are too few rows")
    waiting = desk.judge(failed=("the amount is negative",))
    with pytest.raises(TaskAwaitingInput) as again:
        desk.answer(waiting, "Quarantine")
    assert "there are too few rows" in desk.questions[1]["body"]
    assert desk.decisions == []
    desk.answer(again.value, "Skip")
    assert desk.decisions == [(1, "skipped")]


def test_a_request_to_quarantine_is_for_the_verdict_that_was_seen_and_is_done_once(desk: Desk) -> None:
    sets_aside(desk)
    waiting = desk.judge(failed=("red",))
    desk.judge(failed=("red for another reason",))
    with pytest.raises(
        AirflowFailException, match="transaction 1 has a newer verdict than the one in question"
    ):
        desk.answer(waiting, "Quarantine")
    assert desk.airflow.journal(Event.REQUESTED) == []
    waiting = desk.judge(failed=("red",))
    desk.answer(waiting, "Quarantine")
    before = len(desk.airflow.journal(Event.JUDGED))
    order = desk.task().order(desk.context(), quarantine=True)
    assert perform("validate", desk.airflow.deployment(), order)["verdicts"] == []
    assert len(desk.airflow.journal(Event.JUDGED)) == before


def test_input_that_is_gone_can_not_be_accepted() -> None:
    gone = Judged(Gated(Finding(Txn(1), Verdict.INPUT_GONE, why="no file")), replayed=False)
    assert options_of([gone], sets_aside=True) == ["Skip", "Fail"]


def test_a_red_proof_is_never_asked_about(desk: Desk) -> None:
    desk.airflow.run()
    (part,) = desk.airflow.world.log()[0].parts
    del desk.airflow.world.files[part.path]
    for name in ("reclock", "ingest"):
        desk.airflow.task(name, clear_number=1)
    desk.airflow.job = lambda order: perform("validate", desk.airflow.deployment(), order) and None
    with pytest.raises(AirflowFailException, match="the gate is red: transaction 1: differs"):
        desk.task().execute(desk.context(clear_number=1))
    assert desk.questions == []


def test_a_gate_that_is_marked_as_success_while_it_waits_lets_nothing_through(desk: Desk) -> None:
    desk.judge(failed=("red",))
    desk.airflow.job = lambda order: perform("upsert", desk.airflow.deployment(), order) and None
    with pytest.raises(AirflowFailException, match="red"):
        UpsertOperator(task_id="upsert", pipeline_file="shop.yaml").execute(desk.context())
    assert desk.decisions == []


def test_a_pipeline_file_says_whether_to_ask(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    shards = "shards: [{name: t, schema: 'a INT', keys: [a]}]"
    text = f"name: p\nsource: {{type: files, path: in, format: json}}\n{shards}\n"
    file.write_text(text)
    plain = load_pipeline(file)
    file.write_text(f"{text}on_red: ask\n")
    asks = load_pipeline(file)
    assert (plain.on_red, asks.on_red) == ("fail", "ask")
    assert plain.canonical_json() == asks.canonical_json()
