"""Runs through a real Airflow: by schedule, by hand, cleared, killed, overlapping, over past dates.

Green tasks prove nothing by themselves; each story ends at the tables, the journal and the files, against
what the change files say in plain Python.
"""

from __future__ import annotations

import json
import os
import signal
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.crash.recompute import rows_of
from tests.e2e.conftest import CANARY
from tests.e2e.stack import SHARD, Stack, first_txns
from tests.kafka_broker import PASSWORD, Broker
from tidemark.airflow.client import FINAL_STATES, AirflowClient, Busy

pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.server, pytest.mark.slow]
TASKS = ("reclock", "ingest", "validate", "upsert", "checkpoint")


def wait_until(done, *, what: str, seconds_max: float = 300.0) -> None:  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + seconds_max
    while not done():
        assert time.monotonic() < deadline, f"{what} has not come"
        time.sleep(0.2)


def test_a_scheduled_run_takes_what_has_landed(stack: Stack) -> None:
    project, client = stack.projects["scheduled"], stack.client
    project.land_some()
    client.unpause("scheduled")
    runs = lambda: client.call("GET", "/dags/scheduled/dagRuns")["dag_runs"]  # noqa: E731
    wait_until(lambda: any(run["state"] == "success" for run in runs()), what="a scheduled run")
    client.unpause("scheduled", paused=True)
    first = min(runs(), key=lambda run: run["run_after"])
    assert first["run_type"] == "scheduled"
    assert project.owned(first["dag_run_id"]) == [1]
    project.check()


def test_a_manual_run_without_a_logical_date_works_and_the_next_takes_only_what_is_new(stack: Stack) -> None:
    project = stack.projects["manual"]
    stack.client.unpause("manual")
    project.land_some()
    first = stack.go("manual")
    project.check()
    project.land_some()
    project.land_some()
    second = stack.go("manual")
    project.check()
    assert (project.owned(first), project.owned(second)) == ([1], [2])
    empty = stack.go("manual")
    assert project.owned(empty) == [], "a run that finds nothing owns nothing"
    assert stack.client.xcom("manual", empty, "checkpoint")["shards"] == {}
    assert [project.verdicts(txn) for txn in (1, 2)] == [["identical"], ["identical"]]


def test_a_topic_is_read_with_airflows_connection_over_spark_connect_and_a_clear_proves_it(
    stack: Stack, broker: Broker
) -> None:
    project = stack.projects["streamed"]
    stack.client.unpause("streamed")

    def send(*rows: tuple[int, str, float] | int) -> None:
        """Rows as they are in the table; a key alone deletes."""
        for row in rows:
            id_, *values = (row,) if isinstance(row, int) else row
            value = dict(zip(("status", "amount"), values, strict=True)) if values else None
            key, text = json.dumps({"id": id_}), value and json.dumps(value)
            broker.send("orders", [(key, text)], partition=id_ % 2)

    broker.make("orders", 2)
    send((1, "new", 1.5), (2, "new", 2.5), (3, "new", 3.5), (1, "paid", 1.5), 2)
    run_id = stack.go("streamed")
    assert project.state() == {1: ("paid", 1.5), 3: ("new", 3.5)}
    send((3, "paid", 3.5))  # What has come since must not get into the cleared run.
    stack.clear("streamed", run_id, tasks=["ingest"])
    assert (project.owned(run_id), project.verdicts(1)) == ([1], ["identical", "identical"])
    folders = (stack.airflow.home / "logs", project.folder, stack.root / "tidemark")
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    assert [path for path in files if PASSWORD.encode() in path.read_bytes()] == []


def test_p8_clearing_any_task_of_a_finished_run_proves_it_and_writes_nothing_twice(stack: Stack) -> None:
    project = stack.projects["cleared"]
    stack.client.unpause("cleared")
    project.land_some()
    run_id = stack.go("cleared")
    written = project.data_files()
    project.land_some()  # What has landed since must not get into the cleared run.
    for task in TASKS:
        stack.clear("cleared", run_id, tasks=[task])
        assert project.data_files() == written, f"clearing {task} wrote data"
        assert first_txns(project.seals()) == [1]
    # Clearing reclock, ingest and validate put the proof before the gate; the others had nothing to prove.
    assert project.verdicts(1) == ["identical"] * 4
    stack.clear("cleared", run_id)
    assert project.verdicts(1) == ["identical"] * 5
    assert project.data_files() == written


