"""What Airflow and starting up cost around the Spark work of one transaction: `python -m bench.airflow`.

Two measurements of a transaction of `--records` records:

- *whole runs* through a real Airflow, by `spark-submit` and over Spark Connect: seconds of each task as
  Airflow has them, from its start to its end, and of the run;
- *task bodies* over Connect: each of the five steps in a new process, as a task is. Seconds of the body, and
  of these what the server answered for (Spark's own work), what importing Great Expectations took, and the
  rest.
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
from typing import Any

from tidemark.airflow.embedded import EmbeddedAirflow
from tidemark.airflow.processes import free_port

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
        for batch in range(repeats):
            land(root / name / name, records, batch)
            run_id = client.trigger(name)
            if client.wait(name, run_id) != "success":
                raise SystemExit(f"run {run_id} of {name} failed")
            tasks = client.tasks(name, run_id)
            rows.append(
                [*(seconds_between(tasks[step]) for step in STEPS), seconds_between(client.run(name, run_id))]
            )
        best = sorted(rows, key=lambda row: row[-1])[len(rows) // 2]
        medians[name] = best[-1]
        print(f"| {name} | " + " | ".join(f"{value:.1f}" for value in best) + " |")
    print(f"\nThe warm run is {medians['submit'] / medians['connect']:.1f} times shorter.\n")


def body(step: str, file: str, url: str) -> None:
    """One step in this process, with the time that is Spark's, and Great Expectations' import."""
    began = time.perf_counter()
    spent = {"spark": 0.0, "great_expectations": 0.0}
    from pyspark.sql.connect.client.core import SparkConnectClient

    from tidemark.airflow.runs import order_of  # noqa: F401  What a task has loaded before its body.
    from tidemark.job import Order, perform
    from tidemark.spark.session import connect_session
    from tidemark.tasks import checkpoint, open_pipeline, reclock

    def timed(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                spent[name] += time.perf_counter() - start

        return wrapper

    for method in ("_execute", "_execute_and_fetch", "_analyze", "config"):
        setattr(SparkConnectClient, method, timed("spark", getattr(SparkConnectClient, method)))
    if step == "validate":
        from tidemark.quality import engine

        timed("great_expectations", engine.load)()
    order = Order(file, "bench", f"token-{step}-{os.getpid()}")
    deployment = open_pipeline(file, None, timed("spark", lambda: connect_session(url)))
    match step:
        case "reclock":
            reclock(deployment, order.attempt, first_try=True)
        case "checkpoint":
            checkpoint(deployment, order.attempt)
        case _:
            perform(step, deployment, order)
    print("RESULT" + json.dumps({"body": time.perf_counter() - began, **spent}))


def bodies(airflow: EmbeddedAirflow, root: Path, records: int) -> None:
    (root / "bodies").mkdir()
    (root / "bodies" / "bodies").mkdir()
    file = root / "bodies" / "bodies.yaml"
    file.write_text(PIPELINE.format(name="bodies"))
    land(root / "bodies" / "bodies", records, 0)
    environ = {**os.environ, "SPARK_CONNECT_AUTHENTICATE_TOKEN": airflow.secret("spark")}
    print("| seconds | body | Spark | Great Expectations' import | rest |")
    print("| --- | ---: | ---: | ---: | ---: |")
    rest = 0.0
    for step in STEPS:
        url = f"sc://localhost:{airflow.spark_port}"
        command = [sys.executable, "-m", "bench.airflow", "--body", step, str(file), url]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
        if "RESULT" not in done.stdout:
            raise SystemExit(done.stdout + done.stderr)
        found = json.loads(done.stdout.rpartition("RESULT")[2])
        left = found["body"] - found["spark"] - found["great_expectations"]
        rest += left
        cells = [found["body"], found["spark"], found["great_expectations"], left]
        print(f"| {step} | " + " | ".join(f"{value:.2f}" for value in cells) + " |")
    print(f"\nOutside of Spark's work and that import: {rest:.1f} s in all five; the aim is 3.\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--body", nargs=3, metavar=("STEP", "FILE", "URL"))
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
        settings = Path(__file__).resolve().parents[1] / "airflow_settings.yaml"
        airflow = EmbeddedAirflow(
            root / "airflow", root / "dags", settings, port=free_port(), spark_port=free_port()
        )
        airflow.prepare()
        try:
            airflow.start()
            print(f"## A transaction of {given.records:,} records through Airflow\n")
            bodies(airflow, root, given.records)
            whole_runs(airflow, root, given.records, given.repeats)
        finally:
            airflow.stop()


if __name__ == "__main__":
    main()
