"""Runs through a real Airflow: by schedule, by hand, cleared, killed, overlapping, over past dates.

Green tasks prove nothing by themselves; each story ends at the tables, the journal and the files, against
what the change files say in plain Python.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import quote

import pytest

from scripts.local_airflow.client import FINAL_STATES
from tests.support.airflow import CANARY, SHARD, Project, Stack, files_with, first_txns
from tests.support.kafka import PASSWORD, Broker
from tests.support.tables import rows_of
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.server, pytest.mark.slow]

JOB = re.compile(r"jobs/(\w+)\.py")


def test_a_scheduled_run_takes_what_has_landed(stack: Stack) -> None:
    project, client = stack.projects["scheduled"], stack.client
    project.land_some()
    client.unpause("scheduled")
    runs = lambda: client.call("GET", "/dags/scheduled/dagRuns")["dag_runs"]  # noqa: E731
    owners = lambda: [run for run in runs() if project.owned(run["dag_run_id"])]  # noqa: E731
    wait_until(lambda: any(run["state"] == "success" for run in owners()), what="a scheduled run")
    client.unpause("scheduled", paused=True)
    # At the turn of a minute two runs begin at once: it is one of them that has it, and all of it.
    (owner,) = owners()
    assert owner["run_type"] == "scheduled"
    assert project.owned(owner["dag_run_id"]) == [1]
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
    told = stack.client.xcom("manual", empty, "checkpoint")
    assert (told["shards"], told["sentence"]) == ({}, "no new transaction")
    said = "loaded transaction 2: 80 read = 80 applied + 0 quarantined"
    assert stack.client.xcom("manual", second, "checkpoint")["sentence"] == said
    assert f"{said}; checkpoint 2" in stack.log("manual", second, "checkpoint")
    assert "transaction 2: identical, 2 digests compared" in stack.log("manual", second, "validate")
    assert [project.verdicts(txn) for txn in (1, 2)] == [["identical"], ["identical"]]


def test_a_run_that_airflow_has_forgotten_is_proven_and_not_done_again(stack: Stack) -> None:
    project, client = stack.projects["forgotten"], stack.client
    client.unpause("forgotten")
    date = "2026-01-05T00:00:00Z"
    project.land_some()
    first = stack.go("forgotten", logical_date=date)
    written = project.data_files()
    client.call("DELETE", f"/dags/forgotten/dagRuns/{quote(first)}")
    project.land_some()  # What has landed since belongs to another date.
    again = stack.go("forgotten", logical_date=date)
    told = client.xcom("forgotten", again, "reclock")
    assert told["owned"] == {"count": 1, "ranges": [[1, 1]]}
    assert (told["recognised"], told["recorded_run_id"]) == (True, first)
    assert "was already done by run" in stack.log("forgotten", again, "reclock")
    assert (project.verdicts(1), project.data_files()) == (["identical", "identical"], written)
    stack.go("forgotten", logical_date="2026-01-06T00:00:00Z")
    project.check()


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
    assert files_with(PASSWORD, *folders) == []


def test_p8_clearing_tasks_of_a_finished_run_proves_it_and_writes_nothing_twice(stack: Stack) -> None:
    project = stack.projects["cleared"]
    stack.client.unpause("cleared")
    project.land_some()
    run_id = stack.go("cleared")
    written = project.data_files()
    project.land_some()  # What has landed since must not get into the cleared run.
    # Clearing reclock clears the whole run, as below; clearing ingest all but its first task.
    for task in ("validate", "upsert", "checkpoint"):
        stack.clear("cleared", run_id, tasks=[task])
        assert project.data_files() == written, f"clearing {task} wrote data"
        assert first_txns(project.seals()) == [1]
    # Clearing validate put the proof before the gate; the others had nothing to prove.
    assert project.verdicts(1) == ["identical"] * 2
    stack.clear("cleared", run_id)
    assert project.verdicts(1) == ["identical"] * 3
    proved = "proved 1: identical, 0 bytes written"
    assert stack.client.xcom("cleared", run_id, "checkpoint")["sentence"] == proved
    assert project.data_files() == written
    stack.go("cleared")
    project.check()


def test_a_task_killed_in_the_middle_is_retried_by_airflow_and_nothing_is_lost_or_doubled(
    stack: Stack,
) -> None:
    project, client = stack.projects["killed"], stack.client
    client.unpause("killed")
    for _ in range(3):
        project.land_some(15_000)
    run_id = client.trigger("killed")
    log = project.folder / "warehouse" / "killed" / SHARD / "log"
    kill_worker(stack, run_id, "ingest", when=lambda: any(log.glob("_txn-*/*")))
    kill_worker(stack, run_id, "upsert", when=lambda: True)
    stack.ends("killed", run_id)
    tries = {name: one["try_number"] for name, one in client.tasks("killed", run_id).items()}
    assert (tries["ingest"], tries["upsert"]) == (2, 2)
    project.check()
    assert first_txns(project.seals()) == [1]
    project.tidemark("maintain", "killed")
    folders = list((project.folder / "warehouse" / "killed" / SHARD / "log").glob("_txn-*/*"))
    assert [folder.name for folder in folders] == [project.seals()[0].token], "no part is left behind"


@pytest.mark.sweep
def test_a_scheduler_that_dies_with_its_tasks_is_started_again_and_nothing_is_lost_or_doubled(
    stack: Stack,
) -> None:
    project, client = stack.projects["orphaned"], stack.client
    client.unpause("orphaned")
    for _ in range(3):
        project.land_some(15_000)
    run_id = client.trigger("orphaned")
    log = project.folder / "warehouse" / "orphaned" / SHARD / "log"
    wait_until(lambda: any(log.glob("_txn-*/*")), what="the middle of ingest", pause_seconds=0.002)
    os.killpg(stack.airflow.running()["scheduler"], signal.SIGKILL)
    wait_until(lambda: stack.airflow.dead() == ["scheduler"], what="the scheduler's end")
    stack.airflow.start()
    # The task's heartbeat has ended with its process: after its timeout the next scheduler tries it again.
    stack.ends("orphaned", run_id)
    assert client.tasks("orphaned", run_id)["ingest"]["try_number"] == 2
    project.check()
    assert first_txns(project.seals()) == [1]


def kill_worker(stack: Stack, run_id: str, task: str, *, when: Callable[[], bool]) -> None:
    """SIGKILL the process that runs the task, once it runs and has come as far as it should."""
    # Airflow is not asked again: its answer may take as long as the task does.
    wanted = f"airflow worker -- {stack.client.tasks('killed', run_id)[task]['id']}"
    workers: list[int] = []

    def found() -> bool:
        workers[:] = [pid for pid in pids() if title(pid).strip() == wanted]
        return bool(workers)

    wait_until(found, what=f"a running {task}", pause_seconds=0.02)
    wait_until(when, what=f"the middle of {task}", pause_seconds=0.002)
    for pid in workers:
        os.kill(pid, signal.SIGKILL)


def pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


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


def test_a_backfill_over_past_dates_does_what_its_reprocess_behavior_says(stack: Stack) -> None:
    project, client = stack.projects["backfilled"], stack.client
    day = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=3)
    dates = {"from_date": day.isoformat(), "to_date": (day + timedelta(days=1)).isoformat()}

    def backfill(behavior: str, *, state: str = "success", by_command: bool = False) -> list[str]:
        """Over two dates; the run of the first must end so. Their run ids, in order."""
        body = {"dag_id": "backfilled", **dates, "reprocess_behavior": behavior, "max_active_runs": 1}
        if by_command:
            typed(stack, *(f"--{name.replace('_', '-')}={value}" for name, value in body.items()))
        else:
            client.call("POST", "/backfills", {**body, "run_backwards": False, "dag_run_conf": {}})
        wait_until(lambda: all(run["state"] in FINAL_STATES for run in runs()), what="the backfill's end")
        # The scheduler looks for backfills that are done every 30 s, and a DAG has one at a time.
        for one in client.call("GET", "/backfills", dag_id="backfilled")["backfills"]:
            if one["completed_at"] is None:
                client.call("PUT", f"/backfills/{one['id']}/cancel")
        found = [run for run in runs() if run["run_type"] == "backfill"]
        found.sort(key=lambda run: run["logical_date"])
        states = [run["state"] for run in found]
        assert states == [state, "success"], stack.story("backfilled", found[0]["dag_run_id"])
        return [run["dag_run_id"] for run in found]

    client.unpause("backfilled")
    runs = lambda: client.call("GET", "/dags/backfilled/dagRuns")["dag_runs"]  # noqa: E731
    # The schedule's own run of today finds nothing yet, and owns nothing.
    wait_until(lambda: [run["state"] for run in runs()] == ["success"], what="today's scheduled run")
    file = project.land_some()
    run_ids = backfill("none", by_command=True)
    project.check()
    assert [project.owned(run_id) for run_id in run_ids] == [[1], []]
    written, verdicts = project.data_files(), project.verdicts(1)
    for behavior in ("none", "failed"):
        backfill(behavior)
        assert project.verdicts(1) == verdicts, f"{behavior} leaves a run that succeeded alone"
    assert backfill("completed") == run_ids
    assert project.verdicts(1) == [*verdicts, "identical"], "completed replays it, and proves it"
    original = file.read_bytes()
    file.write_bytes(original.replace(b"new", b"old"))
    backfill("completed", state="failed")
    file.write_bytes(original)
    backfill("failed")
    assert project.verdicts(1)[-2:] == ["input gone", "identical"]
    assert (project.data_files(), first_txns(project.seals())) == (written, [1])
    project.check()


def typed(stack: Stack, *arguments: str) -> None:
    """`airflow backfill create`, as a person types it."""
    command = [sys.executable, "-m", "airflow", "backfill", "create", *arguments]
    environment = stack.airflow.environment()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]


def test_the_submit_path_does_the_same_as_the_connected_one(stack: Stack) -> None:
    project, client = stack.projects["submitted"], stack.client
    for dag in ("submitted", "replay_submitted"):
        client.unpause(dag)
    project.land_some()
    run_id = client.trigger("submitted")
    kill_by_marking(stack, project, run_id)
    client.clear("submitted", run_id)
    listed: set[str] = set()
    while client.run("submitted", run_id)["state"] not in FINAL_STATES:
        listed |= set(map(title, pids()))
        time.sleep(0.5)
    stack.ends("submitted", run_id)
    project.check()
    submitted = {found[1] for line in listed if run_id in line and (found := JOB.search(line))}
    assert submitted == {"ingest"}, "one application does all that needs Spark"
    assert not any(CANARY in line for line in listed), "and the connection's password is in no list"
    written = project.data_files()
    conf = {"pipeline": "submitted", "txn_from": 1, "txn_to": None, "mode": "verify", "dry_run": False}
    replay = stack.go("replay_submitted", conf=conf)
    assert client.xcom("replay_submitted", replay, "report") == {"identical": 1}
    assert project.verdicts(1) == ["identical", "identical"]
    assert project.data_files() == written
    assert stack.places_of(project, CANARY) == set()
    project.check()


def kill_by_marking(stack: Stack, project: Project, run_id: str) -> None:
    """Mark a running ingest failed, as one does in the UI: its Spark process ends, and nothing is sealed."""

    def spark() -> list[int]:
        return [pid for pid in pids() if "jobs/ingest.py" in title(pid) and run_id in title(pid)]

    wait_until(lambda: bool(spark()), what="the submitted job")
    path = f"/dags/submitted/dagRuns/{quote(run_id)}/taskInstances/ingest"
    stack.client.call("PATCH", path, {"new_state": "failed"})
    wait_until(lambda: not spark(), what="the end of the submitted job")
    stack.ends("submitted", run_id, state="failed")
    assert stack.client.states("submitted", run_id)["upsert"] == "upstream_failed"
    assert project.seals() == []


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

    stack.clear("consumed", run_id)  # A proof that changes nothing announces nothing.
    assert client.xcom("consumed", run_id, "checkpoint")["unchanged"] == [3]
    assert len(client.call("GET", "/dags/consumer/dagRuns")["dag_runs"]) == 2
    assert seen() == [1, 2, 3]
    project.check()
