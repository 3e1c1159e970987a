"""What Airflow and starting up cost around the Spark work of one transaction: `python -m bench.airflow`.

Measurements of a transaction of `--records` records:

- *whole runs* through a real Airflow with the project's plugin, by `spark-submit` and over Spark Connect:
  seconds of each task as Airflow has them, from its start to its end, and of the run; the middle one of
  `--repeats`, after some that aren't counted;
- *task bodies* over Connect: each of the five steps in a new process that has parsed the DAG and has what the
  project's plugin loads, as a task has.
  Seconds of the body, and of these what the server answered for (Spark's own work), what importing Great
  Expectations took, and the rest. It is told in processor seconds too, which a busy machine changes less.

- *one start*: an application that only counts one row, submitted as a task submits its step.

One table, with a line for each target. A run by submit starts one application, so it should take at most 2.5
times as long as one over Connect, and one start: a ratio of times that were measured side by side.
Parsing a folder of 1 and of 41 pipeline files is measured too.
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

from scripts.local_airflow.embedded import EmbeddedAirflow
from scripts.local_airflow.processes import free_port

WARMING = 2
"""Runs of each way that aren't counted: the first ones make the tables, and find a server that has just
been started."""
OUTSIDE_SECONDS_MAX = 3.0
RATIO_MAX = 2.5
PARSED_MANY = 41
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


def whole_runs(airflow: EmbeddedAirflow, root: Path, records: int, repeats: int) -> dict[str, list[float]]:
    """Seconds of the five tasks and of the run, over Connect and by submit."""
    client = airflow.client()
    found: dict[str, list[float]] = {}
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
        found[name] = sorted(rows, key=lambda row: row[-1])[len(rows) // 2]
    return found


def one_start(root: Path, repeats: int) -> float:
    """Seconds of an application that does next to nothing."""
    from tidemark.app.job import submission

    how = submission("ingest", master="local[*]")
    file = root / "start.py"
    file.write_text("from tidemark.app.job import submitted_session\nsubmitted_session().range(1).count()\n")
    confs = [text for name, value in how.confs.items() for text in ("--conf", f"{name}={value}")]
    command = ["spark-submit", "--master", "local[*]", "--jars", how.jars, *confs, str(file)]
    environ = {**os.environ, **how.environment}
    taken = []
    for _ in range(repeats):
        began = time.perf_counter()
        subprocess.run(command, env=environ, capture_output=True, check=True)
        taken.append(time.perf_counter() - began)
    return median(taken)


def parsing(root: Path, files: int) -> float:
    """Seconds of making the DAGs of so many pipeline files, in a process that has imported what it needs."""
    folder = root / f"parse-{files}"
    folder.mkdir()
    for number in range(files):
        (folder / f"p{number}.yaml").write_text(PIPELINE.format(name=f"p{number}"))
    code = (
        "import sys, time\nfrom tidemark.airflow import pipeline_dags\n"
        "began = time.perf_counter()\npipeline_dags(sys.argv[1])\n"
        "print('RESULT', time.perf_counter() - began)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True
    )
    return float(done.stdout.rpartition("RESULT")[2])


def print_table(
    middle: dict[str, list[float]], runs: dict[str, list[float]], parsed: list[float], start: float
) -> None:
    """One line for each step, for all of them, and for each target."""
    columns = ("body", "Spark", "import of Great Expectations", "rest", "processor time of the rest")
    print(f"| seconds | {' | '.join(columns)} | task over Connect | task by submit |")
    print("| --- |" + " ---: |" * (len(columns) + 2))
    total = [sum(cells) for cells in zip(*middle.values(), strict=True)]
    for number, (name, cells) in enumerate([*middle.items(), ("all", total)]):
        taken = [f"{row[number]:.1f}" for row in runs.values()] or ["", ""]
        print(f"| {name} | {' | '.join([*(f'{value:.2f}' for value in cells), *taken])} |")
    targets = [
        ("outside of Spark's work and that import at most 3 s", total[3], total[3] <= OUTSIDE_SECONDS_MAX)
    ]
    if runs:
        connect, submit = (runs[name][-1] for name in ("connect", "submit"))
        ratio = (submit - start) / connect
        what = f"a run by submit without one start, in runs over Connect, at most {RATIO_MAX}"
        targets += [(what, ratio, ratio <= RATIO_MAX)]
        took = f"{connect:.1f}, {submit:.1f}, {start:.1f}"
        print(f"| a run over Connect, by submit; one start | {took} |" + " |" * (len(columns) + 1))
    for what, value, met in targets:
        print(f"| target: {what} | {value:.1f}, {'met' if met else 'NOT met'} |" + " |" * (len(columns) + 1))
    one, many = parsed
    print(
        f"| parsing 1 and {PARSED_MANY} pipeline files | {one:.3f}, {many:.3f} |" + " |" * (len(columns) + 1)
    )


def body(step: str, file: str, url: str, run_id: str) -> None:
    """One step in this process, with the time that is Spark's, and Great Expectations' import."""
    from tidemark.airflow import pipeline_dags
    from tidemark.app import tasks  # noqa: F401  What the project's plugin has loaded before a task is forked.

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
    from tidemark.app.job import Order, connected, perform
    from tidemark.app.tasks import checkpoint, open_pipeline, reclock

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


def bodies(airflow: EmbeddedAirflow, root: Path, records: int, repeats: int) -> dict[str, list[float]]:
    """The middle of each step's seconds: body, Spark, import, rest, processor time of the rest."""
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
    # The first of them warmed the server.
    return {step: [median(column) for column in zip(*rows[1:], strict=True)] for step, rows in found.items()}


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
            parsed = [parsing(root, files) for files in (1, PARSED_MANY)]
            middle = bodies(airflow, root, given.records, given.repeats)
            runs = {} if given.bodies else whole_runs(airflow, root, given.records, given.repeats)
            start = one_start(root, given.repeats) if runs else 0.0
            print_table(middle, runs, parsed, start)
        finally:
            airflow.stop()


if __name__ == "__main__":
    main()
