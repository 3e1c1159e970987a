"""The files of a folder: those that can be bound, and changes to those that are bound.

A listing goes by names, patterns, markers and age; it opens no file. It leaves out names that begin with `.`
or `_`, names that writers and browsers use for unfinished files, and everything behind a symlink: a link
could lead out of the folder, or show one file under two names. Files that a user may miss are reported with
the reason.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from tidemark.core.errors import InvalidUsage
from tidemark.sources.files.manifest import BoundFile

TEMPORARY_SUFFIXES: Final = (
    ".tmp", ".temp", ".part", ".partial", ".crdownload", ".download", ".filepart", ".inprogress", ".swp",
    "._copying_", "~",
)  # fmt: skip
FORMAT_SUFFIXES: Final = {
    "json": (".json", ".jsonl", ".ndjson"),
    "csv": (".csv", ".tsv"),
    "parquet": (".parquet",),
}
COMPRESSION_SUFFIXES: Final = (".gz", ".zst")
LAX_SUFFIXES: Final = (".bz2", ".deflate", ".lz4", ".snappy")
"""Suffixes that are refused: if the content is not compressed that way, Spark reads the file as empty."""


@dataclass(frozen=True, slots=True)
class Found:
    """A file of the folder."""

    name: str
    size: int
    mtime_ns: int
    changed_ns: int
    tag: str = ""
    """An object's e-tag, which stands for its content; a file of a disk has none."""
    version: str = field(default="", compare=False)
    """An object's version, where it is known."""

    def settled_at(self, now_ns: int) -> int:
        """The time of the last write. If that is in the future, the inode's change time is used instead."""
        return self.mtime_ns if self.mtime_ns <= now_ns else self.changed_ns


@dataclass(frozen=True, slots=True)
class Skipped:
    """A file that is not bound now, and why. A file that `waits` is likely to be bound by a later run."""

    name: str
    reason: str
    waits: bool = False


def is_temporary(name: str) -> bool:
    """Whether a file's name marks it as hidden or unfinished."""
    return name.startswith((".", "_")) or name.lower().endswith(TEMPORARY_SUFFIXES)


def matcher(pattern: str | None, file_format: str) -> Callable[[str], bool]:
    """A predicate for relative names: the glob `pattern`, or else the suffixes of the format."""
    if pattern is not None:
        compiled = re.compile(glob_to_regex(pattern), re.DOTALL)
        return lambda name: compiled.match(name) is not None
    plain = FORMAT_SUFFIXES[file_format]
    packed = () if file_format == "parquet" else COMPRESSION_SUFFIXES
    suffixes = plain + tuple(suffix + packing for suffix in plain for packing in packed)
    return lambda name: name.lower().endswith(suffixes)


def glob_to_regex(pattern: str) -> str:
    """The regular expression for a glob. `**` as a whole name matches any folders, `*` and `?` stay within
    one name, `[ab]` and `[!ab]` match one character.

    The text between two stars matches at its first occurrence and is never retried, so for every pattern the
    time to match grows only with the length of the name."""
    names = pattern.split("/")
    runs: list[list[str]] = [[]]
    for name in names[:-1]:
        if name == "**":
            runs.append([])
        else:
            runs[-1].append(_name_to_regex(name) + "/")
    runs[-1].append(".*" if names[-1] == "**" else _name_to_regex(names[-1]))
    first, *others = ["".join(run) for run in runs]
    return _starred(first, others, r"(?:[^/]+/)") + r"\Z"


def _name_to_regex(name: str) -> str:
    texts = [""]
    at = 0
    while at < len(name):
        klass = re.match(r"\[(!?)([^\]]+)\]", name[at:])
        if klass is not None:
            members = re.sub(r"([\\^\[])", r"\\\1", klass[2])
            texts[-1] += f"[{'^/' if klass[1] else ''}{members}]"
            at += klass.end()
            continue
        if name[at] == "*":
            texts.append("")
        else:
            texts[-1] += r"[^/]" if name[at] == "?" else re.escape(name[at])
        at += 1
    return _starred(texts[0], texts[1:], r"[^/]")


def _starred(first: str, others: Sequence[str], one: str) -> str:
    """A regular expression for the texts with any number of `one` between them."""
    if not others:
        return first
    return first + "".join(f"(?>{one}*?{text})" for text in others[:-1]) + f"{one}*{others[-1]}"