def test_a_task_killed_in_the_middle_is_retried_by_airflow_and_nothing_is_lost_or_doubled(
    stack: Stack,
) -> None:
    project, client = stack.projects["killed"], stack.client
    client.unpause("killed")
    for _ in range(3):
        project.land_some(2_000)
    run_id = client.trigger("killed")
    for task in ("ingest", "upsert"):
        wait_until(lambda task=task: kill_worker(stack, run_id, task), what=f"a running {task}")  # type: ignore[misc]
    stack.ends("killed", run_id)
    tries = {name: one["try_number"] for name, one in client.tasks("killed", run_id).items()}
    assert (tries["ingest"], tries["upsert"]) == (2, 2)
    project.check()
    assert first_txns(project.seals()) == [1]
    project.tidemark("maintain", "killed")
    folders = list((project.folder / "warehouse" / "killed" / SHARD / "log").glob("_txn-*/*"))
    assert [folder.name for folder in folders] == [project.seals()[0].token], "no part is left behind"


def kill_worker(stack: Stack, run_id: str, task: str) -> bool:
    """SIGKILL the process that runs the task, once it runs."""
    found = stack.client.tasks("killed", run_id)[task]
    if found["state"] != "running" or found["try_number"] != 1:
        return False
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    workers = [pid for pid in pids if title(pid).strip() == f"airflow worker -- {found['id']}"]
    for pid in workers:
        os.kill(pid, signal.SIGKILL)
    return bool(workers)


def title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def test_m8_two_overlapping_runs_are_both_green_and_every_record_is_there_once(stack: Stack) -> None:
    project, client = stack.projects["overlapping"], stack.client
    client.unpause("overlapping")
    project.land_some()
    one = client.trigger("overlapping")
    wait_until(lambda: bool(project.owned(one)), what="the first run's binding")
    project.land_some()
    two = client.trigger("overlapping")
    for run_id in (one, two):
        stack.ends("overlapping", run_id)
    project.check()
    assert (project.owned(one), project.owned(two)) == ([1], [2])
    assert first_txns(project.seals()) == [1, 2]


def test_a_backfill_over_a_past_date_does_what_its_reprocess_behavior_says(stack: Stack) -> None:
    project, client = stack.projects["backfilled"], stack.client
    day = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=3)

    def backfill(behavior: str, *, state: str = "success") -> str:
        body = {
            "dag_id": "backfilled",
            "from_date": day.isoformat(),
            "to_date": day.isoformat(),
            "reprocess_behavior": behavior,
            "max_active_runs": 1,
            "run_backwards": False,
            "dag_run_conf": {},
        }
        path = f"/backfills/{created(client, body)}"
        wait_until(lambda: client.call("GET", path)["completed_at"] is not None, what="the backfill's end")
        runs = client.call("GET", "/dags/backfilled/dagRuns")["dag_runs"]
        (run,) = [run for run in runs if run["run_type"] == "backfill"]
        assert run["state"] == state, stack.story("backfilled", run["dag_run_id"])
        return str(run["dag_run_id"])

    client.unpause("backfilled")
    runs = lambda: client.call("GET", "/dags/backfilled/dagRuns")["dag_runs"]  # noqa: E731
    # The schedule's own run of today finds nothing yet, and owns nothing.
    wait_until(lambda: [run["state"] for run in runs()] == ["success"], what="today's scheduled run")
    file = project.land_some()
    run_id = backfill("none")
    project.check()
    assert project.owned(run_id) == [1]
    written, verdicts = project.data_files(), project.verdicts(1)
    for behavior in ("none", "failed"):
        backfill(behavior)
        assert project.verdicts(1) == verdicts, f"{behavior} leaves a run that succeeded alone"
    assert backfill("completed") == run_id
    assert project.verdicts(1) == [*verdicts, "identical"], "completed replays it, and proves it"
    original = file.read_bytes()
    file.write_bytes(original.replace(b"new", b"old"))
    backfill("completed", state="failed")
    file.write_bytes(original)
    backfill("failed")
    assert project.verdicts(1)[-2:] == ["input gone", "identical"]
    assert (project.data_files(), first_txns(project.seals())) == (written, [1])


