"""The durable steps of a process, counted and named from the outside, and the fuse that kills it at one.

The product has no switch for this: its own methods are wrapped in the process that is going to die. A
step is everything that leaves something behind: a Delta table made, a record file written, a log entry
committed, parts written, a state committed, tombstones written, the source acknowledged. `read_back`
leaves nothing behind, and is there because a gate is a good place to die at.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BEFORE, AFTER = "before", "after"


@dataclass(frozen=True)
class Fuse:
    """Die before or after a step: the one of this name, or, without a name, the n-th of the process."""

    when: str
    name: str = ""
    number: int = 0

    def burns(self, when: str, name: str, number: int) -> bool:
        return when == self.when and (name == self.name if self.name else number == self.number)


class Steps:
    """What this process has done so far; `trace` keeps the names for who comes after."""

    def __init__(self, trace: Path, fuse: Fuse | None = None) -> None:
        self._trace = trace
        self._fuse = fuse
        self._number = 0
        self._counts: Counter[str] = Counter()

    def nth(self, name: str) -> str:
        """A step by how often this process has come to it."""
        self._counts[name] += 1
        return f"{name} no. {self._counts[name]}"

    def around(self, name: str, call: Callable[[], Any]) -> Any:
        self._number += 1
        number = self._number
        with self._trace.open("a", encoding="utf-8") as file:
            file.write(f"{name}\n")
        self._meet(BEFORE, name, number)
        result = call()
        self._meet(AFTER, name, number)
        return result

    def _meet(self, when: str, name: str, number: int) -> None:
        if self._fuse is not None and self._fuse.burns(when, name, number):
            os.kill(os.getpid(), signal.SIGKILL)


def wrap(owner: Any, method: str, name_of: Callable[..., str], steps: Steps) -> None:
    """Count every call of a function or method of the product as a step."""
    original = getattr(owner, method)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return steps.around(name_of(*args, **kwargs), lambda: original(*args, **kwargs))

    setattr(owner, method, wrapped)


def table_name(uri: str) -> str:
    """A table by the last two folders of its address: `orders/log`, `_control/history`."""
    return "/".join(uri.rstrip("/").split("/")[-2:])


DECIDED = {"bound": "bind", "sealed": "seal"}
REPEATED = ("_control/attempts", "_control/journal")
"""Every try adds to these, so that the same step has another version in each."""


def versions_in(path: str) -> str:
    """The table versions that a record file is for, which its name `r-<from>-<to>-…` begins with; a state's
    file of deletion vectors has another."""
    if not path.startswith("r-"):
        return "vectors"
    first, last = path.split("-")[1:3]
    return f"{int(first)}-{int(last)}"


def wrap_control(steps: Steps) -> None:
    """Every table made, every record file written and removed, every log entry, all housekeeping."""
    from deltalake import DeltaTable

    from tidemark.delta.store import Store
    from tidemark.delta.table import ControlTable

    def place(table: Any) -> str:
        return f"{table_name(table.table_uri)} {table.version()}"

    def at_version(table: Any, *args: Any, moved: Mapping[str, int], **kwargs: Any) -> str:
        """The history's commits by what they decide."""
        decided = next((word for mark, word in DECIDED.items() if mark in moved), "")
        what = decided or f"commit {table_name(table.uri)}"
        return steps.nth(what) if what.endswith(REPEATED) else f"{what} {table.version + 1}"

    def record_file(store: Any, path: str, data: object) -> str:
        what = f"write {table_name(store.uri)}"
        return steps.nth(what) if what.endswith(REPEATED) else f"{what} {versions_in(path)}"

    wrap(ControlTable, "_create", lambda table, *args: f"make {table_name(table.uri)}", steps)
    wrap(ControlTable, "commit", at_version, steps)
    for housekeeping in ("create_checkpoint", "cleanup_metadata"):
        wrap(DeltaTable, housekeeping, lambda table, what=housekeeping: f"{what} {place(table)}", steps)
    wrap(Store, "put_synced", record_file, steps)


def wrap_planes(steps: Steps) -> None:
    """Every shard's parts, the whole staging, the gate, tombstones, state commits, discards."""
    from tidemark.spark import state
    from tidemark.spark.fold import Sink
    from tidemark.spark.parts import PartStore
    from tidemark.spark.plane import SparkPlane

    wrap(Sink, "take", lambda sink, shard, frame: f"parts {shard} {sink.txn}", steps)
    wrap(SparkPlane, "stage", lambda plane, binding, token: f"stage {binding.txn}", steps)
    wrap(SparkPlane, "read_back", lambda plane, staged, **kwargs: f"gate {staged.txn}", steps)
    wrap(PartStore, "discard", lambda store, txn, token: f"discard {txn}", steps)

    wrap(state, "write_tombstones", lambda tail, spec, **kwargs: f"tombstones {spec.name}", steps)
    wrap(
        state.SparkStatePlane,
        "_commit",
        lambda plane, shard, version, commit, **change: f"state {shard} {commit.txn}",
        steps,
    )


def wrap_source(steps: Steps, acknowledged: Path) -> None:
    """Acknowledgements; each is also written down, for the recompute to look at."""
    from tidemark.sources.files.source import FileSource

    original = FileSource.acknowledge

    def acknowledge(source: Any, frontier: Any) -> None:
        def call() -> None:
            original(source, frontier)
            with acknowledged.open("a", encoding="utf-8") as file:
                file.write(f"{frontier['files']}\n")

        steps.around(f"acknowledge {frontier['files']}", call)

    FileSource.acknowledge = acknowledge  # type: ignore[method-assign]
