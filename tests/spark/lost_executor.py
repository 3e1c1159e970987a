"""Stage one transaction on a cluster of two executors, and kill one of them in the middle of the job.

`python -m tests.spark.lost_executor ROOT` is a process of its own: it needs a master of its own. It kills an
executor when the job's second stage has begun, so that the first one has to run again, in part, for the rows
that went with it. Printed are the digests, and how many shuffle stages ran again.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

from tests.spark.connect_client import shown
from tests.support.ingest import Rig, make_rig
from tidemark.core.binding import Binding
from tidemark.core.ids import WriterToken
from tidemark.spark.session import SHORT_JOBS, build_session

RECORDS = 60_000
PARTS = 40
DEADLINE_SECONDS = 600


def transaction(spark: SparkSession, root: Path) -> tuple[Rig, Binding]:
    rig = make_rig(spark, root)
    records = [{"k": f"k{n % 20_000}", "v": f"value {n}"} for n in range(RECORDS)]
    return rig, rig.bind_records([*records, "broken"], files=4)


def own_home(folder: Path) -> Path:
    """Spark's home with another folder for work: a cluster writes there, and this one is everybody's."""
    folder.mkdir()
    for item in Path(pyspark.__file__).parent.iterdir():
        if item.name != "work":
            (folder / item.name).symlink_to(item)
    return folder


def executors(driver: int) -> Iterator[int]:
    """The executors of this process's cluster: they are children of its JVM."""
    for path in Path("/proc").iterdir():
        try:
            parent = int((path / "stat").read_text().rsplit(")", 1)[1].split()[1])
            line = (path / "cmdline").read_bytes()
        except (OSError, IndexError):
            continue
        if parent == driver and b"CoarseGrainedExecutorBackend" in line:
            yield int(path.name)


def kill_one(spark: SparkSession, driver: int, killed: list[int]) -> None:
    """Wait until some tasks of a job's second stage are done, then kill."""
    tracker = spark.sparkContext.statusTracker()
    deadline = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < deadline:
        for stage in tracker.getActiveStageIds():
            info = tracker.getStageInfo(stage)
            if info is not None and info.numTasks == PARTS and info.numCompletedTasks >= 2:
                victim = next(executors(driver))
                os.kill(victim, signal.SIGKILL)
                killed.append(victim)
                return
        time.sleep(0.01)


def stages_run_again(folder: Path) -> int:
    """Attempts of stages beyond their first, by Spark's own event log."""
    lines = [line for path in folder.rglob("*") if path.is_file() for line in path.read_text().splitlines()]
    events = [json.loads(line) for line in lines if "SparkListenerStageSubmitted" in line]
    shuffles = [event["Stage Info"] for event in events if event["Stage Info"]["Number of Tasks"] != PARTS]
    return sum(info["Stage Attempt ID"] > 0 for info in shuffles)


def main() -> None:
    root = Path(sys.argv[1])
    os.environ["SPARK_HOME"] = str(own_home(root / "home"))
    log = root / "events"
    log.mkdir()
    spark = build_session(
        "lost-executor",
        master="local-cluster[2,1,1024]",
        scratch_folder=root / "scratch",
        confs={
            "spark.driver.memory": "1g",
            **SHORT_JOBS,
            "spark.executor.extraJavaOptions": SHORT_JOBS["spark.driver.extraJavaOptions"],
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": log.as_uri(),
            "spark.eventLog.compress": "false",
        },
    )
    jvm = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
    rig, binding = transaction(spark, root)
    plane = rig.plane(**{"spark.sql.shuffle.partitions": str(PARTS)})
    killed: list[int] = []
    watcher = threading.Thread(target=kill_one, args=(spark, jvm, killed))
    watcher.start()
    staged = plane.stage(binding, WriterToken("w"))
    watcher.join()
    found = {"digests": shown(staged.digests), "back": shown(plane.read_back(staged)), "killed": len(killed)}
    spark.stop()
    sys.stdout.write(json.dumps({**found, "again": stages_run_again(log)}))


if __name__ == "__main__":
    main()
