"""`make demo`: a small shop through real DAG runs and all that can go wrong, checked by DuckDB.

An Airflow of its own, in .tidemark/airflow, runs the `demo` pipeline (include/pipelines/demo.yaml) on a warm
Spark: a first load; updates, deletes, late and broken records; Spark killed in the middle of a write, and
Airflow's retry; two runs at once; a clear that proves itself and writes nothing; one changed byte that turns
the gate red, and its repair. Runs again from any state; `make ui` shows what happened.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import duckdb
from deltalake import DeltaTable, QueryBuilder
from rich.console import Console
from rich.live import Live
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from scripts.local_airflow.client import FINAL_STATES, AirflowClient
from scripts.local_airflow.embedded import SPARK, EmbeddedAirflow
from scripts.local_airflow.processes import free_port
from scripts.local_airflow.project import project_airflow
from tidemark.app.tasks import open_pipeline
from tidemark.config import load_pipeline
from tidemark.spark.connect_server import TOKEN_VARIABLE
from tidemark.spark.session import SHORT_JOBS

PROJECT = Path(__file__).resolve().parents[1]
PIPELINE = PROJECT / "include" / "pipelines" / "demo.yaml"
# A user's own settings would send the demo's rows into their tables, and be what the checks look at.
for setting in ("TIDEMARK_WAREHOUSE", "TIDEMARK_ROOT", "TIDEMARK_PIPELINES", "TIDEMARK_ENVIRONMENT"):
    os.environ.pop(setting, None)
CONFIG = load_pipeline(PIPELINE)
LANDING = Path(CONFIG.source_location)
TABLES = Path(CONFIG.warehouse_location) / CONFIG.name
DAG = "demo"
STARTER = "demo"
TASKS = ("reclock", "ingest", "validate", "upsert", "checkpoint")
MARKS = {"success": "[green]✓[/]", "failed": "[red]✗[/]", "running": "[yellow]…[/]", "up_for_retry": "↻"}
RUN_SECONDS_MAX = 600
CITIES = ("London", "Göttingen", "New York", "Kyiv", "Nairobi", "Lima")
STATUSES = ("new", "paid", "sent", "returned")
# What the tables must hold, said once more in SQL that shares nothing with the product.
EXPECTED = """
    SELECT {columns} FROM (
        SELECT *, row_number() OVER (PARTITION BY id ORDER BY version DESC, filename DESC) AS place
        FROM read_json('{folder}/*.json', format='newline_delimited', filename=true, columns={{
            shop_table: 'VARCHAR', id: 'BIGINT', name: 'VARCHAR', city: 'VARCHAR', customer: 'BIGINT',
            status: 'VARCHAR', amount: 'DECIMAL(12,2)', version: 'INTEGER', op: 'VARCHAR'}},
            ignore_errors=true)
        WHERE shop_table = '{table}' AND id IS NOT NULL
    ) WHERE place = 1 AND op IS DISTINCT FROM 'D' ORDER BY id
"""
console = Console()


def say(text: str) -> None:
    console.print(f"  {text}", highlight=False)


def step(title: str) -> None:
    console.rule(f"[bold]{title}", align="left")


class Shop:
    """Writes change files as a shop's export would."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rng = random.Random(7)
        self.versions: dict[tuple[str, int], int] = {}
        self.files = 0

    def record(self, table: str, number: int, *, late: bool = False, gone: bool = False) -> dict[str, object]:
        """The next version of a row, or an old one that comes late."""
        version = self.versions.get((table, number), 0)
        version = max(1, version - 1) if late else version + 1
        self.versions[(table, number)] = max(version, self.versions.get((table, number), 0))
        base: dict[str, object] = {"shop_table": table, "id": number, "version": version}
        if gone:
            return {**base, "op": "D"}
        if table == "customers":
            return {**base, "name": f"customer {number}", "city": self.rng.choice(CITIES)}
        amount = f"{self.rng.randint(1, 99_999) / 100:.2f}"
        values = {"customer": self.rng.randint(0, 999), "status": self.rng.choice(STATUSES)}
        return {**base, **values, "amount": float(amount)}

    def changes(self, count: int) -> Iterator[dict[str, object]]:
        for _ in range(count):
            table = self.rng.choice(("customers", "orders"))
            luck = self.rng.random()
            yield self.record(table, self.rng.randint(0, 1_999), late=luck < 0.05, gone=luck > 0.92)

    def land(self, records: list[dict[str, object]], *, raw: tuple[str, ...] = (), files: int = 2) -> None:
        lines = [json.dumps(record, ensure_ascii=False) for record in records] + list(raw)
        for index in range(files):
            self.files += 1
            made = self.folder / f".{self.files:04}.tmp"
            made.write_text("".join(f"{line}\n" for line in lines[index::files]), encoding="utf-8")
            made.rename(self.folder / f"{self.files:04}.json")


