"""The gate in a real Airflow: what turns it red, what it says, what stays unrun, and the ways out."""

from __future__ import annotations

import json
import re
from urllib.parse import quote

import pytest

from scripts.local_airflow.embedded import USER
from tests.support import ROOT
from tests.support.airflow import CANARY, SHARD, TASKS, Project, Stack, first_txns
from tests.support.tables import bound_files
from tests.support.waiting import wait_until
from tidemark.core.ledger import Event

RED = r"shard:orders: recorded (\d+) rows with digest ([\w./]+), found (\d+) rows with digest ([\w./]+)"
pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.server, pytest.mark.slow]


def test_p4_a_tampered_part_turns_a_cleared_run_red_and_the_replay_dag_repairs_it(stack: Stack) -> None:
    project, client = stack.projects["replayed"], stack.client
    client.unpause("replayed")
    client.unpause("replay")
    project.land_some()
    run_id = stack.go("replayed")
    whole = project.part(1).read_bytes()
    # One byte in a data page: the file opens, and has as many rows as before.
    place = whole.index(b"PAR1") + 60
    project.part(1).write_bytes(whole[:place] + bytes([whole[place] ^ 0x01]) + whole[place + 1 :])

    written = project.data_files()
    stack.clear("replayed", run_id, state="failed")
    check_red_message(project, stack.log("replayed", run_id, "validate"))
    # Red stays red, and nothing is written; `tests/unit/test_steps_as_tasks.py` clears it at other steps.
    stack.clear("replayed", run_id, tasks=["validate"], state="failed")
    states = client.states("replayed", run_id)
    assert [states[name] for name in TASKS] == [*["success"] * 2, "failed", *["upstream_failed"] * 2]
    assert (project.data_files(), first_txns(project.seals())) == (written, [1])

    conf = {"pipeline": "replayed", "txn_from": 1, "txn_to": None, "mode": "verify", "dry_run": False}
    verify = client.trigger("replay", conf=conf)
    stack.ends("replay", verify, state="failed")
    assert client.states("replay", verify)["report"] == "failed"
    assert "1 of 1 are not identical" in stack.log("replay", verify, "report")
    (sampled,) = [one for one in project.journal(1) if one.event is Event.SAMPLED]
    (key,) = {tuple(one["key"]) for one in json.loads(sampled.detail["keys"])}
    assert key == ("id",), "the keys that differ are on record for the pages"
    asked = {"txn_from": 1, "txn_to": 1, "reason": "a part was changed by hand"}
    status, told = stack.act("replayed", "repair", stack.editor_token, **asked)
    assert (status, told["dag_id"]) == (200, "replay"), told
    stack.ends("replay", told["run_id"])
    (request,) = [one for one in project.journal(1) if one.event is Event.REQUESTED]
    assert (request.detail["user"], request.detail["reason"]) == (USER, asked["reason"])
    assert project.part(1).read_bytes() == whole
    told = client.call("GET", "/assets/events", source_dag_id="replay")["asset_events"]
    assert [(one["uri"], one["extra"]["repaired"]) for one in told] == [("x-tidemark://replayed/orders", [1])]
    stack.clear("replayed", run_id)
    assert project.verdicts(1)[-1] == "identical"
    project.check()


def check_red_message(project: Project, said: str) -> None:
    """What the documentation says that a red gate says."""
    found = re.search(RED, said)
    assert found, said[-3000:]
    recorded = project.seals()[0].shards[SHARD].digest
    assert (int(found[1]), found[2]) == (recorded.count, str(recorded))
    assert found[4] != found[2]
    documented = (ROOT / "docs" / "airflow.md").read_text()
    for words in (
        "the input is unchanged, but the parts differ from the seal; repair them",
        "what is committed does not change, and downstream tasks wait. What you can do:",
        "restores the parts; then clear this task",
    ):
        assert words in documented
        assert words in said, said[-3000:]
    assert "replayed.yaml --from 1 --to 1 --mode repair" in said


