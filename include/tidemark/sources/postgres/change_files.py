"""The files of captured changes: written atomically, cut into steps at source commits, removed when unneeded.

A file's name has the commits of its step and a hash of its content:
`<first>-<last>-<number>-<hash>.json.zst`. A file is put if absent: it is written under a temporary name, made
durable, and linked to its name. A capture that is repeated after a crash finds its files. A file that no
binding names is never read.

A step ends at a source commit. A source transaction that is too large to hold in memory is written to several
files (*fragments*) as they fill, and is a step of its own. It becomes visible as a whole, with its binding.

The files hold rows, so only their owner may read them, and the folder's group if the folder's mode allows it.

A shard's own files, whose keys a truncate or a reread deletes, are captured too: as further names of the same
files (hard links), so nothing of them is copied or read.

A file's name also has its position in the write-ahead log: change files that of their last commit, snapshots
and their notes that of the snapshot. A transaction reads commits at or above the position where it begins;
snapshots that were bound before it have a lower position, or are kept until they do. So one position
determines which files can be removed, without reading a manifest: no transaction that begins there or later
reads a file below it, whether a binding names the file or a crash left it.

Catalog records have no position. The newest binding names those that are still compared, and the notes of
snapshots those that will be.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from tidemark.config.model import Transaction
from tidemark.core.binding import Step
from tidemark.core.errors import Determinate
from tidemark.core.ids import Frontier
from tidemark.ports.source import Unneeded
from tidemark.sources.files.bound_files import PARTITION, BoundFile, Manifest, Sweep, TableRead
from tidemark.sources.files.content import HASH_BYTES, footer_hash
from tidemark.sources.postgres.pgoutput import lsn_text
from tidemark.sources.postgres.values import Lines

WAL: Final = "wal"
"""The frontier's partition for the bound position in the write-ahead log. Records belong to `files`."""
FRAGMENT_BYTES: Final = 16 * 1024**2
_CANT_LINK: Final = {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP}
_LEVEL: Final = 1


class ChangeFiles:
    """The folder of captured changes."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)
        self._is_made = False

    def put(self, prefix: str, lines: Sequence[bytes | memoryview], seq: int) -> BoundFile:
        """Write the lines as one file, durable when this returns. The same lines give the same file."""
        data = pa.Codec("zstd", compression_level=_LEVEL).compress(b"".join(lines), asbytes=True)
        content = hashlib.blake2b(data, digest_size=HASH_BYTES).hexdigest()
        path = self.folder / f"{prefix}-{content[:12]}.json.zst"
        if path.exists():
            # The process that linked it may have died before the name was durable, or its sync has failed,
            # and a sync of the same name again proves nothing. The time stays, so that captures which
            # overlap offer the same input.
            self.replace(path, data, mtime_ns=path.stat().st_mtime_ns)
        else:
            self.write(path, data)
        found = path.stat()
        return BoundFile(seq, path.name, found.st_size, content, found.st_mtime_ns)

    def link(self, path: Path, prefix: str, seq: int, sweep: Sweep) -> BoundFile:
        """Give a Parquet file of a shard another name here, durable when this returns. It keeps its content
        when maintenance removes the first name. Raises `FileNotFoundError` if that has happened."""
        content = footer_hash(str(path))
        mine = self.folder / f"{prefix}-{content[:12]}.parquet"
        with self._writing(), suppress(FileExistsError):
            self._make()
            try:
                os.link(path, mine)
            except OSError as error:
                if error.errno not in _CANT_LINK:
                    raise
                self._copy(path, mine)
        with self._writing():
            _sync(self.folder)
        found = mine.stat()
        return BoundFile(seq, mine.name, found.st_size, content, found.st_mtime_ns, sweep=sweep)

    def _copy(self, path: Path, mine: Path) -> None:
        """Copy a file where it can't be linked: it is another user's, or on another disk."""
        aside = self._aside(b"")
        try:
            shutil.copyfile(path, aside)
            with aside.open("rb") as file:
                os.fsync(file.fileno())
            os.link(aside, mine)
        finally:
            aside.unlink(missing_ok=True)

    def write(self, path: Path, data: bytes) -> None:
        """Write a file atomically if it is absent; durable when this returns."""
        with self._writing():
            self._make()
            aside = self._aside(data)
            with suppress(FileExistsError):
                os.link(aside, path)
            aside.unlink(missing_ok=True)
            _sync(self.folder)

    def replace(self, path: Path, data: bytes, *, mtime_ns: int | None = None) -> None:
        """Write a file atomically over an existing one; durable when this returns. `mtime_ns` is the time
        that it gets, by default now."""
        with self._writing():
            self._make()
            aside = self._aside(data)
            if mtime_ns is not None:
                os.utime(aside, ns=(mtime_ns, mtime_ns))
            aside.replace(path)
            _sync(self.folder)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Name the folder where it can't be written. That a file is not there is the caller's to tell."""
        try:
            yield
        except (FileNotFoundError, FileExistsError):
            raise
        except OSError as error:
            raise Determinate(
                f"no change is captured to {self.folder}: {error}",
                hint="nothing was bound or acknowledged; check the free space and the permissions, retry",
            ) from error

    def _aside(self, data: bytes) -> Path:
        path = self.folder / f".{secrets.token_hex(8)}.tmp"
        opened = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(opened, "wb") as file:
                os.fchmod(opened, self.folder.stat().st_mode & 0o660)
                file.write(data)
                file.flush()
                os.fsync(opened)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return path

    def _make(self) -> None:
        """Create the folder. Its name, and those of new folders above it, are durable when this returns."""
        if not self._is_made:
            above = [folder for folder in self.folder.parents if not folder.exists()]
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            self.folder.mkdir(exist_ok=True, mode=0o700)
            for folder in (self.folder, *above):
                _sync(folder.parent)
            self._is_made = True


