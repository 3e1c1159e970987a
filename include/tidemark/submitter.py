"""A submitted job ends when the task that waits for it is gone.

A task that is killed with SIGKILL can't end the job that it has submitted; the job would go on beside the
task's next try. So the job is told which process waits for it, where that runs on the same machine, and looks
after it.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

SUBMITTER: Final = "TIDEMARK_SUBMITTER"
LOOK_SECONDS: Final = 1.0
GONE: Final = 75
"""The exit code of a job that nobody waits for."""


def started_at(pid: int) -> str:
    """When a process began, so that a pid that was given to another one is not taken for it; empty for one
    that is not there, or has ended and waits to be collected."""
    try:
        state, *facts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if state == "Z" else facts[18]


def this_submitter() -> dict[str, str]:
    """What a job that this process submits finds in its environment; nothing where processes can't be told
    apart."""
    began = started_at(os.getpid())
    return {SUBMITTER: f"{os.getpid()}:{began}"} if began else {}


def is_gone(submitter: str) -> bool:
    """Whether the process that a job was told of has ended."""
    pid, _, began = submitter.partition(":")
    return started_at(int(pid)) != began


def end_with_submitter(environ: Mapping[str, str] = os.environ) -> None:
    """From now on, end this process when the one that has submitted it is gone. Spark's process ends with
    its driver."""
    submitter = environ.get(SUBMITTER)
    if submitter:
        threading.Thread(target=_watch, args=(submitter,), name="submitter", daemon=True).start()


def _watch(submitter: str) -> None:
    while not is_gone(submitter):
        time.sleep(LOOK_SECONDS)
    sys.stderr.write("the task that submitted this job is gone: ending\n")
    sys.stderr.flush()
    os._exit(GONE)
