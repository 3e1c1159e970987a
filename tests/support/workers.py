"""Worker processes that are forked from a warm parent, so that none of them pays for its imports.

`python -m tests.support.workers MODULE` imports a module and calls its `preload()`. It then reads one job per
line (JSON with a `name`), forks a process that exits with what `MODULE.work(job)` returns, and answers
`{"name", "status"}` when that process has ended; a negative status is the signal that killed it. The parent
has imported the libraries but opened nothing: neither delta-rs's threads nor a gateway survive a fork.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from itertools import count
from types import TracebackType
from typing import Any

from tests.support import ROOT

SECONDS_MAX = 600
BROKEN = 3
KILLED = -signal.SIGKILL
_KILL = "kill "

Job = Mapping[str, Any]


class Workers:
    """A parent of workers, and the way to start, await and kill them; a context manager."""

    def __init__(self, module: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, module], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._heard = b""
        self._statuses: dict[str, int] = {}
        self._numbers = count(1)

    def start(self, **job: Any) -> str:
        """Begin a job; returns its name."""
        name = job.setdefault("name", f"w{next(self._numbers):05}")
        self._say(json.dumps(job))
        return str(name)

    def run(self, **job: Any) -> int:
        """Begin a job and await its end; returns its exit status."""
        name = self.start(**job)
        status = self.wait(name)
        if status is None:
            self.kill(name)
            raise AssertionError(f"worker {name} took over {SECONDS_MAX} s: {job}")
        return status

    def kill(self, name: str) -> None:
        """SIGKILL, if the process is still there."""
        self._say(f"{_KILL}{name}")

    def wait(self, name: str, *, seconds: float = SECONDS_MAX) -> int | None:
        """The exit status of a job's process; None while it goes on."""
        deadline = time.monotonic() + seconds
        while name not in self._statuses:
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            self._hear(left)
        return self._statuses[name]

    def close(self) -> None:
        self._process.stdin.close()  # type: ignore[union-attr]
        self._process.wait(SECONDS_MAX)

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _say(self, line: str) -> None:
        self._process.stdin.write(f"{line}\n".encode())  # type: ignore[union-attr]
        self._process.stdin.flush()  # type: ignore[union-attr]

    def _hear(self, seconds: float) -> None:
        output = self._process.stdout.fileno()  # type: ignore[union-attr]
        if not select.select([output], [], [], seconds)[0]:
            return
        data = os.read(output, 65536)
        if not data:
            raise RuntimeError("the parent of the workers has died")
        *lines, self._heard = (self._heard + data).split(b"\n")
        for line in lines:
            told = json.loads(line)
            self._statuses[told["name"]] = told["status"]


def serve(work: Callable[[Job], int | None]) -> None:
    """Fork a worker per line and reap them, until the input ends and the last worker has."""
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
                obey(line.decode(), children, work, source)
        for pid in list(children):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                told = {"name": children.pop(pid), "status": os.waitstatus_to_exitcode(status)}
                sys.stdout.write(json.dumps(told) + "\n")
                sys.stdout.flush()


def obey(line: str, children: dict[int, str], work: Callable[[Job], int | None], source: int) -> None:
    """Begin a job, or kill one. Only a child that is not reaped yet is killed: its pid is still its own."""
    if line.startswith(_KILL):
        for pid, name in children.items():
            if name == line.removeprefix(_KILL):
                os.kill(pid, signal.SIGKILL)
        return
    job = json.loads(line)
    pid = os.fork()
    if pid == 0:
        os.close(source)
        os._exit(status_of(job, work))
    children[pid] = job["name"]


def status_of(job: Job, work: Callable[[Job], int | None]) -> int:
    try:
        return work(job) or 0
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        return BROKEN


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    module = importlib.import_module(sys.argv[1])
    module.preload()
    serve(module.work)
