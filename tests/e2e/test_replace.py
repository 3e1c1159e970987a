"""A pipeline's settings are replaced through Airflow while its own DAG goes on."""

from __future__ import annotations

from urllib.parse import quote

import pytest
import yaml

from scripts.local_airflow.embedded import USER
from tests.support.airflow import SHARD, Stack
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
