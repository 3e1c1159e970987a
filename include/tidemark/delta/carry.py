"""A compaction that wins against publishers: rows that were hidden while it worked are hidden in its file
too.

A compaction copies the rows of some files that their vectors don't hide, in their order. So the place of each
row in the copy follows from its old one: how many rows lie before its file's, its number, and how many hidden
rows stood before it (`new = base + row - rank`). What a publish has hidden since is carried over by that, and
the copy goes in with a vector of its own, instead of being made again and again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tidemark.core.errors import Determinate, InvalidUsage
from tidemark.delta.commit import Action
from tidemark.delta.head import TableHead
from tidemark.delta.vectors import Rows


@dataclass(frozen=True, slots=True)
class Copied:
    """A file that was copied: how many rows it has, and which were hidden then, and so left out."""

    path: str
    rows: int
    hidden: Rows


def carried(copied: Sequence[Copied], now: Mapping[str, Rows]) -> Rows:
    """The rows of the copy that have to be hidden, when `now` are the hidden rows of the same files at a
    later head. A file that is gone there has no row left. `Determinate` when rows came back: then begin
    again."""
    base, found = 0, []
    for file in copied:
        later = now.get(file.path)
        if later is None:
            gone = np.arange(file.rows - len(file.hidden), dtype=np.uint32)
        else:
            if not file.hidden.issubset(later):
                raise Determinate(
                    f"rows of {file.path} came back while it was copied", hint="begin the compaction again"
                )
            before = np.frombuffer(file.hidden.to_array(), np.uint32)
            since = np.frombuffer((later - file.hidden).to_array(), np.uint32)
            gone = since - np.searchsorted(before, since).astype(np.uint32)
        found.append(gone + np.uint32(base))
        base += file.rows - len(file.hidden)
    return Rows(np.concatenate(found)) if found else Rows()


def stranger(before: TableHead, actions: Sequence[Action], after: TableHead) -> str:
    """The name of a commit that is not ours and changed rows; empty for one that only rearranged files or
    described the table. Its name alone says nothing: what it did to files, counts and columns does. One that
    can't be shown to be harmless, because its files don't say how many rows they have, is none."""
    files = [line[kind] for line in actions for kind in ("add", "remove") if kind in line]
    info: Action = next((line["commitInfo"] for line in actions if "commitInfo" in line), {})
    name = str(info.get("operation") or "a commit without a name")
    if any(file.get("dataChange", True) for file in files) or any("cdc" in line for line in actions):
        return name
    touched = {str(file["path"]) for file in files}
    try:
        counts = [
            sum(head.files[path].live for path in touched if path in head.files) for head in (before, after)
        ]
    except InvalidUsage:
        return f"{name} with rows that can't be counted"
    kept = _columns(before).items() <= _columns(after).items()
    return "" if counts[0] == counts[1] and kept else name


def _columns(head: TableHead) -> dict[str, str]:
    """The columns by their names; a nested type may get fields, so only that it is one is told."""
    fields = json.loads(head.metadata.get("schemaString") or "{}").get("fields", ())
    return {
        field["name"]: field["type"] if isinstance(field["type"], str) else field["type"]["type"]
        for field in fields
    }
