"""A process that starts the campaign's workers by forking, so that none of them pays for the imports.

`python -m tests.crash.nursery` reads one job per line and answers `{"name", "status"}` when its process has
ended; a negative status is the signal that killed it. It has imported the libraries but opened nothing:
neither delta-rs's threads nor a gateway live through a fork.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.crash.jvm import ROOT
from tests.crash.worker import REPORTS, Job, Report, work

SECONDS_MAX = 600
KILL = "kill "


def preload() -> None:
    import deltalake  # noqa: F401
    import pandas  # noqa: F401  # pyarrow imports it, when it first makes an array
    import pyarrow.parquet  # noqa: F401
    import pyspark.sql  # noqa: F401

    import tidemark.assemble
    import tidemark.pipeline.maintain
    import tidemark.pipeline.publish
    import tidemark.pipeline.run
    import tidemark.spark.plane
    import tidemark.spark.state  # noqa: F401


def serve() -> None:
    """Fork a worker per line, reap them, until the input ends; then nothing of ours is left alive."""
    preload()
    children: dict[int, str] = {}
    pending, source = b"", sys.stdin.fileno()
    os.set_blocking(source, False)
    is_open = True
    while is_open or children:
        ready, _, _ = select.select([source] if is_open else [], [], [], 0.01)
        if ready:
            data = os.read(source, 65536)
            is_open = bool(data)
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                obey(line.decode(), children, source)
        for pid in list(children):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                tell({"name": children.pop(pid), "status": os.waitstatus_to_exitcode(status)})


def obey(line: str, children: dict[int, str], source: int) -> None:
    """Begin a job, or kill one. Only a child that is not reaped yet is killed: its pid is still its own."""
    if line.startswith(KILL):
        for pid, name in children.items():
            if name == line.removeprefix(KILL):
                os.kill(pid, signal.SIGKILL)
        return
    job = Job.from_json(line)
    pid = os.fork()
    if pid == 0:
        os.close(source)
        os._exit(work(job))
    children[pid] = job.name


def tell(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


class Nursery:
    """The campaign's side of it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.nursery"],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        self._heard = b""
        self._statuses: dict[str, int] = {}

    def start(self, job: Job) -> None:
        self._say(job.to_json())

    def kill(self, job: Job) -> None:
        """SIGKILL, if the process is still there."""
        self._say(f"{KILL}{job.name}")

    def wait(self, job: Job, *, seconds: float = SECONDS_MAX) -> int | None:
        """The exit status of a job's process; None while it goes on."""
        deadline = time.monotonic() + seconds
        while job.name not in self._statuses:
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            self._hear(left)
        return self._statuses[job.name]

    def _say(self, line: str) -> None:
        self._process.stdin.write(f"{line}\n".encode())  # type: ignore[union-attr]
        self._process.stdin.flush()  # type: ignore[union-attr]

    def _hear(self, seconds: float) -> None:
        output = self._process.stdout.fileno()  # type: ignore[union-attr]
        if not select.select([output], [], [], seconds)[0]:
            return
        data = os.read(output, 65536)
        if not data:
            raise RuntimeError("the nursery has died")
        *lines, self._heard = (self._heard + data).split(b"\n")
        for line in lines:
            told = json.loads(line)
            self._statuses[told["name"]] = told["status"]

    def close(self) -> None:
        self._process.stdin.close()  # type: ignore[union-attr]
        self._process.wait(SECONDS_MAX)


def report_of(job: Job) -> Report:
    """What a job's process has left to read."""
    path = Path(job.root) / REPORTS / f"{job.name}.json"
    return Report(**json.loads(path.read_text(encoding="utf-8")))


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve()
