"""One large transaction on more cores, and many shards of which few are touched: `python -m bench.cores`.

What a run takes on N cores is computed from processor time, since the clock of a busy machine says nothing:
Spark's tasks, as long as each has worked, on N cores, stage after stage, and what the driver's own process
has worked beside them. Each number of cores is a process of its own, whose Spark cuts the tasks for that
many; a machine that has fewer works them off one after the other, which takes nothing from their work.

The runs with few and with many shards are of one process, in turn.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

LARGE = """\
name: large
source: {type: files, path: in, format: json, settle_seconds: 0}
warehouse: warehouse
shards: [{name: rows, schema: "id BIGINT NOT NULL, note STRING, price DOUBLE", keys: [id]}]
"""
FILES = 16
CORES = (1, 2, 8)
FEW, MANY, TOUCHED, RECORDS_SMALL = 5, 200, 5, 2_000
WARM = 2
PAGE = Path(__file__).parent.parent / "docs" / "scale.md"
BEGIN, END = "<!-- bench.cores -->", "<!-- end of bench.cores -->"
HASHED_BYTES, ROUNDS_HASHED = 256 * 1024**2, 5


def land(folder: Path, name: str, records: Iterable[dict[str, Any]]) -> None:
    text = "".join(f"{json.dumps(one)}\n" for one in records)
    (folder / "in" / name).write_text(text)


def own_seconds() -> float:
    """What this process has worked, without its children."""
    spent = os.times()
    return spent.user + spent.system


def jvm_seconds(spark: Any) -> float:
    """What the JVM of a session has worked."""
    pid = int(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def one_run(deployment: Any, owner: str) -> None:
    from tidemark.app.deployment import new_token
    from tidemark.core.binding import Owner
    from tidemark.pipeline.context import Attempt
    from tidemark.pipeline.run import run

    if not run(deployment.pipeline, Attempt(Owner(owner), new_token())).decided:
        raise RuntimeError("nothing was decided")


def large(folder: Path, cores: int) -> dict[str, Any]:
    """In a process of its own: one transaction of all files, after a small one for what happens once."""
    from tidemark.app.deployment import Deployment
    from tidemark.config import load_pipeline
    from tidemark.spark import session

    spark = session.build_session("bench", master=f"local[{cores}]", scratch_folder=folder / "scratch")
    deployment = Deployment(load_pipeline(folder / "large.yaml"), lambda: spark)
    ready = sorted((folder / "in").glob("*.ready"))
    land(folder, "0.json", [{"id": 0, "note": "first", "price": 0.5}])
    one_run(deployment, "first")
    for path in ready:
        path.rename(path.with_suffix(".json"))
    skipped = stages_of(folder / "events")
    before = own_seconds(), jvm_seconds(spark)
    one_run(deployment, "large")
    driver, jvm = own_seconds() - before[0], jvm_seconds(spark) - before[1]
    spark.stop()
    stages = {at: tasks for at, tasks in stages_of(folder / "events").items() if at not in skipped}
    return {"driver": driver, "jvm": jvm, "stages": list(stages.values())}


def stages_of(events: Path) -> dict[int, list[float]]:
    """The processor seconds of each task, by stage, in the order in which they began."""
    found: dict[int, list[float]] = defaultdict(list)
    for path in events.rglob("*"):
        for line in path.read_text().splitlines() if path.is_file() else ():
            if '"SparkListenerTaskEnd"' in line:
                event = json.loads(line)
                metrics = event["Task Metrics"]
                spent = metrics["Executor CPU Time"] + metrics["Executor Deserialize CPU Time"]
                found[event["Stage ID"]].append(spent / 1e9)
    return dict(found)


def on_cores(tasks: Iterable[float], cores: int) -> float:
    """How long so many cores work on these tasks: each takes the next one when it is done."""
    free = [0.0] * cores
    for spent in tasks:
        heapq.heapreplace(free, free[0] + spent)
    return max(free)


def hashed_a_second() -> float:
    """How many bytes of new files a thread of the driver hashes in a second of work."""
    from tidemark.sources.files.content import read_content

    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        file.write(os.urandom(HASHED_BYTES))
        file.flush()
        spent = []
        for _ in range(ROUNDS_HASHED):
            before = time.thread_time()
            read_content(file.name, file_format="json", count_records=False)
            spent.append(time.thread_time() - before)
    return HASHED_BYTES / statistics.median(spent)


def shards_file(count: int) -> str:
    shards = [
        {
            "name": f"t{n}", "schema": "id BIGINT NOT NULL, kind STRING, note STRING", "keys": ["id"],
            "route": {"column": "kind", "equals": f"t{n}"},
        }
        for n in range(count)
    ]  # fmt: skip
    source = {"type": "files", "path": "in", "format": "json", "settle_seconds": 0}
    return json.dumps({"name": "p", "source": source, "warehouse": "warehouse", "shards": shards})


def touched(root: Path, rounds: int) -> dict[int, float]:
    """What a run works that touches five shards, of five and of two hundred; both processes of it."""
    from tidemark.app.deployment import Deployment
    from tidemark.config import load_pipeline
    from tidemark.spark import session

    spark = session.build_session("bench", master="local[2]", scratch_folder=root / "scratch")
    sizes = (FEW, MANY)
    costs: dict[int, list[float]] = {size: [] for size in sizes}
    for size in sizes:
        (root / f"{size}" / "in").mkdir(parents=True)
        (root / f"{size}" / "p.yaml").write_text(shards_file(size))
    for number in range(WARM + rounds):
        for size in sizes:
            folder = root / f"{size}"
            records = (
                {"id": n, "kind": f"t{n % TOUCHED}", "note": f"note {number}"} for n in range(RECORDS_SMALL)
            )
            land(folder, f"{number}.json", records)
            before = own_seconds() + jvm_seconds(spark)
            # As a run of the command: the file is read, and the tables are opened anew.
            deployment = Deployment(load_pipeline(folder / "p.yaml"), lambda: spark)
            one_run(deployment, f"run-{number}")
            costs[size].append(own_seconds() + jvm_seconds(spark) - before)
            print(f"{size} shards: {costs[size][-1]:.2f} s", file=sys.stderr, flush=True)
            deployment.close()
    return {size: statistics.median(spent[WARM:]) for size, spent in costs.items()}


def measured(records: int, cores: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="tidemark-bench-") as made:
        folder = Path(made)
        for name in ("in", "events", "conf"):
            (folder / name).mkdir()
        (folder / "large.yaml").write_text(LARGE)
        events = (folder / "events").as_uri()
        (folder / "conf" / "spark-defaults.conf").write_text(
            f"spark.eventLog.enabled true\nspark.eventLog.compress false\nspark.eventLog.dir {events}\n"
        )
        for part in range(FILES):
            lines = (
                {"id": n, "note": f"note {n * 7919 % 10_007}", "price": n / 8}
                for n in range(part, records, FILES)
            )
            land(folder, f"1-{part:02}.ready", lines)
        done = subprocess.run(
            [sys.executable, "-m", "bench.cores", "--folder", made, "--cores", str(cores)],
            env=os.environ | {"SPARK_CONF_DIR": str(folder / "conf")}, check=True, stdout=subprocess.PIPE,
            text=True,
        )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", choices=("hash", "large", "touched"))
    parser.add_argument("--report", action="store_true", help="write what is measured to docs/scale.md")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--cores", type=int)
    given = parser.parse_args()
    if given.folder is not None:
        print(json.dumps(large(given.folder, given.cores)))
        return
    lines: list[str] = []

    def say(line: str) -> None:
        print(line, flush=True)
        lines.append(line)

    if given.only in (None, "hash"):
        say(f"A thread hashes {hashed_a_second() / 1e6:,.0f} MB of new files in a second of its work\n")
    if given.only in (None, "large"):
        say(f"One transaction of {given.records:,} records in {FILES} files\n")
        say("| cores | tasks | their work | longest | on the driver | on these cores | times faster |")
        say("| ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
        first = 0.0
        for cores in CORES:
            found = measured(given.records, cores)
            tasks = [spent for stage in found["stages"] for spent in stage]
            whole = found["driver"] + sum(on_cores(stage, cores) for stage in found["stages"])
            first = first or whole
            say(
                f"| {cores} | {len(tasks)} | {sum(tasks):.1f} s | {max(tasks):.2f} s |"
                f" {found['driver']:.2f} s | {whole:.1f} s | {first / whole:.2f} |"
            )
    if given.only in (None, "touched"):
        with tempfile.TemporaryDirectory(prefix="tidemark-bench-") as made:
            few, many = touched(Path(made), given.rounds).values()
        say(f"\nA run that touches {TOUCHED} shards, processor time:\n")
        say(f"of {FEW} shards {few:.2f} s, of {MANY} shards {many:.2f} s: {many / few:.2f} times")
    if given.report:
        before, rest = PAGE.read_text().split(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n{chr(10).join(lines)}\n{END}{rest.split(END, 1)[1]}")


if __name__ == "__main__":
    main()
