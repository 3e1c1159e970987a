"""The commands of a pipeline's life, one after the other, in one driver on a cluster.

`python -m tests.cluster.command ROOT WORKER…` works below ROOT with the cluster that its environment names.
The first run loses an executor in the middle of staging, of reading back and of publishing: all are stopped
before that step, and one is killed as soon as it has been given a task. Printed is what each command came to.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark.sql import SparkSession

from tests.cluster.shop import land, make, opened, replace_rules, seen, tell
from tests.support.cluster import EXECUTORS, EXECUTORS_MAX, PYTHON_STARTS, executors_of
from tests.support.waiting import wait_until
from tidemark.app.consume import Consumer
from tidemark.spark.failures import JOB_ERRORS
from tidemark.spark.session import cores_of

KILLED_IN = {
    "ingest": "tidemark.spark.plane.SparkPlane.stage",
    "read-back": "tidemark.spark.plane.SparkPlane.read_back",
    "publish": "tidemark.spark.state.SparkStatePlane._by_scan",
}


class Killer:
    """Kills an executor while a step works, once for each step."""

    def __init__(self, spark: SparkSession, workers: tuple[int, ...]) -> None:
        self._spark = spark
        self._workers = workers
        self.killed: dict[str, int] = {}

    def during(self, step: str, work: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(work)
        def killed_in(*args: Any, **more: Any) -> Any:
            if step in self.killed:
                return work(*args, **more)
            self.killed[step] = 0
            wait_until(self._all_work, what="the executors")
            stopped = executors_of(self._workers)
            for one in stopped.values():
                one.send_signal(signal.SIGSTOP)
            ended = threading.Event()
            watcher = threading.Thread(target=self._kill, args=(step, stopped, ended))
            watcher.start()
            try:
                return work(*args, **more)
            finally:
                ended.set()
                watcher.join()

        return killed_in

    def _all_work(self) -> bool:
        return all_work(self._spark, EXECUTORS)

    def _kill(self, step: str, stopped: Mapping[str, psutil.Process], ended: threading.Event) -> None:
        """Kill one that was given a task, which it can't have finished; let the others go on."""

        def victims() -> list[str]:
            found = executors_at_work(self._spark)
            return [number for number, one in found.items() if one.activeTasks() and number in stopped]

        try:
            wait_until(lambda: ended.is_set() or victims(), what=f"a task of {step}", pause_seconds=0.01)
            if given := victims():
                stopped[given[0]].send_signal(signal.SIGKILL)
                self.killed[step] += 1
        finally:
            for one in stopped.values():
                with suppress(psutil.NoSuchProcess):
                    one.send_signal(signal.SIGCONT)


def context_of(spark: SparkSession) -> Any:
    return spark.sparkContext._jsc.sc()  # type: ignore[union-attr]


def all_work(spark: SparkSession, count: int) -> bool:
    """Whether so many executors, and all that there are, have done a task: one that is only registered is
    not given any yet."""
    spark.range(0, 12, 1, 12).count()
    found = executors_at_work(spark)
    return len(found) >= count and all(one.completedTasks() for one in found.values())


def executors_at_work(spark: SparkSession) -> dict[str, Any]:
    """What the driver knows of the executors that are registered with it, by their numbers."""
    found = context_of(spark).statusStore().executorList(True)
    listed = [found.apply(place) for place in range(found.size())]
    return {one.id(): one for one in listed if one.id() != "driver"}


def damage(root: Path) -> str:
    """Lose a part of the first transaction."""
    part = next((root / "lake" / "shop" / "indexed" / "log").glob("_txn-*1/*/*.parquet"))
    part.unlink()
    return part.name


def needs_python(spark: SparkSession) -> bool:
    """Whether a job with a function in Python fails."""
    try:
        spark.range(1).rdd.map(lambda row: row).collect()
    except JOB_ERRORS:
        return True
    return False


def main() -> None:
    root, workers = Path(sys.argv[1]), tuple(map(int, sys.argv[2:]))
    starts = Path(os.environ["PYSPARK_PYTHON"]).with_name(PYTHON_STARTS)
    file = make(root)
    name = str(file)
    land(root, 0)
    found: dict[str, Any] = {}
    spark = opened(file).session()
    found["cores"] = [cores_of(spark)]
    killer = Killer(spark, workers)
    with pytest.MonkeyPatch.context() as patch:
        for step, place in KILLED_IN.items():
            owner, _, attribute = place.rpartition(".")
            module, _, kind = owner.rpartition(".")
            __import__(module)
            work = getattr(getattr(sys.modules[module], kind), attribute)
            patch.setattr(place, killer.during(step, work))
        found["first"] = tell("run", name)
    found["killed"] = killer.killed
    land(root, 1)
    context_of(spark).requestExecutors(EXECUTORS_MAX - len(executors_at_work(spark)))
    wait_until(lambda: all_work(spark, EXECUTORS_MAX), what="an executor that comes later")
    found["cores"].append(cores_of(spark))
    before = {number: one.completedTasks() for number, one in executors_at_work(spark).items()}
    found["second"] = tell("run", name, "--no-publish")
    found["used"] = sum(
        one.completedTasks() > before[number] for number, one in executors_at_work(spark).items()
    )
    found["fresh"] = seen(opened(file))
    found["published"] = tell("publish", name)
    found["proven"] = tell("verify", name)
    found["lost"] = damage(root)
    found["repaired"] = tell("replay", name, "--mode", "repair")
    found["maintained"] = tell("maintain", name)
    with Consumer(opened(file), "indexed", "billing") as billing:
        found["consumed"] = [[one.lower, one.upper, one.frame.count()] for one in billing.listen()]
    found["after"] = seen(opened(file))
    replace_rules(file)
    tell("generation", "start", name, "--reason", "deletes are a mistake")
    found["promoted"] = tell("generation", "promote", name)
    found["corrected"] = seen(opened(file))
    found["python starts before"] = int(starts.exists())
    found["needs python"] = needs_python(spark)
    spark.stop()
    sys.stdout.write(json.dumps(found, default=str))


if __name__ == "__main__":
    main()
