"""What a small transaction costs, and the start before it: `python -m bench.small`.

A pipeline of one shard gets files of 500 records, each a transaction that is published at once. Told is the
processor time of the JVM: until its first transaction is published, and per transaction once it is warm.
Three processes in turn: as it is; with a JVM that starts without the archive of Spark's classes; with code
that is generated and compiled for every job, as for many rows.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

PIPELINE = """\
name: small
source: {type: files, path: in, format: json, settle_seconds: 0}
warehouse: warehouse
shards: [{name: rows, schema: "id BIGINT NOT NULL, note STRING", keys: [id], apply_as_deletes: "op = 'D'"}]
"""
RECORDS = 500
WARM = 4
WAYS = ("as it is", "without the archive", "with compiled code")


def land(folder: Path, number: int) -> None:
    """A file of updates, some of them deletes."""
    records = [
        {"id": (number * 37 + n) % 2_000, "note": f"note {n}", "op": "D" if n % 9 == 0 else "U"}
        for n in range(RECORDS)
    ]
    (folder / "in" / f"{number:04}.json").write_text("".join(f"{json.dumps(one)}\n" for one in records))


def measure(way: str, folder: Path, rounds: int) -> dict[str, float]:
    """In a process of its own: the JVM's processor time until the first publish, and per transaction."""
    from tidemark.app.deployment import Deployment, new_token
    from tidemark.config import load_pipeline
    from tidemark.core.binding import Owner
    from tidemark.core.ids import ShardId
    from tidemark.pipeline.context import Attempt
    from tidemark.pipeline.publish import publish
    from tidemark.pipeline.run import run
    from tidemark.spark import session

    if way == "without the archive":
        session.archive_options = lambda: ""
    if way == "with compiled code":
        session.INTERPRETED.clear()
    spark = session.build_session("bench", master="local[2]", scratch_folder=folder / "scratch")
    pid = int(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr]
    ticks = os.sysconf("SC_CLK_TCK")

    def spent() -> float:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / ticks

    deployment, shard = Deployment(load_pipeline(folder / "small.yaml"), lambda: spark), ShardId("rows")
    costs = []
    for number in range(WARM + rounds):
        land(folder, number)
        before = spent() if number else 0.0
        run(deployment.pipeline, Attempt(Owner(f"run-{number}"), new_token()))
        publish(deployment.control, deployment.state(), shard, token=new_token())
        costs.append(spent() - before)
    return {"first": costs[0], "each": statistics.median(costs[WARM:])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--way", choices=WAYS)
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    if given.way:
        print(json.dumps(measure(given.way, given.folder, given.rounds)))
        return
    found = {}
    for way in WAYS:
        with tempfile.TemporaryDirectory(prefix="tidemark-bench-") as made:
            (Path(made) / "in").mkdir()
            (Path(made) / "small.yaml").write_text(PIPELINE)
            command = [sys.executable, "-m", "bench.small", "--way", way, "--folder", made]
            done = subprocess.run(
                [*command, "--rounds", str(given.rounds)], check=True, stdout=subprocess.PIPE, text=True
            )
            found[way] = json.loads(done.stdout.splitlines()[-1])
    base = found[WAYS[0]]
    print(f"## Small transactions ({RECORDS} records)\n")
    print("| CPU seconds of the JVM | start and first transaction | each warm one |\n| --- | ---: | ---: |")
    for way, one in found.items():
        ratios = [f"{one[name]:.1f} ({one[name] / base[name]:.2f}x)" for name in ("first", "each")]
        print(f"| {way} | {ratios[0]} | {ratios[1]} |")


if __name__ == "__main__":
    main()