class Demo:
    """The pipeline's runs, as someone at the UI would start and watch them."""

    def __init__(self, airflow: EmbeddedAirflow) -> None:
        self.airflow = airflow
        self.client: AirflowClient = airflow.client()
        self.good = True

    def expect(self, holds: bool, what: str) -> None:
        self.good = self.good and holds
        say(f"{'[green]yes[/]' if holds else '[red]NO[/]'}  {what}")

    def line(self, run_id: str, began: float) -> Text:
        """The run's tasks, one mark each."""
        found = self.client.tasks(DAG, run_id)
        marks = []
        for task in TASKS:
            one = found.get(task) or {}
            tries = f" (try {one['try_number']})" if (one.get("try_number") or 0) > 1 else ""
            marks.append(f"{task} {MARKS.get(one.get('state') or '', '·')}{tries}")
        return Text.from_markup(f"  {'  '.join(marks)}   {time.monotonic() - began:.0f} s")

    def watch(self, *run_ids: str) -> list[str]:
        """Show the runs until they have ended; their states."""
        began = time.monotonic()
        for run_id in run_ids:
            with Live(self.line(run_id, began), console=console, refresh_per_second=2) as live:
                while self.client.run(DAG, run_id)["state"] not in FINAL_STATES:
                    if time.monotonic() - began > RUN_SECONDS_MAX:
                        raise SystemExit(f"run {run_id} has not ended; see `make ui`")
                    time.sleep(0.5)
                    live.update(self.line(run_id, began))
                live.update(self.line(run_id, began))
            if not console.is_terminal:
                console.print()  # Into a file, the last picture comes without the end of its line.
        return [self.client.run(DAG, run_id)["state"] for run_id in run_ids]

    def run(self) -> str:
        run_id = self.client.trigger(DAG)
        (state,) = self.watch(run_id)
        self.expect(state == "success", f"run {run_id} is green")
        return run_id

    def tell(self, run_id: str) -> list[tuple[int, int]]:
        """Say what the run's transactions read, applied and quarantined; returns (read, bad) of each."""
        told: list[tuple[int, int]] = []
        control = open_pipeline(PIPELINE, None).control
        bindings = control.bindings.read(1, control.bindings.head().upper)
        owned = {one.txn for one in bindings if one.owner.run_id == run_id}
        for seal in control.seals.read(1, control.seals.head().upper):
            if seal.txn in owned:
                bad = sum(part.digest.count for name, part in seal.shards.items() if name == "quarantine")
                read = seal.source.count
                say(f"transaction {seal.txn}: {read:,} read = {read - bad:,} applied + {bad} quarantined")
                told.append((read, bad))
        return told

    def tries(self, run_id: str) -> int:
        """How often the task was tried that was tried most."""
        return max(one["try_number"] for one in self.client.tasks(DAG, run_id).values())

    def red_message(self, run_id: str) -> str:
        """What the gate says in its task's log."""
        tries = self.client.tasks(DAG, run_id)["validate"]["try_number"]
        log = self.client.log(DAG, run_id, "validate", try_number=tries).replace("\\n", "\n")
        found = re.search(r"the gate is red:.*?--mode repair", log, re.DOTALL)
        return found.group() if found else ""

    def check(self) -> None:
        """Every row of the states, against DuckDB's own answer over the files."""
        for table in ("customers", "orders"):
            columns = ", ".join(
                column.name for column in DeltaTable(TABLES / table / "state").schema().fields
            )
            query = EXPECTED.format(columns=columns, folder=LANDING, table=table)
            expected = duckdb.sql(query).fetchall()
            state = QueryBuilder().register("t", DeltaTable(TABLES / table / "state"))
            found = state.execute(f"SELECT {columns} FROM t ORDER BY id").read_all()
            rows = list(zip(*(column.to_pylist() for column in found.columns), strict=True))
            self.expect(rows == expected, f"{table}: {len(rows):,} rows, equal to DuckDB's own answer")


