"""A whole stack for the tests: a warm Spark, an Airflow with all its parts, and pipelines of their own.

The tests drive it through the REST API, as the UI does, and look at what is durable: tables, journal, files.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import psycopg
import yaml
from deltalake import DeltaTable, QueryBuilder

from scripts.local_airflow.client import AirflowClient
from scripts.local_airflow.embedded import USER as ADMIN
from scripts.local_airflow.embedded import EmbeddedAirflow
from scripts.local_airflow.processes import free_port
from tests.support import ROOT
from tests.support.kafka import PASSWORD, USER, Broker
from tests.support.tables import Row, bodies_of, bound_files, rows_of
from tests.support.waiting import SECONDS_MAX, wait_until
from tidemark.app.tasks import open_pipeline
from tidemark.core.ids import ShardId, Txn
from tidemark.core.ledger import JournalEntry
from tidemark.core.seal import Seal
from tidemark.runtime.machine import jars_folder
from tidemark.spark.session import SHORT_JOBS

SHARD = ShardId("orders")
TASKS = ("reclock", "ingest", "validate", "upsert", "checkpoint")
TEMPLATE: Mapping[str, Any] = {
    "schedule": None,
    "source": {"type": "files", "path": "landing", "format": "json", "settle_seconds": 0},
    "warehouse": "warehouse",
    "shards": [
        {
            "name": str(SHARD),
            "schema": "id BIGINT NOT NULL, status STRING, amount DOUBLE",
            "keys": ["id"],
            "apply_as_deletes": "op = 'D'",
        }
    ],
}
DAGS = """\
from pathlib import Path
from tidemark.airflow import health_dag, maintain_dag, pipeline_dags, replace_dag, replay_dag

folder = Path({folder!r})
one_compiler = {{"conf": {confs!r}}}
args = {{"retries": 2, "retry_delay": 1, **one_compiler}}
for path in sorted(folder.iterdir()):
    conn = "spark_default" if path.name.startswith("submit") else "spark_connect_default"
    globals().update(
        pipeline_dags(path / "pipelines", conn_id=conn, default_args=args, max_active_runs=2)
    )
    if path.name == "replayed":
        globals().update(replay_dag(path / "pipelines", conn_id=conn))
        globals().update(maintain_dag(path / "pipelines", conn_id=conn, schedule=None, default_args=args))
    if path.name == "replaced":
        globals().update(replace_dag(path / "pipelines", conn_id=conn, default_args=args))
    if path.name == "living":
        globals().update(replace_dag(path / "pipelines", conn_id=conn, dag_id="replace_living"))
    if path.name == "red":
        globals().update(health_dag(path / "pipelines", schedule=None))
    if path.name == "decided":  # Both stay paused: what is asked of them is looked at, and not done.
        globals().update(replay_dag(path / "pipelines", conn_id=conn, dag_id="replay_decided"))
        globals().update(replace_dag(path / "pipelines", conn_id=conn, dag_id="replace_decided"))
    if path.name == "submitted":
        how = {{"dag_id": "replay_submitted", "default_args": one_compiler}}
        globals().update(replay_dag(path / "pipelines", conn_id=conn, **how))
"""
CONSUMER = """\
# A downstream DAG: the event only wakes it, and it reads what is above its own frontier.
from pathlib import Path
from airflow.sdk import dag
from tidemark.airflow import ShardUpperSensor, shard_asset, shard_task

FOLDER = Path({folder!r})
FILE = FOLDER / "pipelines" / "consumed.yaml"

@dag(schedule=[shard_asset("consumed", "orders")], catchup=False, max_active_runs=1)
def consumer():
    @shard_task(pipeline_file=FILE, shard="orders", consumer="seen", conn_id="spark_connect_default")
    def consume(batch):
        rows = batch.frame.write.format("delta").options(**batch.once)
        rows.mode("append").save(str(FOLDER / "seen"))
    consume()

consumer()

@dag(schedule=None)
def waiter():
    ShardUpperSensor(task_id="wait", pipeline_file=FILE, shard="orders", txn=2, poke_interval=1)

waiter()
"""
EXPECTATIONS = [
    {
        "type": "expect_column_values_to_be_between",
        "kwargs": {"column": "amount", "min_value": 0},
        "action": "fail",
    }
]
HOLDING = {
    "type": "expect_column_values_to_be_in_set",
    "kwargs": {"column": "status", "value_set": ["new", "paid", "sent"]},
    "action": "pause",
}
PRELOADED = """\
# Task processes are forked from the scheduler: what it has imported costs them nothing.
import shutil
import sys
import tempfile

if "scheduler" in sys.argv:
    import great_expectations
    import pyspark.sql.connect.session

    import tidemark.airflow.operators
    import tidemark.app.deployment
    import tidemark.quality.checks
    import tidemark.spark.plane
    import tidemark.spark.state
