"""Maintenance that dies: `python -m tests.maintenance.killed ROOT COPIES` forks a process per durable step.

Each works on a copy of ROOT and is killed by SIGKILL before its n-th step; the last one, whose fuse is not
met, ends by itself. One line of JSON per process is printed: the copy, the exit status, the steps begun.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake  # noqa: F401
import pandas  # noqa: F401

import tidemark.upkeep
from tests.crash.steps import BEFORE, Fuse, Steps, table_name, versions_in, wrap
from tests.maintenance.rig import LightDeployment, LightMerger, terms

WINDOW = 9
STEPS_MAX = 200


def wrap_all(steps: Steps) -> None:
    """Everything that maintenance leaves behind, or takes away."""
    from deltalake import DeltaTable

    from tests.crash.light import LightPlane
    from tidemark.delta.store import Store
    from tidemark.delta.table import ControlTable

    wrap(ControlTable, "commit", lambda table, *a, **k: f"commit {table_name(table.uri)}", steps)
    wrap(ControlTable, "sweep", lambda table, **k: f"sweep {table_name(table.uri)}", steps)
    wrap(DeltaTable, "create_checkpoint", lambda table: f"checkpoint {table_name(table.table_uri)}", steps)
    wrap(Store, "put", lambda store, path, data: f"write {versions_in(path)}", steps)
    wrap_first(Store, "delete", lambda store, path: f"delete {path}", steps)
    wrap(LightMerger, "merge", lambda merger, shard, files, **k: f"merge {len(files)}", steps)
    wrap(LightPlane, "discard", lambda plane, txn, token: f"discard {txn}", steps)


def wrap_first(owner: Any, method: str, name_of: Callable[..., str], steps: Steps, *, calls: int = 3) -> None:
    """The same for the first calls only: they are many, and all alike."""
    original, left = getattr(owner, method), [calls]

    def wrapped(*args: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            return original(*args)
        return steps.around(name_of(*args), lambda: original(*args))

    setattr(owner, method, wrapped)


def work(root: Path, trace: Path, number: int) -> None:
    wrap_all(Steps(trace, Fuse(BEFORE, number=number)))
    maintain(root)


def maintain(root: Path) -> None:
    from tidemark.core.ids import WriterToken

    deployment = LightDeployment(root)
    token = WriterToken(f"maintainer-{os.getpid()}")
    tidemark.upkeep.maintain(deployment, token, terms(window=WINDOW), watch=False)


def main(root: Path, copies: Path) -> None:
    for number in range(1, STEPS_MAX):
        copy = copies / f"{number:03}"
        shutil.copytree(root, copy)
        trace = copies / f"{number:03}.trace"
        trace.touch()
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                work(copy, trace, number)
                status = 0
            finally:
                os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        told = {"copy": str(copy), "status": status, "steps": trace.read_text().splitlines()}
        sys.stdout.write(json.dumps(told) + "\n")
        sys.stdout.flush()
        if status != -9:
            return


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
