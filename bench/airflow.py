"""What Airflow and starting up cost around the Spark work of one transaction: `python -m bench.airflow`.

Two measurements of a transaction of `--records` records:

- *whole runs* through a real Airflow with the project's plugin, by `spark-submit` and over Spark Connect:
  seconds of each task as Airflow has them, from its start to its end, and of the run; the middle one of
  `--repeats`, after some that aren't counted;
- *task bodies* over Connect: each of the five steps in a new process that has parsed the DAG and has what the
  project's plugin loads, as a task has.
  Seconds of the body, and of these what the server answered for (Spark's own work), what importing Great
  Expectations took, and the rest. It is told in processor seconds too, which a busy machine changes less.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

from tidemark.airflow.embedded import EmbeddedAirflow
from tidemark.airflow.processes import free_port

WARMING = 2
"""Runs of each way that aren't counted: the first ones make the tables, and find a server that has just
been started."""
STEPS = ("reclock", "ingest", "validate", "upsert", "checkpoint")
PIPELINE = """\
name: {name}
source: {{type: files, path: {name}, format: json, settle_seconds: 0}}
warehouse: warehouse
shards:
  - name: rows
    schema: id BIGINT NOT NULL, name STRING, amount DOUBLE
    keys: [id]
    apply_as_deletes: op = 'D'