"""
CANARY = "canary-7d1f0c2ab94e"
VIEWER = "viewer"
OTHER_DAGS = (
    "replay", "replace", "replay_submitted", "replay_decided", "replace_decided", "replace_living",
    "maintain", "health", "consumer", "waiter",
)  # fmt: skip


@dataclass
class Project:
    """One pipeline in a folder of its own, and what its source said, in plain Python."""

    folder: Path
    name: str
    files: int = 0
    truth: dict[int, tuple[str, float]] = field(default_factory=dict)

    @classmethod
    def make(cls, root: Path, name: str, **settings: Any) -> Project:
        folder = root / name
        (folder / "pipelines").mkdir(parents=True)
        (folder / "landing").mkdir()
        config = {"name": name, **TEMPLATE, **settings}
        (folder / "pipelines" / f"{name}.yaml").write_text(yaml.safe_dump(config))
        return cls(folder, name)

    @property
    def file(self) -> Path:
        return self.folder / "pipelines" / f"{self.name}.yaml"

    def land(self, records: Iterable[Mapping[str, Any]]) -> Path:
        """A change file, whole from the moment it has its name."""
        self.files += 1
        path = self.folder / "landing" / f"{self.files:04}.json"
        records = list(records)
        hidden = path.with_suffix(".tmp")
        hidden.write_text("".join(json.dumps(record) + "\n" for record in records))
        hidden.rename(path)
        for record in records:
            if record["op"] == "D":
                self.truth.pop(record["id"], None)
            else:
                self.truth[record["id"]] = (record["status"], record["amount"])
        return path

    def land_some(self, count: int = 40, *, seed: int = 0) -> Path:
        rng = random.Random(f"{self.name}/{self.files}/{seed}")
        return self.land(
            {
                "id": rng.randrange(60),
                "status": rng.choice(("new", "paid", "sent")),
                "amount": rng.randrange(10_000) / 4,
                "op": "D" if rng.random() < 0.15 else "U",
            }
            for _ in range(count)
        )

    # What is durable, read without the code that wrote it where that matters.

    def state(self) -> dict[int, tuple[str, float]]:
        """The state's rows, by delta-rs's own query engine."""
        table = DeltaTable(str(self.folder / "warehouse" / self.name / SHARD / "state"))
        found = QueryBuilder().register("t", table).execute("SELECT id, status, amount FROM t").read_all()
        rows = list(zip(*(column.to_pylist() for column in found.columns), strict=True))
        assert len({row[0] for row in rows}) == len(rows), "a key is there twice"
        return {row[0]: (row[1], row[2]) for row in rows}

    def check(self) -> None:
        """State, log, seals and journal say exactly what the files say; worked out from the files by hand."""
        assert self.state() == self.truth
        tables = self.folder / "warehouse" / self.name
        control, log = tables / "_control", Counter[Row]()
        read: dict[int, int] = {}
        for txn, files in bound_files(control).items():
            names = [name for _, name in sorted(files)]
            lines = [
                line for name in names for line in (self.folder / "landing" / name).read_text().splitlines()
            ]
            read[txn] = len(lines)
            last = {record["id"]: record for record in map(json.loads, lines)}
            log += Counter(logged(record, txn) for record in last.values())
        columns = ("id", "status", "amount", "_txn", "_op")
        assert Counter(rows_of(tables / SHARD / "log", columns)) == log
        seals = {body["txn"]: body["source"]["count"] for body in bodies_of(control / "history", "seal")}
        assert seals == read, "a seal has counted other records than its files have lines"
        verdicts = {
            body["txn"]: body["detail"]["verdict"]
            for body in bodies_of(control / "journal")
            if "verdict" in body["detail"]
        }
        assert verdicts == dict.fromkeys(read, "identical"), "the last verdict on each transaction"

    @property
    def control(self) -> Any:
        return open_pipeline(self.file, None).control

    def seals(self) -> list[Seal]:
        seals = self.control.seals
        return list(seals.read(1, seals.head().upper))

    def journal(self, txn: int) -> list[JournalEntry]:
        journal = self.control.journal
        journal.head()
        return list(journal.find(str(txn)))

    def verdicts(self, txn: int) -> list[str]:
        return [entry.detail["verdict"] for entry in self.journal(txn) if "verdict" in entry.detail]

    def owned(self, run_id: str) -> list[int]:
        bindings = self.control.bindings
        found = bindings.read(1, bindings.head().upper)
        return [one.txn for one in found if one.owner.run_id == run_id]

    def data_files(self) -> dict[str, tuple[int, int]]:
        """Every file of the shard's tables, with size and time of change."""
        shard = self.folder / "warehouse" / self.name / SHARD
        return {
            str(path.relative_to(shard)): (path.stat().st_size, path.stat().st_mtime_ns)
            for path in shard.rglob("*")
            if path.is_file()
        }

    def part(self, txn: int) -> Path:
        """The file of a sealed part."""
        (part,) = self.seals()[txn - 1].shards[SHARD].parts
        return self.folder / "warehouse" / self.name / SHARD / "log" / part.path

    def tidemark(self, *arguments: str) -> str:
        """The command, as a person runs it; it must succeed."""
        done = subprocess.run(
            [sys.executable, "-m", "tidemark.cli", *arguments],
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@dataclass
class Stack:
    """The running parts."""

    root: Path
    airflow: EmbeddedAirflow
    client: AirflowClient
    projects: dict[str, Project]

    def go(self, name: str, **kwargs: Any) -> str:
        """Trigger a run of a pipeline and wait for its end; it must succeed."""
        run_id = self.client.trigger(name, **kwargs)
        self.ends(name, run_id)
        return run_id

    def ends(self, name: str, run_id: str, *, state: str = "success") -> None:
        found = self.client.wait(name, run_id)
        assert found == state, self.story(name, run_id)

    def clear(self, name: str, run_id: str, *, state: str = "success", **kwargs: Any) -> None:
        self.client.clear(name, run_id, **kwargs)
        self.ends(name, run_id, state=state)

    def story(self, name: str, run_id: str) -> str:
        """What the tasks of a run did, with the end of the logs of those that failed."""
        lines = []
        for task, one in self.client.tasks(name, run_id).items():
            lines.append(f"{task}: {one['state']} (try {one['try_number']})")
            if one["state"] in ("failed", "up_for_retry"):
                lines.append(self.client.log(name, run_id, task, try_number=one["try_number"])[-3000:])
        return "\n".join(lines)

    def places_of(self, project: Project, text: str) -> set[str]:
        """Where a text is found: files by folder, tables of Airflow's database, control tables, decoded."""
        folders = {
            "logs": self.airflow.home / "logs",
            "spark": self.airflow.home / "spark",
            "project": project.folder,
            "docs": self.root / "tidemark" / "data-docs" / project.name,
        }
        found = {name for name, folder in folders.items() if files_with(text, folder)}
        assert self.airflow.database is not None, "nothing but PostgreSQL is looked into here"
        with psycopg.connect(self.airflow.database.conninfo("airflow")) as database:
            tables = database.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
            for (table,) in tables.fetchall():
                rows = database.execute(f'SELECT "{table}"::text FROM "{table}"')
                found |= {f"airflow.{table}" for row in rows if text in repr(row)}
        tables_of = project.folder / "warehouse" / project.name / "_control"
        if files_with(text, tables_of / "settings"):
            found.add("control.settings")
        for control in tables_of.iterdir():
            rows = rows_of(control, ("key", "token", "run_id", "body"))
            found |= {f"control.{control.name}" for row in rows if text in repr(row)}
        return found

    @property
    def viewer_token(self) -> str:
        """A login of a user who may look at everything and change nothing; Airflow made up the password."""
        passwords = json.loads((self.airflow.home / "secrets" / "passwords.json").read_text())
        return self._token_of(VIEWER, passwords[VIEWER])

    def _token_of(self, user: str, password: str) -> str:
        login = json.dumps({"username": user, "password": password}).encode()
        request = urllib.request.Request(f"{self.airflow.url}/auth/token", data=login, method="POST")
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=SECONDS_MAX) as reply:
            return str(json.load(reply)["access_token"])

    @property
    def editor_token(self) -> str:
        """A login of the user who may change everything."""
        return self._token_of(ADMIN, self.airflow.password)

    def act(
        self, name: str, verb: str, token: str, *, origin: str | None = None, **body: Any
    ) -> tuple[int, Any]:
        """An action on the pages, as a browser with this login sends it; the status, and what was said."""
        address = f"{self.airflow.url}/tidemark/api/pipelines/{name}/actions/{verb}"
        request = urllib.request.Request(address, data=json.dumps(body).encode(), method="POST")
        request.add_header("Content-Type", "application/json")
        if token:
            request.add_header("Cookie", f"_token={token}")
        request.add_header("Origin", origin or self.airflow.url)
        try:
            with urllib.request.urlopen(request, timeout=SECONDS_MAX) as reply:
                return reply.status, json.load(reply)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def log(self, name: str, run_id: str, task: str) -> str:
        tries = self.client.tasks(name, run_id)[task]["try_number"]
        return self.client.log(name, run_id, task, try_number=tries)