def _sync(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


@dataclass(slots=True)
class Buffer:
    """Lines that are not written to a file yet."""

    pieces: list[memoryview] = field(default_factory=list)
    count: int = 0
    size: int = 0

    def add(self, lines: Lines, first: int, end: int) -> None:
        data = lines.part(first, end)
        self.pieces.append(data)
        self.count += end - first
        self.size += len(data)

    def move_to(self, other: Buffer) -> None:
        """Move all lines to another buffer."""
        other.count, other.size = other.count + self.count, other.size + self.size
        other.pieces.extend(self.taken())

    def taken(self) -> list[memoryview]:
        pieces, self.pieces, self.count, self.size = self.pieces, [], 0, 0
        return pieces


class StepCutter:
    """Writes records to files, and cuts them into steps at commits. `steps` are the completed ones."""

    def __init__(
        self, files: ChangeFiles, limits: Transaction, lower: Frontier, snapshots: dict[str, TableRead]
    ) -> None:
        self.steps: list[Step] = []
        self._files, self._limits, self._snapshots = files, limits, snapshots
        self._seq, self._wal = lower[PARTITION], lower[WAL]
        self._closed = self._wal
        self._open, self._step = Buffer(), Buffer()
        self._bound: list[BoundFile] = []
        self._records = self._bytes = 0
        self._first = self._last = self._commit = self._spilled = 0

    @property
    def is_begun(self) -> bool:
        """Whether this capture has anything before the open source transaction."""
        return bool(self.steps or self._records or self._wal > self._closed)

    def begin(self, commit: int) -> None:
        """Begin a source transaction; `commit` is the position of its commit."""
        self._commit, self._spilled = commit, 0

    def records(self, lines: Lines, first: int, end: int) -> None:
        """Add records of the open source transaction. A fragment ends with the line that fills it, however
        the lines are split into calls."""
        while first < end:
            filled = lines.bounds[first] + FRAGMENT_BYTES - self._open.size
            upto = end if lines.bounds[end] < filled else int(np.searchsorted(lines.bounds, filled))
            self._open.add(lines, first, upto)
            first = upto
            if self._open.size >= FRAGMENT_BYTES:
                self._begin_spilling()
                self._spill_open()

    def sweep(self, paths: Iterable[Path], sweep: Sweep) -> None:
        """Add deletions of all keys in these files of a shard to the open source transaction."""
        self._begin_spilling()
        self._spill_open()
        for path in paths:
            self._bound.append(self._files.link(path, self._prefix, self._seq, sweep))
            self._seq += 1

    def commit(self, end: int, *, alone: bool = False) -> None:
        """End the open source transaction; the WAL is read up to `end`. With `alone` it gets a step of its
        own, so that it can be skipped by itself."""
        count, size = self._open.count, self._open.size
        if self._spilled:
            self._spill_open()
            self._wal = end
            self.close()
            return
        if alone or not self._fits(count, size):
            self.close()
        if count:
            if not self._records:
                self._first = self._commit
            self._last = self._commit
        self._open.move_to(self._step)
        self._records += count
        self._bytes += size
        self._wal = end
        if alone:
            self.close()
        elif self._step.size >= FRAGMENT_BYTES:
            self._put(self._step)

    def abandon(self) -> None:
        """Discard the open source transaction."""
        self._open.taken()
        if self._spilled:
            self._seq -= len(self._bound)
            self._bound.clear()
            self._spilled = self._records = self._bytes = 0

    def close(self) -> None:
        """End the step at the last commit. Does nothing without a commit since the last step."""
        self._put(self._step)
        if self._bound or self._wal > self._closed:
            manifest = Manifest("json", tuple(self._bound), self._snapshots)
            upper = Frontier.of({PARTITION: self._seq, WAL: self._wal})
            self.steps.append(Step(upper, manifest.to_json()))
        self._bound, self._closed = [], self._wal
        self._records = self._bytes = 0

    def _fits(self, count: int, size: int) -> bool:
        if not self._records:
            return True
        records_max = self._limits.max_records
        too_many = records_max is not None and self._records + count > records_max
        return not too_many and self._bytes + size <= self._limits.max_bytes

    def _begin_spilling(self) -> None:
        """Give the open source transaction a step of its own."""
        if not self._spilled:
            self.close()
            self._first = self._last = self._commit

    def _spill_open(self) -> None:
        self._records += self._open.count
        self._spilled += 1
        self._put(self._open)

    def _put(self, buffer: Buffer) -> None:
        if not buffer.count:
            return
        self._bound.append(self._files.put(self._prefix, buffer.taken(), self._seq))
        self._seq += 1

    @property
    def _prefix(self) -> str:
        """The beginning of the next file's name."""
        return f"{self._first:016x}-{self._last:016x}-{len(self._bound):04d}"


# Removing files that are no longer needed.

TEMPORARY_SECONDS_MAX: Final = 86_400
_CHANGES = re.compile(r"[0-9a-f]{16}-([0-9a-f]{16})-\d{4,}-[0-9a-f]{12}\.(?:json\.zst|parquet)\Z")
_READING = re.compile(r"([0-9a-f]{16})-snapshot-[0-9a-f]{12}-s?\d{4,}-[0-9a-f]{12}\.(?:json\.zst|parquet)\Z")
_NOTE = re.compile(r"snapshot-[0-9a-f]{12}-([0-9a-f]{16})\.json\Z")
_CATALOG = re.compile(r"catalog-([0-9a-f]{16})\.json\Z")
_TEMPORARY = re.compile(r"\.[0-9a-f]{16}\.tmp\Z")


def unneeded(files: ChangeFiles, *, bound: int, acknowledged: int, catalogs: Set[str] | None) -> Unneeded:
    """The files that can be removed, and those that must wait for the slot. `bound` is where the first
    transaction within the retention begins: it needs no file below. Of these, files at or above
    `acknowledged` wait. `catalogs` are the catalog records that the newest binding names; None if nothing is
    bound."""
    free = _free(files, min(bound, acknowledged), catalogs)
    waiting = [one for one in files_below(files, bound) if one not in free]
    held = f"the slot, acknowledged up to {lsn_text(acknowledged)}" if waiting else ""
    return Unneeded(*_counted(free), *_counted(waiting), held)


def let_go(files: ChangeFiles, *, below: int, catalogs: Set[str] | None) -> Unneeded:
    """Delete the files below a position, unfinished writes, and catalog records without a reference; returns
    their count and size."""
    found = _free(files, below, catalogs)
    for path, _ in found:
        path.unlink(missing_ok=True)
    return Unneeded(*_counted(found))


def _free(files: ChangeFiles, below: int, catalogs: Set[str] | None) -> list[tuple[Path, int]]:
    return [*files_below(files, below), *abandoned_writes(files), *_unnamed_catalogs(files, catalogs)]


def _unnamed_catalogs(files: ChangeFiles, named: Set[str] | None) -> list[tuple[Path, int]]:
    """The catalog records that neither a binding nor a note names. A young one may be about to be bound, so
    it is left."""
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
    """The captured files below this position, with their sizes."""
    found: list[tuple[Path, int]] = []
    for path, its in _listed(files):
        match = _CHANGES.match(path.name) or _READING.match(path.name) or _NOTE.match(path.name)
        if match is not None and int(match[1], 16) < lsn:
            found.append((path, its.st_size))
    return found


def let_go_unbound(files: ChangeFiles, *, bound: int, confirmed: int) -> list[str]:
    """The change files above what is bound that the slot does not have any more: a binding had them."""
    found = ((path.name, _CHANGES.match(path.name)) for path, _ in _listed(files))
    return [name for name, match in found if match is not None and bound <= int(match[1], 16) < confirmed]


def abandoned_writes(files: ChangeFiles) -> list[tuple[Path, int]]:
    """The temporary files of processes that died while writing. No write takes a day."""
    old = time.time() - TEMPORARY_SECONDS_MAX
    left = [(path, its) for path, its in _listed(files) if _TEMPORARY.match(path.name)]
    return [(path, its.st_size) for path, its in left if its.st_mtime < old]


def _listed(files: ChangeFiles) -> Iterator[tuple[Path, os.stat_result]]:
    for path in sorted(files.folder.iterdir()) if files.folder.is_dir() else ():
        with suppress(FileNotFoundError):  # Another process may run maintenance at the same time.
            yield path, path.stat()
