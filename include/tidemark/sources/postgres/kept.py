"""Captured files that nobody needs any more.

Every file tells in its name up to where in the database's log it goes: change files the last commit that is
in them, first readings and their notes the position that they stand for. A transaction reads what was
committed at or above the position where it begins, and readings that were bound before it stand for a lower
one, or are kept until they do. So one position decides, and no manifest has to be read: what lies below it is
read by no transaction that begins there or later, whether a binding names it or a crash has left it.

Records of the catalog have no position. The newest binding names those that are still compared with, and the
notes of readings those that will be.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Sequence, Set
from contextlib import suppress
from pathlib import Path
from typing import Final

from tidemark.ports.source import Unneeded
from tidemark.sources.lsn import lsn_text
from tidemark.sources.postgres.changes import ChangeFiles

TEMPORARY_SECONDS_MAX: Final = 86_400
_CHANGES = re.compile(r"[0-9a-f]{16}-([0-9a-f]{16})-\d{4,}-[0-9a-f]{12}\.json\.zst\Z")
_READING = re.compile(r"([0-9a-f]{16})-snapshot-[0-9a-f]{12}-s?\d{4,}-[0-9a-f]{12}\.json\.zst\Z")
_NOTE = re.compile(r"snapshot-[0-9a-f]{12}-([0-9a-f]{16})\.json\Z")
_CATALOG = re.compile(r"catalog-([0-9a-f]{16})\.json\Z")
_TEMPORARY = re.compile(r"\.[0-9a-f]{16}\.tmp\Z")


def unneeded(files: ChangeFiles, *, bound: int, acknowledged: int, catalogs: Set[str] | None) -> Unneeded:
    """What goes no further than where the first kept transaction begins. Of that, what the slot is not past
    yet has to wait. `catalogs` are those that the newest binding names; None where nothing is bound."""
    free = _free(files, min(bound, acknowledged), catalogs)
    waiting = [one for one in files_below(files, bound) if one not in free]
    held = f"the slot, acknowledged up to {lsn_text(acknowledged)}" if waiting else ""
    return Unneeded(*_counted(free), *_counted(waiting), held)


def let_go(files: ChangeFiles, *, below: int, catalogs: Set[str] | None) -> Unneeded:
    """Delete what lies below a position, what was never finished, and records of the catalog that nothing
    names; returns what went."""
    found = _free(files, below, catalogs)
    for path, _ in found:
        path.unlink(missing_ok=True)
    return Unneeded(*_counted(found))


def _free(files: ChangeFiles, below: int, catalogs: Set[str] | None) -> list[tuple[Path, int]]:
    return [*files_below(files, below), *abandoned_writes(files), *_unnamed_catalogs(files, catalogs)]


def _unnamed_catalogs(files: ChangeFiles, named: Set[str] | None) -> list[tuple[Path, int]]:
    """Records of the catalog that nothing names. A young one may be about to be bound."""
    if named is None:
        return []
    found = [(path, its, match[1]) for path, its in _listed(files) if (match := _CATALOG.match(path.name))]
    notes = "".join(path.read_text() for path, _ in _listed(files) if _NOTE.match(path.name))
    old = time.time() - TEMPORARY_SECONDS_MAX
    return [
        (path, its.st_size)
        for path, its, name in found
        if its.st_mtime < old and name not in named and name not in notes
    ]


def _counted(files: Sequence[tuple[Path, int]]) -> tuple[int, int]:
    return len(files), sum(size for _, size in files)


def files_below(files: ChangeFiles, lsn: int) -> list[tuple[Path, int]]:
    """The captured files that go no further than this position, and their sizes."""
    found: list[tuple[Path, int]] = []
    for path, its in _listed(files):
        match = _CHANGES.match(path.name) or _READING.match(path.name) or _NOTE.match(path.name)
        if match is not None and int(match[1], 16) < lsn:
            found.append((path, its.st_size))
    return found


def abandoned_writes(files: ChangeFiles) -> list[tuple[Path, int]]:
    """Files that a process began to write and died over: nobody writes one for a day."""
    old = time.time() - TEMPORARY_SECONDS_MAX
    left = [(path, its) for path, its in _listed(files) if _TEMPORARY.match(path.name)]
    return [(path, its.st_size) for path, its in left if its.st_mtime < old]


def _listed(files: ChangeFiles) -> Iterator[tuple[Path, os.stat_result]]:
    for path in sorted(files.folder.iterdir()) if files.folder.is_dir() else ():
        with suppress(FileNotFoundError):  # Another maintenance may be at it.
            yield path, path.stat()
