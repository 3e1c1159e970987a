"""What a Delta table's log says of its files: which are active, which were taken out and when.

Read from the last checkpoint and the entries after it, by the protocol's rule that the last word on a file
counts. delta-rs tells the active files, but neither when others were taken out nor how many rows a deletion
vector hides. A checkpoint forgets what was taken out longer ago than the table's
`delta.deletedFileRetentionDuration`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from tidemark.core.errors import Determinate
from tidemark.delta.store import Store


@dataclass(frozen=True, slots=True)
class ActiveFile:
    """A file that a table's newest version has; `hidden` rows of it a deletion vector takes out."""

    bytes: int
    rows: int
    hidden: int


@dataclass(frozen=True, slots=True)
class TableFiles:
    """The files of a table by their paths; for those that were taken out, when (milliseconds)."""

    active: Mapping[str, ActiveFile] = field(default_factory=dict)
    removed_ms: Mapping[str, int] = field(default_factory=dict)


def read_files(store: Store, version: int) -> TableFiles:
    """The files of a table at a version that is its newest one, or was a moment ago."""
    active: dict[tuple[str, str], ActiveFile] = {}
    removed: dict[tuple[str, str], int] = {}
    for kind, action in _actions(store, version):
        vector = action.get("deletionVector") or {}
        key = unquote(action["path"]), str(vector.get("pathOrInlineDv") or "")
        if kind == "add":
            stats = json.loads(action.get("stats") or "{}")
            hidden = int(vector.get("cardinality") or 0)
            active[key] = ActiveFile(int(action["size"]), int(stats.get("numRecords") or 0), hidden)
            removed.pop(key, None)
        else:
            removed[key] = int(action.get("deletionTimestamp") or 0)
            active.pop(key, None)
    paths = {path: file for (path, _), file in active.items()}
    # A file whose deletion vector was replaced is both removed and active.
    return TableFiles(paths, {path: ms for (path, _), ms in removed.items() if path not in paths})


def _actions(store: Store, version: int) -> Iterator[tuple[str, dict[str, Any]]]:
    base, parts = _last_checkpoint(store)
    if base > version:
        base, parts = -1, 0
    names = [f"{base:020}.checkpoint.{at:010}.{parts:010}.parquet" for at in range(1, parts + 1)]
    for name in names or ([f"{base:020}.checkpoint.parquet"] if base >= 0 else []):
        yield from _in_checkpoint(_got(store, name))
    for entry in range(base + 1, version + 1):
        lines = [json.loads(line) for line in _got(store, f"{entry:020}.json").splitlines()]
        # A commit's removals come first: it may put a file back with another deletion vector.
        for kind in ("remove", "add"):
            yield from ((kind, line[kind]) for line in lines if kind in line)


def _in_checkpoint(data: bytes) -> Iterator[tuple[str, dict[str, Any]]]:
    # Here and not above, because only maintenance comes here, and everybody else starts sooner without it.
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table(pa.BufferReader(data), columns=["remove", "add"], use_threads=False)
    for kind in ("remove", "add"):
        yield from ((kind, row) for row in table[kind].to_pylist() if row and row.get("path") is not None)


def _last_checkpoint(store: Store) -> tuple[int, int]:
    try:
        found = json.loads(store.get("_delta_log/_last_checkpoint"))
    except FileNotFoundError:
        return -1, 0
    except OSError as error:
        raise Determinate(f"the last checkpoint of a table can't be read: {error}", hint="retry") from error
    return int(found["version"]), int(found.get("parts") or 0)


def _got(store: Store, name: str) -> bytes:
    try:
        return store.get(f"_delta_log/{name}")
    except OSError as error:
        raise Determinate(
            f"{name} of a table's log can't be read: {error}",
            hint="retry: it may have been cleaned meanwhile",
        ) from error
