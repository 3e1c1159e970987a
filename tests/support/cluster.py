"""A standalone Spark cluster on loopback: a master and two workers, each a process, from the pip package.

`python -m tests.support.cluster FOLDER` starts them, prints where they are, and ends them when its standard
input ends: with the test process, however that ends. The workers' environment has no Python, and a driver is
told of one that only notes that somebody asked for it. So an executor that needed Python, let alone Tidemark,
would fail its job.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.support import ROOT
from tests.support.waiting import wait_until
from tidemark.spark.session import SHORT_JOBS

EXECUTORS, EXECUTORS_MAX = 2, 3
"""How many executors an application begins with, and how many it can get."""
PYTHON_STARTS = "python-starts"
"""The file that has a line for each time that an executor asked for Python."""
ONE_EXECUTOR = {
    "spark.dynamicAllocation.initialExecutors": "1",
    "spark.dynamicAllocation.minExecutors": "1",
}
"""For an application that needs no second one: a JVM less to start."""
_LOOPBACK = "127.0.0.1"
_MASTER = re.compile(r"Starting Spark master at (spark://\S+)")
_REGISTERED = "Successfully registered with master"
_JAVA = f"{SHORT_JOBS['spark.driver.extraJavaOptions']} -XX:+UseSerialGC"


@dataclass(frozen=True)
class Cluster:
    """A running cluster; every application gets two executors of one core each, and a third if it
    asks for it."""

    url: str
    workers: tuple[int, ...]
    folder: Path

    @property
    def python(self) -> Path:
        """The Python of the executors: it starts nothing."""
        return self.folder / "no-python"

    @property
    def environment(self) -> dict[str, str]:
        """For who drives an application from this machine."""
        return {
            "TIDEMARK_SPARK_MASTER": self.url,
            "SPARK_CONF_DIR": str(self.folder / "conf"),
            "SPARK_LOCAL_IP": _LOOPBACK,
            "PYSPARK_PYTHON": str(self.python),
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        }

    @property
    def python_starts(self) -> int:
        """How often an executor has asked for Python."""
        notes = self.folder / PYTHON_STARTS
        return len(notes.read_text().splitlines()) if notes.exists() else 0

    def lost_tasks(self) -> int:
        """How many tasks went with their executors so far, by Spark's own event logs."""
        logs = [path for path in (self.folder / "events").rglob("*") if path.is_file()]
        return sum(path.read_text().count('"Reason":"ExecutorLostFailure"') for path in logs)


def executors_of(workers: tuple[int, ...]) -> dict[str, psutil.Process]:
    """The executors that run now, by their numbers: children of the workers."""
    found = {}
    for worker in workers:
        for child in psutil.Process(worker).children():
            with suppress(psutil.NoSuchProcess):
                words = child.cmdline()
                if "--executor-id" in words:
                    found[words[words.index("--executor-id") + 1]] = child
    return found


@contextmanager
def running_cluster(folder: Path) -> Iterator[Cluster]:
    """Start a cluster, wait until its workers are registered, end it with all its executors."""
    _write_settings(folder)
    with (folder / "holder.log").open("wb") as log:
        holder = subprocess.Popen(
            [sys.executable, "-m", "tests.support.cluster", str(folder)], cwd=ROOT, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True,
        )  # fmt: skip
    try:
        told = holder.stdout.readline()  # type: ignore[union-attr]
        assert told, (folder / "holder.log").read_text()[-3000:]
        found = json.loads(told)
        yield Cluster(found["url"], tuple(found["workers"]), folder)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(holder.pid, signal.SIGKILL)
        holder.wait()


def _write_settings(folder: Path) -> None:
    """Where Spark itself looks for settings, and the Python of the executors."""
    for name in ("conf", "events", "work"):
        (folder / name).mkdir()
    settings = {
        "spark.cores.max": EXECUTORS_MAX,
        "spark.executor.cores": 1,
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.dynamicAllocation.initialExecutors": EXECUTORS,
        "spark.dynamicAllocation.minExecutors": EXECUTORS,
        "spark.dynamicAllocation.executorIdleTimeout": "1h",
        # None by itself: one more costs the start of a JVM, whatever waits for it.
        "spark.dynamicAllocation.schedulerBacklogTimeout": "1h",
        "spark.executor.memory": "768m",
        "spark.executor.extraJavaOptions": _JAVA,
        "spark.driver.memory": "1g",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": (folder / "events").as_uri(),
        "spark.eventLog.compress": "false",
        # Who waits for a task to begin must see it at once, and not with some later event.
        "spark.ui.liveUpdate.period": 0,
    }
    lines = "".join(f"{name} {value}\n" for name, value in settings.items())
    (folder / "conf" / "spark-defaults.conf").write_text(lines)
    python = folder / "no-python"
    python.write_text(f"#!/bin/sh\necho asked >> '{folder}/{PYTHON_STARTS}'\nexit 1\n")
    python.chmod(0o755)


def _start(folder: Path, name: str, *words: str) -> tuple[subprocess.Popen[bytes], Path]:
    """One of the cluster's own processes, and its log."""
    import pyspark

    from tidemark.runtime.machine import use_java

    home = Path(pyspark.__file__).parent
    environment = {
        "JAVA_HOME": str(use_java().home),
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": _LOOPBACK,
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": _JAVA,
        "PATH": "/usr/bin:/bin",
    }
    log = folder / f"{name}.log"
    with log.open("wb") as said:
        process = subprocess.Popen(
            [home / "bin" / "spark-class", *words, "--host", _LOOPBACK, "--port", "0", "--webui-port", "0"],
            env=environment, cwd=folder, stdin=subprocess.DEVNULL, stdout=said, stderr=said,
        )  # fmt: skip
    return process, log


def _wait_for(process: subprocess.Popen[bytes], log: Path, words: str) -> str:
    """What a log says, once it says so."""

    def said() -> bool:
        assert process.poll() is None, log.read_text()[-3000:]
        return words in log.read_text()

    wait_until(said, what=f"{words!r} in {log.name}")
    return log.read_text()


def main() -> None:
    folder = Path(sys.argv[1])
    master, log = _start(folder, "master", "org.apache.spark.deploy.master.Master")
    found = _MASTER.search(_wait_for(master, log, "Starting Spark master at"))
    assert found is not None
    kind = ("org.apache.spark.deploy.worker.Worker", found[1], "--cores", "8", "--memory", "8g")
    workers = [
        _start(folder, f"worker-{n}", *kind, "--work-dir", str(folder / "work" / str(n)))
        for n in range(EXECUTORS)
    ]
    for worker, said in workers:
        _wait_for(worker, said, _REGISTERED)
    told = {"url": found[1], "workers": [worker.pid for worker, _ in workers]}
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()
    sys.stdin.read()
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