def files_with(text: str, *folders: Path) -> list[Path]:
    """The files below these folders that have a text. Airflow and Spark go on meanwhile: what they remove
    while it is looked for is passed over."""
    found = []
    for place, _, names in chain.from_iterable(map(os.walk, folders)):
        for path in (Path(place) / name for name in names):
            with suppress(FileNotFoundError):
                if path.is_file() and text.encode() in path.read_bytes():
                    found.append(path)
    return found


def logged(record: Mapping[str, Any], txn: int) -> Row:
    """A record's row in the log: of a delete, the key alone."""
    deletes = record["op"] == "D"
    values = (None, None) if deletes else (record["status"], record["amount"])
    return (record["id"], *values, txn, "D" if deletes else "U")


def first_txns(seals: Iterable[Seal]) -> list[Txn]:
    return [seal.txn for seal in seals]


def make_projects(root: Path) -> dict[str, Project]:
    """A pipeline for each story, so that none disturbs another."""
    names = (
        "scheduled", "manual", "cleared", "killed", "overlapping", "backfilled", "replayed",
        "changed", "consumed", "submitted", "replaced", "living", "secret", "forgotten", "marked", "shown",
        "orphaned",
    )  # fmt: skip
    schedules = {"scheduled": "* * * * *", "backfilled": "@daily", "living": "@continuous"}
    projects = {name: Project.make(root, name, schedule=schedules.get(name)) for name in names}
    topic = {"type": "kafka", "kafka_config_id": "kafka_e2e", "topics": ["orders"]}
    projects["streamed"] = Project.make(root, "streamed", source=topic)
    for name in ("red", "asked", "decided"):
        projects[name] = Project.make(root, name, **({"on_red": "ask"} if name == "asked" else {}))
        config = yaml.safe_load(projects[name].file.read_text())
        config["shards"][0]["expectations"] = [*EXPECTATIONS, *([HOLDING] if name == "decided" else [])]
        projects[name].file.write_text(yaml.safe_dump(config))
    return projects