def test_a_gate_that_a_person_marks_as_success_is_announced_with_what_it_said(stack: Stack) -> None:
    """Invariant 19: downstream hears of the verdict and of who went past it, and of the end of both."""
    project, client = stack.projects["marked"], stack.client
    client.unpause("marked")

    def events() -> list[tuple[str, bool]]:
        """What was announced, in order: the verdict, and whether a person overruled it."""
        found = client.call("GET", "/assets/events", source_dag_id="marked", order_by="timestamp")
        return [(one["extra"]["verdict"], bool(one["extra"]["overruled"])) for one in found["asset_events"]]

    project.land_some()
    run_id = stack.go("marked")
    assert events() == [("identical", False)]
    part = project.part(1)
    whole = part.read_bytes()
    part.unlink()
    stack.clear("marked", run_id, state="failed")
    assert events() == [("identical", False)], "what is red tells nobody"
    path = f"/dags/marked/dagRuns/{quote(run_id)}/taskInstances/validate"
    client.call("PATCH", path, {"new_state": "success"})
    stack.ends("marked", run_id)
    assert events() == [("identical", False), ("differs", True)]
    assert "overruled" in [entry.event.value for entry in project.journal(1)]
    part.write_bytes(whole)
    stack.clear("marked", run_id)
    assert events() == [("identical", False), ("differs", True), ("identical", False)]
    project.check()


def test_the_replay_dag_proves_a_range_and_its_plan_says_what_is_gone(stack: Stack) -> None:
    project, client = stack.projects["replayed"], stack.client
    for dag in ("replayed", "replay", "maintain"):
        client.unpause(dag)
    while len(project.seals()) < 2:
        project.land_some()
        stack.go("replayed")
    last = len(project.seals())
    conf = {"pipeline": "replayed", "txn_from": 1, "txn_to": last, "mode": "verify", "dry_run": False}
    run_id = stack.go("replay", conf=conf)
    said = stack.log("replay", run_id, "report")
    for txn in range(1, last + 1):
        assert f"transaction {txn}: identical" in said
        assert project.verdicts(txn)[-1] == "identical"
    assert client.xcom("replay", run_id, "report") == {"identical": last}

    (_, name), *_ = bound_files(project.folder / "warehouse" / "replayed" / "_control")[1]
    file = project.folder / "landing" / name
    hidden = file.rename(file.with_suffix(".away"))
    dry = stack.go("replay", conf={**conf, "dry_run": True})
    assert client.states("replay", dry) == {"plan": "success", "replay": "skipped", "report": "skipped"}
    said = stack.log("replay", dry, "plan")
    assert "transaction 1: verify, its input is GONE" in said
    assert f"transaction {last}: verify, its input is still there" in said
    hidden.rename(file)

    past = client.trigger("replay", conf={**conf, "txn_to": 10**12})
    stack.ends("replay", past, state="failed")
    assert client.states("replay", past)["plan"] == "failed"
    assert f"transaction {last + 1} is not bound" in stack.log("replay", past, "plan")

    kept = stack.go("maintain")
    assert client.xcom("maintain", kept, "replayed")["pipeline"] == "replayed"
    project.check()


def test_the_replay_dag_refuses_hostile_params_before_spark_starts(stack: Stack) -> None:
    from tidemark.core.errors import InvalidUsage

    good = {"pipeline": "replayed", "txn_from": 1, "txn_to": None, "mode": "verify", "dry_run": False}
    for bad in (
        {"pipeline": "../../etc/passwd"},
        {"pipeline": "x'; DROP TABLE seals"},
        {"txn_from": 0},
        {"txn_from": "1; rm -rf /"},
        {"txn_to": -1},
        {"mode": "destroy"},
        {"dry_run": "yes"},
    ):
        with pytest.raises(InvalidUsage, match="400"):
            stack.client.trigger("replay", conf={**good, **bad})


def test_s6_a_changed_source_file_stops_at_validate_until_it_is_restored(stack: Stack) -> None:
    project = stack.projects["changed"]
    stack.client.unpause("changed")
    file = project.land_some()
    run_id = stack.go("changed")
    original = file.read_text()
    file.write_text(original.replace('"status": "new"', '"status": "old"', 1))
    stack.clear("changed", run_id, state="failed")
    states = stack.client.states("changed", run_id)
    assert (states["ingest"], states["validate"], states["checkpoint"]) == (
        "success",
        "failed",
        "upstream_failed",
    )
    said = stack.log("changed", run_id, "validate")
    assert "transaction 1: input gone" in said
    assert file.name in said
    assert project.state() == project.truth, "what is committed does not change"
    file.write_text(original)
    stack.clear("changed", run_id)
    project.check()


