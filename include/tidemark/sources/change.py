"""What happened to a file after it was bound."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from tidemark.sources.listing import Found
from tidemark.sources.manifest import BoundFile

NAMED_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class Change:
    """One bound file that is not what it was."""

    file: BoundFile
    what: str
    is_removal: bool = False

    def __str__(self) -> str:
        return f"file {self.file.name!r} (number {self.file.seq}) {self.what}"


def listed(changes: Sequence[Change]) -> str:
    """The changes for a message; empty when there are none."""
    more = [f"and {len(changes) - NAMED_MAX} more"] if len(changes) > NAMED_MAX else []
    return "; ".join([*map(str, changes[:NAMED_MAX]), *more])


def find_change(
    folder: str, file: BoundFile, hash_of: Callable[[Found], str], *, thorough: bool = True
) -> Change | None:
    """Compare a file with its binding: size and times first, the content only when one of them moved.

    The time of a file's last change moves for its owner or its name, too, so who looks at many files may
    leave it out (`thorough`). But nobody can set it: it tells of new content under the old size and time."""
    path = f"{folder}/{file.name}"
    try:
        found = os.lstat(path)
        if not stat.S_ISREG(found.st_mode) or ("/" in file.name and _is_outside(folder, path)):
            return Change(file, "was replaced by a link or a folder")
        is_touched = thorough and file.changed_ns not in (0, found.st_ctime_ns)
        if (found.st_size, found.st_mtime_ns) == (file.size, file.mtime_ns) and not is_touched:
            return None
        if found.st_size < file.size:
            return Change(file, f"was truncated from {file.size} to {found.st_size} bytes")
        content = hash_of(Found(file.name, found.st_size, found.st_mtime_ns, found.st_ctime_ns))
    except (FileNotFoundError, NotADirectoryError):
        return Change(file, "was removed", is_removal=True)
    except OSError as error:
        return Change(file, f"can't be read: {error.strerror}")
    if content == file.hash:
        return None
    return Change(file, f"was changed: its hash was {file.hash}, now it is {content}")


def _is_outside(folder: str, path: str) -> bool:
    """Whether a folder on the way has become a link that leads out."""
    base = os.path.realpath(folder)
    return os.path.commonpath([base, os.path.realpath(path)]) != base