def wait_for_dags(client: AirflowClient, names: set[str]) -> None:
    """Airflow is healthy before it has parsed its DAG files: until then it knows none of them."""

    def known() -> bool:
        errors = client.call("GET", "/importErrors")["import_errors"]
        assert errors == [], errors
        return names <= {one["dag_id"] for one in client.call("GET", "/dags", limit=100)["dags"]}

    wait_until(known, what="every DAG", pause_seconds=0.5)


@contextmanager
def running_stack(root: Path, broker: Broker) -> Iterator[Stack]:
    """Start everything below a folder, and stop it again."""
    projects = make_projects(root / "projects")
    dags = root / "dags"
    dags.mkdir()
    (dags / "pipelines.py").write_text(DAGS.format(folder=str(root / "projects"), confs=SHORT_JOBS))
    (dags / "consumer.py").write_text(CONSUMER.format(folder=str(projects["consumed"].folder)))
    settings = root / "airflow_settings.yaml"
    kafka = {
        "bootstrap.servers": broker.secured,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": USER,
        "sasl.password": PASSWORD,
    }
    connections = [
        {"conn_id": "spark_default", "conn_type": "spark", "conn_host": "local[*]", "conn_password": CANARY},
        {"conn_id": "kafka_e2e", "conn_type": "kafka", "conn_extra": kafka},
    ]
    settings.write_text(yaml.safe_dump({"airflow": {"connections": connections}}))
    home = Path(tempfile.mkdtemp(prefix="tidemark-airflow-"))
    home.chmod(0o711)  # Root's database runs as nobody, who can't reach the folders that pytest makes.
    airflow = EmbeddedAirflow(
        home=home / "airflow",
        dags=dags,
        settings=settings,
        plugins=ROOT / "plugins",
        port=free_port(),
        spark_port=free_port(),
        spark_confs=SHORT_JOBS,
        environ={
            "TIDEMARK_HOME": str(root / "tidemark"),
            "TIDEMARK_TEST_SECRET": CANARY,
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": f"{ADMIN}:admin,{VIEWER}:viewer",
            # The DAG files stay as they are.
            "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "3600",
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "60",
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "5",
        },
    )
    (root / "tidemark").mkdir()
    (root / "tidemark" / "jars").symlink_to(jars_folder())
    # The warm server's token is the canary too: made beforehand, where it would be made otherwise.
    (airflow.home / "secrets").mkdir(parents=True, mode=0o700)
    (airflow.home / "secrets" / "spark").write_text(CANARY)
    (airflow.home / "config").mkdir()
    (airflow.home / "config" / "airflow_local_settings.py").write_text(PRELOADED)
    airflow.prepare()
    try:
        airflow.start()
        client = airflow.client()
        wait_for_dags(client, {*projects, *OTHER_DAGS})
        yield Stack(root, airflow, client, projects)
    finally:
        airflow.stop()
        shutil.rmtree(home, ignore_errors=True)
