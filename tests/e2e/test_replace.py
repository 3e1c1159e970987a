"""A pipeline's settings are replaced through Airflow while its own DAG goes on."""

from __future__ import annotations

from urllib.parse import quote

import pytest
import yaml

from scripts.local_airflow.embedded import USER
from tests.support.airflow import EXPECTATIONS, SHARD, Stack
from tests.support.tables import rows_of
from tests.support.waiting import wait_until
from tidemark.core.ledger import Event
from tidemark.core.seal import Decision

pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.server]


def test_the_replace_dag_promotes_a_deployed_file_after_a_person_has_seen_what_changes(stack: Stack) -> None:
    project, client = stack.projects["replaced"], stack.client
    for dag in ("replaced", "replace"):
        client.unpause(dag)
    project.land([{"id": n, "status": "new", "amount": float(n), "op": "U"} for n in range(4)])
    first = stack.go("replaced")
    assert project.state() == {n: ("new", float(n)) for n in range(4)}

    # The file is deployed: runs keep the settings in charge.
    config = yaml.safe_load(project.file.read_text())
    config["generation"] = 1
    config["shards"][0]["apply_as_deletes"] = "op = 'X'"
    project.file.write_text(yaml.safe_dump(config))
    project.land([{"id": 0, "status": "x", "amount": 0.0, "op": "D"}])
    stack.go("replaced")
    assert set(project.state()) == {1, 2, 3}

    conf = {"pipeline": "replaced", "reason": "X deletes, D does not"}
    run_id = client.trigger("replace", conf=conf)

    def waits() -> bool:
        heard = "TaskInstance Finished: dag_id=replace, task_id=approve"
        said = (stack.airflow.home / "logs" / "scheduler.log").read_text(errors="replace")
        return bool(client.states("replace", run_id).get("approve") == "awaiting_input" and heard in said)

    wait_until(waits, what="the question", pause_seconds=0.5)
    way = f"/dags/replace/dagRuns/{quote(run_id, safe='')}/taskInstances/approve/-1/hitlDetails"
    question = client.call("GET", way)
    assert question["options"] == ["Promote", "Abort", "Leave it"]
    assert f"{SHARD}: 1 new, 0 changed, 0 gone" in question["body"]

    # The pipeline goes on meanwhile, and nobody has seen anything of the candidate.
    project.land([{"id": 1, "status": "sent", "amount": 1.0, "op": "X"}])
    stack.go("replaced")
    assert project.state()[1] == ("sent", 1.0)

    client.call("PATCH", way, {"chosen_options": ["Promote"]})
    stack.ends("replace", run_id)
    assert project.state() == {0: ("x", 0.0), 2: ("new", 2.0), 3: ("new", 3.0)}
    promotion = project.seals()[-1]
    assert (promotion.txn, promotion.decision, promotion.generation) == (4, Decision.CORRECTED, 1)
    (noted,) = [one for one in project.journal(4) if one.event is Event.PROMOTED]
    assert noted.detail["generation"] == "1"
    assert noted.detail["user"] == USER

    # The next run has the new settings, and a run of before is proven by its own.
    project.land([{"id": 2, "status": "sent", "amount": 2.0, "op": "X"}])
    stack.go("replaced")
    assert set(project.state()) == {0, 3}
    stack.clear("replaced", first)
    assert project.verdicts(1)[-1] == "identical"


def test_runs_of_every_few_seconds_never_fail_while_settings_are_replaced_and_announce_all(
    stack: Stack,
) -> None:
    """A rule for deletes and an expectation, then another key: no run of the pipeline's own DAG fails or is
    tried again, and every transaction with rows is in an event of the shard's asset."""
    project, client = stack.projects["living"], stack.client
    for dag in ("living", "replace_living"):
        client.unpause(dag)

    def landed(*records: tuple[int, str, float, str]) -> None:
        """Wait for a run that has taken it in: the next file is another run's."""
        before = len(project.seals())
        names = ("id", "status", "amount", "op")
        project.land([dict(zip(names, record, strict=True)) for record in records])
        wait_until(lambda: len(project.seals()) > before, what="a run", pause_seconds=0.5)

    def deployed(generation: int, **settings: object) -> None:
        config = yaml.safe_load(project.file.read_text())
        config["generation"] = generation
        config["shards"][0] |= settings
        project.file.write_text(yaml.safe_dump(config))

    def replaced(reason: str, **more: object) -> None:
        conf = {"pipeline": "living", "reason": reason, "promote": True, **more}
        run_id = client.trigger("replace_living", conf=conf)
        landed((5, "new", 5.0, "U"), (2, "sent", -2.0, "U"))
        stack.ends("replace_living", run_id)

    def pairs() -> list[tuple[object, ...]]:
        return sorted(rows_of(project.folder / "warehouse" / "living" / SHARD / "state", ("id", "status")))

    landed((1, "new", 1.0, "U"), (2, "new", 2.0, "U"), (3, "new", -3.0, "U"), (4, "new", 4.0, "X"))
    deployed(1, apply_as_deletes="op = 'X'", expectations=[{**EXPECTATIONS[0], "action": "quarantine"}])
    landed((4, "new", 4.0, "X"))
    replaced("X deletes, and nothing costs less than nothing")
    assert project.seals()[-1].generation == 1
    landed((6, "new", 6.0, "U"))
    wait_until(lambda: 6 in project.state(), what="the published run", pause_seconds=0.5)
    assert project.state() == {1: ("new", 1.0), 2: ("new", 2.0), 5: ("new", 5.0), 6: ("new", 6.0)}

    # Another key: the table begins anew at its address.
    deployed(2, keys=["id", "status"])
    replaced("a status is a row of its own", replace=[str(SHARD)])
    landed((6, "sent", 6.0, "U"))
    wait_until(lambda: project.seals()[-1].generation == 2, what="the third generation", pause_seconds=0.5)
    wait_until(lambda: (6, "sent") in pairs(), what="the published run", pause_seconds=0.5)
    assert pairs() == [(1, "new"), (2, "new"), (5, "new"), (6, "new"), (6, "sent")]

    def announced() -> set[int]:
        found = client.call("GET", "/assets/events", source_dag_id="living", limit=100)["asset_events"]
        told = [one["extra"] for one in found if one["uri"] == f"x-tidemark://living/{SHARD}"]
        return {txn for one in told for txn in range(one["txn_from"], one["txn_to"] + 1)}

    touched = {seal.txn for seal in project.seals() if SHARD in seal.shards}
    wait_until(lambda: announced() >= touched, what="the events of all transactions", pause_seconds=0.5)
    client.unpause("living", paused=True)
    runs = client.call("GET", "/dags/living/dagRuns", limit=100)["dag_runs"]
    # A run of a paused DAG stays where it is.
    assert {one["state"] for one in runs} <= {"success", "running", "queued"}
    assert [one["state"] for one in runs].count("success") >= 3
    for one in runs:
        for task, found in client.tasks("living", one["dag_run_id"]).items():
            assert found["try_number"] <= 1, f"{task} of {one['dag_run_id']} was tried again"
