"""The gate in a real Airflow: what turns it red, what it says, what stays unrun, and the ways out."""

from __future__ import annotations

import pytest

from tests.e2e.conftest import CANARY
from tests.e2e.stack import Stack, first_txns

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

    stack.clear("replayed", run_id, state="failed")
    states = client.states("replayed", run_id)
    assert states["validate"] == "failed"
    assert {states["upsert"], states["checkpoint"]} == {"upstream_failed"}
    said = stack.log("replayed", run_id, "validate")
    recorded = project.seals()[0].shards["orders"].digest  # type: ignore[index]
    for words in (
        "the gate is red",
        "transaction 1: differs",
        "endpoint shard:orders",
        str(recorded),
        "tidemark replay replayed --from 1 --to 1 --mode repair",
    ):
        assert words in said, said[-3000:]

    conf = {"pipeline": "replayed", "txn_from": 1, "txn_to": None, "mode": "verify", "dry_run": False}
    verify = client.trigger("replay", conf=conf)
    stack.ends("replay", verify, state="failed")
    assert client.states("replay", verify)["report"] == "failed"
    repair = client.trigger("replay", conf={**conf, "mode": "repair"})
    stack.ends("replay", repair)
    assert project.part(1).read_bytes() == whole
    stack.clear("replayed", run_id)
    assert project.verdicts(1)[-1] == "identical"
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


def test_a_dry_run_of_the_replay_dag_only_tells(stack: Stack) -> None:
    client = stack.client
    client.unpause("replay")
    conf = {"pipeline": "manual", "txn_from": 1, "txn_to": None, "mode": "repair", "dry_run": True}
    run_id = client.trigger("replay", conf={**conf, "pipeline": "replayed"})
    stack.ends("replay", run_id)
    assert client.states("replay", run_id) == {"plan": "success", "replay": "skipped", "report": "skipped"}


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
    project.check()  # What was committed stays.
    file.write_text(original)
    stack.clear("changed", run_id)
    assert project.verdicts(1)[-1] == "identical"


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
        "tidemark accept red 2 --reason",
    ):
        assert words in said, said[-3000:]
    assert set(project.state()) == {1}
    assert first_txns(project.seals()) == [1]
    project.tidemark("accept", "red", "2", "--reason", "a refund")
    stack.clear("red", run_id, tasks=["validate"])
    project.tidemark("publish", "red")
    project.check()


def test_no_secret_gets_into_logs_journal_xcom_or_data_docs(stack: Stack) -> None:
    project, client = stack.projects["secret"], stack.client
    client.unpause("secret")
    project.land_some()
    run_id = stack.go("secret")
    for task in client.tasks("secret", run_id):
        assert CANARY not in str(client.xcom("secret", run_id, task))
    holders = [
        path
        for folder in (stack.airflow.home / "logs", project.folder, stack.root / "tidemark")
        for path in folder.rglob("*")
        if path.is_file() and CANARY.encode() in path.read_bytes()
    ]
    assert holders == []
    docs = list((stack.root / "tidemark" / "data-docs" / "secret").rglob("*.html"))
    assert docs, "there are data docs to look into"