"""
DAGS = """\
from tidemark.airflow import pipeline_dags
globals().update(pipeline_dags({folder!r} + "/submit", conn_id="spark_default"))
globals().update(pipeline_dags({folder!r} + "/connect", conn_id="spark_connect_default"))
"""


def land(folder: Path, records: int, batch: int) -> None:
    lines = (
        json.dumps(
            {"id": number * 7 % (records * 3), "name": f"name {number}", "amount": batch / 3, "op": "U"}
        )
        for number in range(records)
    )
    hidden = folder / f".{batch}"
    hidden.write_text("\n".join(lines) + "\n")
    hidden.rename(folder / f"{batch:04}.json")


def seconds_between(one: dict[str, Any]) -> float:
    began, ended = (datetime.fromisoformat(one[name]) for name in ("start_date", "end_date"))
    return (ended - began).total_seconds()


def whole_runs(airflow: EmbeddedAirflow, root: Path, records: int, repeats: int) -> None:
    client = airflow.client()
    print("| seconds | " + " | ".join(STEPS) + " | run |")
    print("| --- |" + " ---: |" * (len(STEPS) + 1))
    medians = {}
    for name in ("connect", "submit"):
        client.unpause(name)
        rows = []
        for batch in range(WARMING + repeats):
            land(root / name / name, records, batch)
            run_id = client.trigger(name)
            if client.wait(name, run_id) != "success":
                raise SystemExit(f"run {run_id} of {name} failed")
            tasks = client.tasks(name, run_id)
            rows.append(
                [*(seconds_between(tasks[step]) for step in STEPS), seconds_between(client.run(name, run_id))]
            )
        del rows[:WARMING]
        best = sorted(rows, key=lambda row: row[-1])[len(rows) // 2]
        medians[name] = best[-1]
        print(f"| {name} | " + " | ".join(f"{value:.1f}" for value in best) + " |")
    print(f"\nThe warm run is {medians['submit'] / medians['connect']:.1f} times shorter.\n")


def body(step: str, file: str, url: str, run_id: str) -> None:
    """One step in this process, with the time that is Spark's, and Great Expectations' import."""
    from tidemark import tasks  # noqa: F401  What the project's plugin has loaded before a task is forked.
    from tidemark.airflow import pipeline_dags

    # Airflow parses the DAG before it calls a task's body.
    pipeline_dags(Path(file).parent, conn_id="spark_connect_default")
    spent = {"spark": (0.0, 0.0), "great_expectations": (0.0, 0.0)}

    def now() -> tuple[float, float]:
        return time.perf_counter(), time.process_time()

    def since(start: tuple[float, float]) -> tuple[float, float]:
        return time.perf_counter() - start[0], time.process_time() - start[1]

    def timed(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            start = now()
            try:
                return call(*args, **kwargs)
            finally:
                took, had = since(start), spent[name]
                spent[name] = (had[0] + took[0], had[1] + took[1])

        return wrapper

    def spark() -> Any:
        session = connected(url, None)
        from pyspark.sql.connect.client.core import SparkConnectClient

        for method in ("_execute", "_execute_and_fetch", "_analyze", "config"):
            setattr(SparkConnectClient, method, timed("spark", getattr(SparkConnectClient, method)))
        return session

    began = now()
    from tidemark.job import Order, connected, perform
    from tidemark.tasks import checkpoint, open_pipeline, reclock

    if step == "validate":
        from tidemark.quality import engine

        timed("great_expectations", engine.load)()
    order = Order(file, run_id, f"token-{step}-{os.getpid()}")
    deployment = open_pipeline(file, None, spark)
    match step:
        case "reclock":
            reclock(deployment, order.attempt)
        case "checkpoint":
            checkpoint(deployment, order.attempt)
        case _:
            perform(step, deployment, order)
    whole = since(began)
    rest = [all_of - spark - gx for all_of, spark, gx in zip(whole, *spent.values(), strict=True)]
    print("RESULT" + json.dumps([whole[0], *(one[0] for one in spent.values()), *rest]))


def bodies(airflow: EmbeddedAirflow, root: Path, records: int, repeats: int) -> None:
    (root / "bodies" / "bodies").mkdir(parents=True)
    file = root / "bodies" / "bodies.yaml"
    file.write_text(PIPELINE.format(name="bodies"))
    environ = {**os.environ, "SPARK_CONNECT_AUTHENTICATE_TOKEN": airflow.secret("spark")}
    url = f"sc://localhost:{airflow.spark_port}"
    found: dict[str, list[list[float]]] = {step: [] for step in STEPS}
    for batch in range(repeats + 1):
        land(root / "bodies" / "bodies", records, batch)
        for step in STEPS:
            command = [sys.executable, "-m", "bench.airflow", "--body", step, str(file), url, f"run {batch}"]
            done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
            if "RESULT" not in done.stdout:
                raise SystemExit(done.stdout + done.stderr)
            found[step].append(json.loads(done.stdout.rpartition("RESULT")[2]))
    print("| seconds | body | Spark | Great Expectations' import | rest | processor time of the rest |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    # The first of them warmed the server.
    middle = {
        step: [median(column) for column in zip(*rows[1:], strict=True)] for step, rows in found.items()
    }
    for step, cells in middle.items():
        print(f"| {step} | " + " | ".join(f"{value:.2f}" for value in cells) + " |")
    rest, processor = (sum(cells[at] for cells in middle.values()) for at in (-2, -1))
    print(
        f"\nOutside of Spark's work and that import: {rest:.1f} s in all five, {processor:.1f} s of them on a"
        " processor; the aim is 3.\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--body", nargs=4, metavar=("STEP", "FILE", "URL", "RUN"))
    parser.add_argument("--bodies", action="store_true", help="measure the task bodies only")
    given = parser.parse_args()
    if given.body:
        body(*given.body)
        return
    with tempfile.TemporaryDirectory(prefix="tidemark-bench-") as name:
        root = Path(name)
        for kind in ("submit", "connect"):
            (root / kind / kind).mkdir(parents=True)
            (root / kind / f"{kind}.yaml").write_text(PIPELINE.format(name=kind))
        (root / "dags").mkdir()
        (root / "dags" / "bench.py").write_text(DAGS.format(folder=name))
        project = Path(__file__).resolve().parents[1]
        airflow = EmbeddedAirflow(
            root / "airflow", root / "dags", project / "airflow_settings.yaml",
            port=free_port(), spark_port=free_port(), plugins=project / "plugins",
        )  # fmt: skip
        airflow.prepare()
        try:
            airflow.start()
            print(f"## A transaction of {given.records:,} records through Airflow\n")
            bodies(airflow, root, given.records, given.repeats)
            if not given.bodies:
                whole_runs(airflow, root, given.records, given.repeats)
        finally:
            airflow.stop()


if __name__ == "__main__":
    main()