def found_airflow() -> tuple[EmbeddedAirflow, bool]:
    """The project's Airflow, and whether the demo is to stop it: not if it runs for someone already."""
    airflow = project_airflow(spark_confs=SHORT_JOBS)
    if airflow.running() and airflow.starter == STARTER:
        airflow.stop()  # A demo that was killed has left it behind.
    if airflow.running():
        return airflow, False
    ports = {} if "PORT" in os.environ else {"port": free_port(), "spark_port": free_port()}
    airflow = project_airflow(spark_confs=SHORT_JOBS, starter=STARTER, **ports)
    return airflow, True


def prepare(airflow: EmbeddedAirflow) -> None:
    """Bring Airflow up, without a run of before, and with an empty warehouse."""
    with console.status("starting Airflow and Spark (about a minute)"):
        airflow.prepare(at_rest=[DAG])
        airflow.start()
    client = airflow.client()
    with console.status("waiting for the DAGs"):
        deadline = time.monotonic() + 120
        while DAG not in {one["dag_id"] for one in client.call("GET", "/dags", limit=100)["dags"]}:
            if time.monotonic() > deadline:
                raise SystemExit(f"Airflow did not find the DAG: {client.call('GET', '/importErrors')}")
            time.sleep(1)
    client.unpause(DAG, paused=True)
    while runs := client.call("GET", f"/dags/{DAG}/dagRuns", limit=100)["dag_runs"]:
        for run in runs:  # What they were about goes with the warehouse.
            client.call("DELETE", f"/dags/{DAG}/dagRuns/{quote(run['dag_run_id'])}")
    for folder in (LANDING, TABLES):
        shutil.rmtree(folder, ignore_errors=True)
    LANDING.mkdir(parents=True)
    client.unpause(DAG)


def begun_parts() -> set[Path]:
    """What is in the folders of attempts; Spark may remove some of it while it is listed."""
    return {
        Path(place) / name
        for place, folders, files in os.walk(TABLES)
        if Path(place).parent.name.startswith("_txn-")
        for name in (*folders, *files)
    }


def kill_spark_while_it_writes(airflow: EmbeddedAirflow) -> bool:
    """SIGKILL the Spark server as soon as a new part is being written; then start it again."""
    before = begun_parts()
    deadline = time.monotonic() + 240
    while not begun_parts() - before:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    os.killpg(airflow.running()[SPARK], signal.SIGKILL)
    while SPARK in airflow.running():
        time.sleep(0.1)
    say("Spark is dead, in the middle of a write; starting it again, while Airflow retries")
    airflow.start_spark()
    return True


def bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def change_a_byte(folder: Path) -> Path:
    part = min(folder.rglob("part-*.parquet"))
    data = bytearray(part.read_bytes())
    data[len(data) // 3] ^= 1
    part.write_bytes(bytes(data))
    return part


def first_rows(name: str) -> Table:
    """The first rows of a state, and how many there are."""
    state = QueryBuilder().register("t", DeltaTable(TABLES / name / "state"))
    rows = state.execute("SELECT * FROM t ORDER BY id LIMIT 3").read_all()
    (count,) = state.execute("SELECT count(*) FROM t").read_all().column(0).to_pylist()
    table = Table(title=f"{name}: {count:,} rows", title_justify="left", box=None, pad_edge=False)
    for column in rows.column_names:
        table.add_column(column)
    for row in zip(*(column.to_pylist() for column in rows.columns), strict=True):
        table.add_row(*(Text(str(value)) for value in row))
    return table


def journal_table() -> Table:
    """What happened, as the journal has it."""
    control = open_pipeline(PIPELINE, None).control
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("txn", "event", "verdict", "run"):
        table.add_column(column)
    for entry in control.journal.read(1, control.journal.head().upper):
        told = [
            str(entry.txn),
            str(entry.event),
            entry.detail.get("verdict", ""),
            entry.detail.get("run", ""),
        ]
        table.add_row(*map(Text, told))
    return table


def tell_the_story(demo: Demo, shop: Shop) -> None:
    step("1. First load")
    shop.land([shop.record(t, n) for t in ("customers", "orders") for n in range(2_000)], files=4)
    demo.tell(demo.run())

    step("2. Updates, deletes, late and broken records")
    broken = (
        '{"shop_table": "orders", "id": "one", "version": 1}',
        '{"shop_table": "customers", "id": 5, "ver',
    )
    shop.land(list(shop.changes(998)), raw=broken)
    second = demo.run()
    demo.expect(demo.tell(second) == [(1_000, 2)], "1,000 read = 998 applied + 2 quarantined")

    step("3. Spark killed in the middle of a write, and Airflow's retry")
    shop.land(list(shop.changes(20_000)))
    run_id = demo.client.trigger(DAG)
    killed = kill_spark_while_it_writes(demo.airflow)
    (state,) = demo.watch(run_id)
    demo.expect(killed and state == "success", "killed, and green all the same")
    demo.expect(demo.tries(run_id) > 1, "by Airflow's retry")
    demo.tell(run_id)

    step("4. Two runs at once")
    shop.land(list(shop.changes(500)))
    left = demo.client.trigger(DAG)
    time.sleep(2)
    shop.land(list(shop.changes(500)))
    right = demo.client.trigger(DAG)
    demo.expect(demo.watch(left, right) == ["success", "success"], "both are green")
    demo.tell(left)
    demo.tell(right)

    step("5. A clear: the recorded input is read again and proven")
    before = bytes_in(TABLES / "orders") + bytes_in(TABLES / "customers")
    demo.client.clear(DAG, second)
    (state,) = demo.watch(second)
    written = bytes_in(TABLES / "orders") + bytes_in(TABLES / "customers") - before
    demo.expect(state == "success", "identical")
    demo.expect(written == 0, f"{written} bytes written")

    step("6. One changed byte turns the gate red")
    part = change_a_byte(TABLES / "orders" / "log" / "_txn-00000000000000000002")
    demo.client.clear(DAG, second)
    (state,) = demo.watch(second)
    demo.expect(state == "failed", f"red: {part.name[:24]}… is not what was sealed, and downstream waits")
    message = demo.red_message(second)
    demo.expect("endpoint shard:orders" in message, "and it says what is wrong:")
    console.print(Padding(Text(message, style="red"), (0, 6)))
    command = ["tidemark", "replay", str(PIPELINE), "--from", "2", "--to", "2", "--mode", "repair"]
    say(f"$ {' '.join([*command[:2], 'demo', *command[3:]])}")
    warm = {
        "TIDEMARK_SPARK_MASTER": f"sc://localhost:{demo.airflow.spark_port}",
        TOKEN_VARIABLE: demo.airflow.secret("spark"),
    }
    line = [sys.executable, "-m", "tidemark.cli", *command[1:]]
    done = subprocess.run(line, env={**os.environ, **warm}, check=False)
    demo.client.clear(DAG, second)
    (state,) = demo.watch(second)
    demo.expect(done.returncode == 0 and state == "success", "repaired, cleared again, identical")


def main() -> int:
    began = time.monotonic()
    airflow, ours = found_airflow()
    try:
        prepare(airflow)
        demo = Demo(airflow)
        tell_the_story(demo, Shop(LANDING))
        step("7. What the tables hold, and what the journal says")
        demo.check()
        for table in ("customers", "orders"):
            console.print(first_rows(table))
        console.print(journal_table())
    finally:
        if ours:
            with console.status("stopping Airflow and Spark"):
                airflow.stop()
    say(f"{time.monotonic() - began:.0f} s. To look around:")
    say("make ui                            the same runs in Airflow's own pages; make stop ends it")
    say(".venv/bin/tidemark status demo     where everything stands")
    say(".venv/bin/tidemark quarantine demo what was broken, and why")
    return 0 if demo.good else 1


if __name__ == "__main__":
    sys.exit(main())