class Listing:
    """One look at a folder: `files` by name, all `names` seen, and what was `skipped`. Without a folder it is
    empty, for who lists something else."""

    def __init__(self, folder: str | None, matches: Callable[[str], bool]) -> None:
        self.files: dict[str, Found] = {}
        self.names: set[str] = set()
        self.skipped: list[Skipped] = []
        self._matches = matches
        if folder is None:
            return
        try:
            self._walk(folder, "")
        except FileNotFoundError:
            raise InvalidUsage(
                f"source folder {folder!r} is not there", hint="create it, mount it, or correct source.path"
            ) from None
        except (PermissionError, NotADirectoryError) as error:
            raise InvalidUsage(
                f"source folder {folder!r} can't be listed: {error.strerror}",
                hint="give this user the right to read it, or correct source.path",
            ) from None

    def _walk(self, folder: str, prefix: str) -> None:
        pending = [(folder, prefix)]
        while pending:
            place, before = pending.pop()
            try:
                entries = os.scandir(place)
            except (FileNotFoundError, PermissionError, NotADirectoryError) as error:
                if not before:
                    raise
                self.skipped.append(Skipped(before, f"the folder can't be listed: {error.strerror}"))
                continue
            with entries:
                pending.extend(self._take(entries, before))

    def _take(self, entries: Iterator[os.DirEntry[str]], before: str) -> Iterator[tuple[str, str]]:
        for entry in entries:
            name = before + entry.name
            self.names.add(name)
            if is_temporary(entry.name):
                continue
            if entry.is_symlink():
                self.skipped.append(Skipped(name, "it is a symlink"))
            elif entry.is_dir(follow_symlinks=False):
                yield entry.path, f"{name}/"
            elif self.takes(name):
                self._add(entry, name)

    def takes(self, name: str) -> bool:
        """Whether a name is one to be taken; one that matches, and can't be read, is noted as skipped."""
        if not self._matches(name):
            return False
        try:
            name.encode()
        except UnicodeEncodeError:
            self.skipped.append(Skipped(ascii(name), "its name is not UTF-8"))
            return False
        if ":" in name.rpartition("/")[2]:
            # Hadoop takes what stands before it for the scheme of a URI, and every read would fail.
            self.skipped.append(Skipped(name, "Spark can't read names with a colon: rename it"))
            return False
        if name.lower().endswith(LAX_SUFFIXES):
            reason = "files compressed this way can't be read safely: use .gz or .zst"
            self.skipped.append(Skipped(name, reason))
            return False
        return True

    def _add(self, entry: os.DirEntry[str], name: str) -> None:
        try:
            found = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            return  # The file was renamed or removed after the folder was read.
        if not stat.S_ISREG(found.st_mode):
            self.skipped.append(Skipped(name, "it is not a regular file"))
            return
        self.files[name] = Found(name, found.st_size, found.st_mtime_ns, found.st_ctime_ns)

    def with_markers(self, marker: str | None) -> Iterator[Found]:
        """The files in order of names. With a `marker`, only those whose marker exists, and no marker files;
        files without theirs are added to `skipped`."""
        markers: dict[str, str] = {}
        if marker is not None:
            for name in self.files:
                folder, _, own = name.rpartition("/")
                beside = marker.replace("{name}", own)
                markers[name] = f"{folder}/{beside}" if folder else beside
        belongs = set(markers.values())
        for name in sorted(self.files):
            if name in belongs:
                continue
            if marker is not None and markers[name] not in self.names:
                reason = f"its marker {markers[name]!r} is not there"
                self.skipped.append(Skipped(name, reason, waits=True))
                continue
            yield self.files[name]


# Changes to bound files.

NAMED_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class Change:
    """A change to a bound file."""

    file: BoundFile
    what: str
    is_removal: bool = False

    def __str__(self) -> str:
        return f"file {self.file.name!r} (number {self.file.seq}) {self.what}"


def listed(changes: Sequence[Change]) -> str:
    """The changes as text for a message; empty if there are none."""
    more = [f"and {len(changes) - NAMED_MAX} more"] if len(changes) > NAMED_MAX else []
    return "; ".join([*map(str, changes[:NAMED_MAX]), *more])


def find_change(
    folder: str, file: BoundFile, hash_of: Callable[[Found], str], *, thorough: bool = True
) -> Change | None:
    """Compare a file with its binding: first size and times, and the content only if one of them differs.

    Users can't set the inode's change time, so it reveals new content under the old size and time. It also
    moves when the owner or the name changes. A check of many files may skip it (`thorough=False`)."""
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
    """Whether a symlink on the path leaves the folder."""
    base = os.path.realpath(folder)
    return os.path.commonpath([base, os.path.realpath(path)]) != base
