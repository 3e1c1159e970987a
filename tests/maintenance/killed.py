"""Maintenance that dies: a process per durable step, killed by SIGKILL before it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import deltalake  # noqa: F401
import pandas  # noqa: F401

import tidemark.app.maintenance
from tests.maintenance.rig import LightDeployment, terms
from tests.support.copies import at_home
from tests.support.steps import BEFORE, Fuse, Steps, table_name, versions_in, wrap
from tests.support.workers import KILLED, Workers

WINDOW = 9
STEPS_MAX = 200


def wrap_all(steps: Steps) -> None:
    """Everything that maintenance leaves behind, or takes away."""
    from deltalake import DeltaTable

    from tests.support.light import LightMerger, LightPlane
    from tidemark.delta.store import Store
    from tidemark.delta.table import ControlTable

    wrap(ControlTable, "commit", lambda table, *a, **k: f"commit {table_name(table.uri)}", steps)
    wrap(ControlTable, "sweep", lambda table, **k: f"sweep {table_name(table.uri)}", steps)
    wrap(DeltaTable, "create_checkpoint", lambda table: f"checkpoint {table_name(table.table_uri)}", steps)
    wrap(Store, "put_synced", lambda store, path, data: f"write {versions_in(path)}", steps)
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


def preload() -> None:
    """The imports of this module are all that a worker needs."""


def work(job: Mapping[str, Any]) -> None:
    wrap_all(Steps(Path(job["trace"]), Fuse(BEFORE, number=job["number"])))
    maintain(Path(job["root"]))


def maintain(root: Path) -> None:
    from tidemark.core.ids import WriterToken

    deployment = LightDeployment(root)
    token = WriterToken(f"maintainer-{os.getpid()}")
    tidemark.app.maintenance.maintain(deployment, token, terms(window=WINDOW), watch=False)


@dataclass(frozen=True)
class Run:
    """Maintenance of a copy, killed before a step or, the last one, not killed."""

    copy: Path
    status: int
    steps: list[str]


def killed_runs(root: Path, copies: Path) -> Iterator[Run]:
    """Maintenance of copies of ROOT, killed before its first step, its second, and so on; the last one, whose
    fuse is not met, ends by itself."""
    with Workers("tests.maintenance.killed") as workers:
        for number in range(1, STEPS_MAX):
            copy, trace = copies / f"{number:03}", copies / f"{number:03}.trace"
            shutil.copytree(root, copy)
            at_home(copy)
            trace.touch()
            status = workers.run(root=str(copy), trace=str(trace), number=number)
            yield Run(copy, status, trace.read_text().splitlines())
            if status != KILLED:
                return