def created(client: AirflowClient, body: dict[str, Any]) -> int:
    """A backfill's id. On SQLite Airflow may find its database locked, and leave a backfill without runs."""
    while True:
        try:
            return int(client.call("POST", "/backfills", body)["id"])
        except Busy:
            for one in client.call("GET", "/backfills", dag_id=body["dag_id"])["backfills"]:
                if one["completed_at"] is None:
                    client.call("PUT", f"/backfills/{one['id']}/cancel")


def test_the_submit_path_does_the_same_as_the_connected_one(stack: Stack) -> None:
    project = stack.projects["submitted"]
    stack.client.unpause("submitted")
    project.land_some()
    run_id = stack.client.trigger("submitted")
    listed: set[str] = set()
    while stack.client.run("submitted", run_id)["state"] not in FINAL_STATES:
        listed |= {title(int(path.name)) for path in Path("/proc").iterdir() if path.name.isdigit()}
        time.sleep(0.5)
    stack.ends("submitted", run_id)
    project.check()
    assert any("jobs/ingest.py" in line for line in listed), "the jobs were in the list"
    assert not any(CANARY in line for line in listed), "and the connection's password was not"
    written = project.data_files()
    stack.clear("submitted", run_id)
    assert project.verdicts(1) == ["identical", "identical"]
    assert project.data_files() == written


def test_a_consumer_on_the_asset_sees_each_transaction_once_though_events_merge_or_pass_it_by(
    stack: Stack,
) -> None:
    project, client = stack.projects["consumed"], stack.client
    log = project.folder / "warehouse" / "consumed" / "orders" / "log"

    def seen() -> list[int]:
        """The transactions whose rows the consumer has written, over Spark Connect; every row once."""
        table = project.folder / "seen"
        if not (table / "_delta_log" / f"{0:020}.json").exists():
            return []
        rows = sorted(row[0] for row in rows_of(table, ("_txn",)))
        assert rows == sorted(row[0] for row in rows_of(log, ("_txn",)) if row[0] in set(rows))
        return sorted(set(rows))

    for dag in ("consumed", "consumer", "waiter"):
        client.unpause(dag)
    project.land_some()
    stack.go("consumed")
    wait_until(lambda: seen() == [1], what="the first")

    waiting = client.trigger("waiter")
    wait_until(lambda: client.states("waiter", waiting)["wait"] == "deferred", what="a sensor that waits")
    client.unpause("consumer", paused=True)  # The next event finds nobody.
    project.land_some()
    stack.go("consumed")
    stack.ends("waiter", waiting)  # Transaction 2 is there, and the trigger has seen it.
    assert client.xcom("waiter", waiting, "wait") == 3

    client.unpause("consumer")
    project.land_some()
    run_id = stack.go("consumed")
    wait_until(lambda: seen() == [1, 2, 3], what="the two others")
    (event,) = [
        one
        for one in client.call("GET", "/assets/events")["asset_events"]
        if one["source_run_id"] == run_id and one["source_dag_id"] == "consumed"
    ]
    assert event["uri"] == "x-tidemark://consumed/orders"
    facts = event["extra"]
    assert (facts["txn_from"], facts["txn_to"], facts["upper"], facts["verdict"]) == (3, 3, 4, "identical")

    stack.clear("consumed", run_id)  # A proof wakes the consumer again, and there is nothing new to it.
    runs = lambda: client.call("GET", "/dags/consumer/dagRuns")["dag_runs"]  # noqa: E731
    wait_until(lambda: [run["state"] for run in runs()] == ["success"] * 3, what="the consumer's last run")
    assert seen() == [1, 2, 3]
