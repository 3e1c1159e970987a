"""The files of a landing folder, on a disk or an object store: which can be bound, and which have changed.

A listing of a folder goes by names, patterns, markers and age; it opens no file. It leaves out names that
begin with `.` or `_`, names that writers and browsers use for unfinished files, and everything behind a
symlink: a link could lead out of the folder, or show one file under two names. Files that a user may miss are
reported with the reason.

Objects are bound by key, size and e-tag, without reading their content.

An object appears whole, and its e-tag changes with its content, so nothing has to be hashed. The store is
listed in pages: below the folders that the pattern names, and with `incremental_listing` from the last
bound name on. Objects that were changed or removed since they were bound are found by one request each,
several at a time.

In a bucket of S3 that has versions, an object's version is bound too. A listing doesn't have it, so each new
object costs a request; the first answer says whether the bucket has versions at all. Where a bound object
was changed or removed, its version is looked for, and the message names it.

Known limitations: a prefix without objects looks the same as a misspelt one. A store may give equal content
a new e-tag when it is written again; that counts as a change. Objects are read by their keys, because Spark
opens files by their paths, and a path of Hadoop's connectors names no version. So an older version is not
read: a person makes it the newest one again.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tidemark.config.storage import open_objects
from tidemark.core.errors import Determinate, InvalidUsage
from tidemark.sources.files.bound_files import BoundFile, is_inside

if TYPE_CHECKING:
    from obstore import GetOptions, ObjectMeta
    from obstore.store import ObjectStore

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


REQUESTS_AT_ONCE: Final = 16
PAGE_OBJECTS: Final = 1_000
_GLOB: Final = frozenset("*?[")
_WITH_VERSIONS: Final = ("s3://", "s3a://")


class Objects:
    """The objects below a prefix, as the files of a source."""

    def __init__(self, uri: str, *, pattern: str | None = None, store: ObjectStore | None = None) -> None:
        self._uri = uri
        self._given = store
        self._prefix = literal_folders(pattern)

    @property
    def _store(self) -> ObjectStore:
        if self._given is None:
            self._given = open_objects(self._uri, {})
        return self._given

    def list_first(self) -> None:
        """Request the first page only; raises where the store refuses or does not answer."""
        with self._answers():
            next(iter(self._store.list(self._prefix or None, chunk_size=1)), None)

    def list_into(self, listing: Listing, *, after: str | None = None) -> None:
        """Add all objects, or those whose names sort after `after`."""
        with self._answers():
            pages = self._store.list(self._prefix or None, offset=after, chunk_size=PAGE_OBJECTS)
            for page in pages:
                for one in page:
                    self._take(one, listing)

    def _take(self, one: ObjectMeta, listing: Listing) -> None:
        name = one["path"]
        listing.names.add(name)
        if any(map(is_temporary, name.split("/"))) or not is_inside(name):
            return
        if listing.takes(name):
            listing.files[name] = self._found(name, one)

    def _found(self, name: str, one: ObjectMeta) -> Found:
        tag = one["e_tag"]
        if not tag:
            raise InvalidUsage(f"{self._uri} gives objects no e-tags", hint="use a store that has them")
        written_ns = int(one["last_modified"].timestamp() * 1e6) * 1_000
        tagged = f"etag:{tag.strip(chr(34))}"
        return Found(name, one["size"], written_ns, 0, tagged, one["version"] or "")

    def with_versions(self, files: Sequence[Found]) -> list[Found]:
        """The same files, if the bucket has no versions; else as they are now, with their versions, without
        those that are gone. One that was written again since it was listed is not left for the next run: an
        incremental listing would not have it."""
        if not files or not self._uri.startswith(_WITH_VERSIONS):
            return list(files)
        first = self._now(files[0].name)
        if first is not None and not first.version:
            return list(files)
        with ThreadPoolExecutor(min(REQUESTS_AT_ONCE, len(files))) as pool:
            others = pool.map(self._now, [file.name for file in files[1:]])
            return [one for one in (first, *others) if one is not None]

    def _now(self, name: str) -> Found | None:
        """An object as it is now; None if it is gone."""
        from obstore.exceptions import NotFoundError

        with self._answers():
            try:
                return self._found(name, self._store.head(name))
            except (NotFoundError, FileNotFoundError):
                return None

    def has_all(self, files: Sequence[BoundFile]) -> bool:
        """Whether all of the files exist, changed or not."""
        return not any(change.is_removal for change in self.changes(files))

    def changes(self, files: Sequence[BoundFile]) -> list[Change]:
        """The files that were changed or removed, in their order."""
        if not files:
            return []
        with ThreadPoolExecutor(min(REQUESTS_AT_ONCE, len(files))) as pool:
            return [change for change in pool.map(self._change, files) if change is not None]

    def _change(self, file: BoundFile) -> Change | None:
        found = self._now(file.name)
        if found is None:
            return Change(file, f"was removed{self._version_left(file)}", is_removal=True)
        if found.tag == file.hash:
            return None
        what = f"was changed: its e-tag was {_shown(file.hash)}, now it is {_shown(found.tag)}"
        if found.size < file.size:
            what = f"was truncated from {file.size} to {found.size} bytes"
        return Change(file, f"{what}{self._version_left(file)}")

    def _version_left(self, file: BoundFile) -> str:
        """Whether the bucket still has the bound version of an object that was changed or removed, as text
        for a message; empty if no version was bound."""
        from obstore.exceptions import BaseError, NotFoundError

        if not file.version:
            return ""
        try:
            options: GetOptions = {"version": file.version, "head": True}
            found = self._found(file.name, self._store.get(file.name, options=options).meta)
        except (NotFoundError, FileNotFoundError):
            return f" (its version {file.version} is gone too)"
        except BaseError as error:
            return f" (whether its version {file.version} is there can't be seen: {_first_line(error)})"
        if found.tag != file.hash:
            return f" (its version {file.version} is gone too)"
        return f" (its version {file.version} is still there: delete the versions that are newer)"

    @contextmanager
    def _answers(self) -> Iterator[None]:
        """Turn errors of a store that refuses or does not answer into errors with a remedy."""
        from obstore.exceptions import (
            BaseError,
            NotFoundError,
            PermissionDeniedError,
            UnauthenticatedError,
        )

        try:
            yield
        except (PermissionDeniedError, UnauthenticatedError, NotFoundError) as error:
            raise InvalidUsage(
                f"{self._uri} can't be listed: {_first_line(error)}",
                hint="check source.path and the credentials; `tidemark doctor -e` tries them",
            ) from error
        except BaseError as error:
            raise Determinate(f"{self._uri} does not answer: {_first_line(error)}", hint="retry") from error


def literal_folders(pattern: str | None) -> str:
    """The literal folders that a pattern begins with; empty where there are none."""
    found: list[str] = []
    for name in (pattern or "").split("/")[:-1]:
        if _GLOB & set(name):
            break
        found.append(name)
    return "/".join(found)


def _shown(tag: str) -> str:
    return tag.removeprefix("etag:")


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:300]