def test_p12_a_failed_expectation_keeps_the_rows_invisible_until_someone_accepts_them(stack: Stack) -> None:
    project, client = stack.projects["red"], stack.client
    client.unpause("red")
    project.land([{"id": 1, "status": "new", "amount": 1.0, "op": "U"}])
    stack.go("red")
    project.land([{"id": 2, "status": "new", "amount": -5.0, "op": "U"}])
    run_id = client.trigger("red")
    stack.ends("red", run_id, state="failed")
    assert client.states("red", run_id)["upsert"] == "upstream_failed"
    said = stack.log("red", run_id, "validate")
    for words in (
        "expect_column_values_to_be_between(amount",
        "1 of 1 rows",
        "red.yaml 2 --reason",
        "tidemark accept ",
    ):
        assert words in said, said[-3000:]
    assert set(project.state()) == {1}
    assert first_txns(project.seals()) == [1]
    client.unpause("health")
    health = client.trigger("health")
    stack.ends("health", health, state="failed")
    said = stack.log("health", health, "red")
    for words in (
        "1 alarm:",
        "blocked: transaction 2: ",
        "expect_column_values_to_be_between",
        "accept red 2",
    ):
        assert words in said, said[-3000:]
    again = stack.go("health")
    assert client.states("health", again) == {"red": "skipped"}, "nobody is told twice"
    said_why = {"txn": 2, "reason": "a refund"}
    editor = stack.editor_token
    assert stack.act("red", "accept", stack.viewer_token, **said_why)[0] == 403
    assert stack.act("red", "accept", editor, origin="https://elsewhere.example", **said_why)[0] == 403
    assert first_txns(project.seals()) == [1], "neither a viewer nor another site decides anything"
    assert stack.act("red", "accept", editor, **said_why)[0] == 200
    (accepted,) = [one for one in project.journal(2) if one.event is Event.ACCEPTED]
    assert (accepted.detail["user"], accepted.detail["reason"]) == (USER, "a refund")
    stack.clear("red", run_id, tasks=["validate"])
    well = stack.go("health")
    assert client.states("health", well) == {"red": "success"}
    project.tidemark("publish", "red")
    project.check()


def test_a_red_gate_that_asks_waits_for_a_person_and_does_what_they_choose(stack: Stack) -> None:
    project, client = stack.projects["asked"], stack.client
    client.unpause("asked")
    project.land(
        [{"id": key, "status": "new", "amount": amount, "op": "U"} for key, amount in ((1, -5.0), (2, 5.0))]
    )
    run_id = client.trigger("asked")

    def waits() -> bool:
        """Airflow takes a task that goes on before its scheduler has heard that it waits for one that died,
        and asks again: a person is slower than that."""
        heard = "TaskInstance Finished: dag_id=asked, task_id=validate"
        said = (stack.airflow.home / "logs" / "scheduler.log").read_text(errors="replace")
        return bool(client.states("asked", run_id).get("validate") == "awaiting_input" and heard in said)

    wait_until(waits, what="the question", pause_seconds=0.5)
    way = f"/dags/asked/dagRuns/{quote(run_id, safe='')}/taskInstances/validate/-1/hitlDetails"
    question = client.call("GET", way)
    assert (question["subject"], question["options"]) == (
        "The gate is red: transaction 1",
        ["Accept", "Quarantine", "Skip", "Fail"],
    )
    assert "expect_column_values_to_be_between(amount" in question["body"]
    assert project.seals() == []
    client.call("PATCH", way, {"chosen_options": ["Quarantine"], "params_input": {"reason": "a refund"}})
    stack.ends("asked", run_id)
    (request,) = [one for one in project.journal(1) if one.event is Event.REQUESTED]
    assert (request.detail["what"], request.detail["user"], request.detail["reason"]) == (
        "quarantine",
        USER,
        "a refund",
    )
    (seal,) = project.seals()
    assert {shard: parts.digest.count for shard, parts in seal.shards.items()} == {SHARD: 1, "quarantine": 1}
    assert project.state() == {2: ("new", 5.0)}
    stack.clear("asked", run_id)
    assert project.verdicts(1)[-1] == "identical", "by the settings that were sealed, not by the file's"


def test_no_secret_gets_into_logs_journal_xcom_or_data_docs(stack: Stack) -> None:
    project, client = stack.projects["secret"], stack.client
    client.unpause("secret")
    project.land_some()
    run_id = stack.go("secret")
    # What is no secret is found in all the places that are looked into.
    for text, places in (
        (run_id, {"logs", "airflow.xcom", "airflow.task_instance"}),
        (run_id, {"control.attempts", "control.history", "control.journal"}),
        (project.file.name, {"airflow.serialized_dag"}),
        ("arrow-spark", {"airflow.rendered_task_instance_fields"}),  # What the provider calls a job.
        ("recorded_digest", {"docs"}),
        ("Running Spark version", {"spark"}),
        (project.name, {"control.settings", "project"}),
    ):
        assert places <= stack.places_of(project, text), text
    assert stack.places_of(project, CANARY) == set()
    project.check()
