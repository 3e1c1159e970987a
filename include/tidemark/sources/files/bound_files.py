"""The files that are bound: the manifest of one binding, and an index of the files of all bindings.

A manifest has exactly which files, in which order, with which content. The text is JSON, `{"kind": "files",
"format": …, "files": [{"seq", "name", "size", "hash", "mtime_ns", "changed_ns", "sweep", "version"}, …]}`. A
file's *sequence number* is its offset in the only partition, `files`. Numbers are dense from 0, in the order
of binding.

The index is on disk, so that a run reads only the newest bindings. It is a cache. It stores a mark, a hash of
the binding, for each transaction. If a mark differs from the ledger's binding, or the index is a copy or
can't be used, it is built again from the bindings. Several processes may use it at once. A process that read
the ledger at an older version sees only the transactions of that version.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from tidemark.core.binding import Binding
from tidemark.core.errors import InvariantViolation
from tidemark.core.ids import Txn

PARTITION: Final = "files"
_KIND = "files"


@dataclass(frozen=True, slots=True)
class Sweep:
    """What a Parquet file of a shard's rows stands for: a deletion of each row's key. `record_end` is the end
    of these records, after their key."""

    shard: str
    record_end: str


@dataclass(frozen=True, slots=True)
class BoundFile:
    """A file as it was when it was bound. `name` is relative to the source's folder, with `/`. `changed_ns`
    is the inode's change time, which users can't set; 0 if it is not recorded. `sweep` is given for a file
    that is no list of records. `version` is the object's in a bucket that has versions, to restore it by."""

    seq: int
    name: str
    size: int
    hash: str
    mtime_ns: int
    changed_ns: int = 0
    sweep: Sweep | None = None
    version: str = ""


@dataclass(frozen=True, slots=True)
class TableRead:
    """The last snapshot of a database table: its position in the write-ahead log, the table's oid (a table of
    the same name that was created again has another one), and the record of its catalog entry. `oid` is 0 and
    `catalog` empty if not recorded."""

    lsn: int
    oid: int = 0
    catalog: str = ""


@dataclass(frozen=True, slots=True)
class Manifest:
    """The files of one transaction, in order of their sequence numbers.

    `snapshots` is used for a captured database: for each table its last snapshot. Every manifest has those of
    all tables read so far."""

    format: str
    files: tuple[BoundFile, ...]
    snapshots: Mapping[str, TableRead] = field(default_factory=dict)

    def to_json(self) -> str:
        files = [
            {"seq": f.seq, "name": f.name, "size": f.size, "hash": f.hash, "mtime_ns": f.mtime_ns}
            | ({"changed_ns": f.changed_ns} if f.changed_ns else {})
            | ({"sweep": [f.sweep.shard, f.sweep.record_end]} if f.sweep is not None else {})
            | ({"version": f.version} if f.version else {})
            for f in self.files
        ]
        lsns = {table: read.lsn for table, read in self.snapshots.items()}
        oids = {table: read.oid for table, read in self.snapshots.items() if read.oid}
        catalogs = {table: read.catalog for table, read in self.snapshots.items() if read.catalog}
        named = (("snapshots", lsns), ("oids", oids), ("catalogs", catalogs))
        more = {key: one for key, one in named if one}
        found = {"kind": _KIND, "format": self.format, "files": files, **more}
        return json.dumps(found, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        """The manifest of a binding. Raises `InvariantViolation` unless numbers are dense and all names stay
        inside the folder."""
        try:
            found = json.loads(text)
            if found["kind"] != _KIND:
                raise InvariantViolation(f"the manifest is of kind {found['kind']!r}, not {_KIND!r}")
            files = tuple(map(_file_of, found["files"]))
            oids, catalogs = found.get("oids", {}), found.get("catalogs", {})
            snapshots = {
                str(table): TableRead(int(lsn), int(oids.get(table, 0)), str(catalogs.get(table, "")))
                for table, lsn in found.get("snapshots", {}).items()
            }
            manifest = cls(found["format"], files, snapshots)
        except (ValueError, KeyError, TypeError) as error:
            fact = f"a binding's manifest can't be read: {type(error).__name__}"
            raise InvariantViolation(fact, hint="the history was changed by hand") from None
        _check(manifest.files)
        return manifest


def _file_of(found: Mapping[str, Any]) -> BoundFile:
    sweep = Sweep(*found["sweep"]) if "sweep" in found else None
    return BoundFile(
        seq=found["seq"],
        name=found["name"],
        size=found["size"],
        hash=found["hash"],
        mtime_ns=found["mtime_ns"],
        changed_ns=found.get("changed_ns", 0),
        sweep=sweep,
        version=found.get("version", ""),
    )


def _check(files: Sequence[BoundFile]) -> None:
    for index, file in enumerate(files):
        if file.seq != files[0].seq + index:
            raise InvariantViolation(f"file {file.name!r} has number {file.seq}, not {files[0].seq + index}")
        if not is_inside(file.name):
            raise InvariantViolation(f"file name {file.name!r} is outside the source's folder")


def is_inside(name: str) -> bool:
    """Whether a relative name stays below its folder, judged by its text alone."""
    return not {"", ".", ".."} & set(name.split("/")) and "\0" not in name


BINDINGS_AT_ONCE: Final = 500
NAMES_AT_ONCE: Final = 500
LOOKS_MAX: Final = 5
WAIT_SECONDS: Final = 10.0
BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_TABLES: Final = """
    CREATE TABLE IF NOT EXISTS origin (file TEXT NOT NULL);
    CREATE TABLE IF NOT EXISTS bindings (txn INTEGER PRIMARY KEY, mark BLOB NOT NULL);
    CREATE TABLE IF NOT EXISTS files (
        name TEXT PRIMARY KEY, txn INTEGER NOT NULL, seq INTEGER NOT NULL, size INTEGER NOT NULL,
        hash TEXT NOT NULL, mtime_ns INTEGER NOT NULL, changed_ns INTEGER NOT NULL, version TEXT NOT NULL
    ) WITHOUT ROWID;
"""
_COLUMNS: Final = "seq, name, size, hash, mtime_ns, changed_ns, version"

T = TypeVar("T")
logger = logging.getLogger(__name__)
ReadBindings = Callable[[Txn, Txn], Sequence[Binding]]
"""Reads the bindings of the transactions in [lower, upper), all of which exist."""


class BoundFiles:
    """The files of all bindings up to the one last passed to `learn`. Without a path, the index is private
    to this object."""

    def __init__(self, path: Path | None, read: ReadBindings) -> None:
        self._path = path
        self._read = read
        self._db: sqlite3.Connection | None = None
        self._last: Binding | None = None

    @property
    def is_made(self) -> bool:
        """Whether the index exists. Read-only callers check this first, so as not to create it."""
        return self._path is None or self._path.exists()

    def learn(self, last: Binding | None) -> None:
        """Bring the index up to this binding. `among` then sees the files of this binding and of those before
        it, and no others."""
        self._last = last
        if last is not None:
            self._whatever_happens(lambda: self._learn(last))

    def among(self, names: Iterable[str]) -> dict[str, BoundFile]:
        """The bound files among the names, as their bindings recorded them."""
        last, wanted = self._last, list(names)
        return {} if last is None else self._whatever_happens(lambda: self._among(last, wanted))

    def last_name(self) -> str | None:
        """The name that sorts last of those that are bound."""
        last = self._last
        return None if last is None else self._whatever_happens(lambda: self._last_name(last))

    def _last_name(self, last: Binding) -> str | None:
        # From the end of the names, and not by max(), which would look at all of them.
        query = "SELECT name FROM files WHERE txn <= ? ORDER BY name DESC LIMIT 1"
        found = self._connected().execute(query, (last.txn,)).fetchone()
        return None if found is None else str(found[0])

    def _whatever_happens(self, work: Callable[[], T]) -> T:
        """Do the work with the shared index or, if that can't be used, with a private one."""
        try:
            return work()
        except (sqlite3.Error, OSError) as error:
            if self._path is None:
                raise
            logger.info("the index of bound files %s can't be used: %s", self._path, error)
            self._give_up()
            return work()

    def _learn(self, last: Binding) -> None:
        top = self._top()
        checked = last if last.txn <= top else self._read(Txn(top), Txn(top + 1))[0] if top else None
        if checked is not None and self._mark(checked.txn) != _mark_of(checked):
            top = self._emptied()
        # In order, so that the index never has a transaction without all those before it.
        for lower in range(top + 1, last.txn + 1, BINDINGS_AT_ONCE):
            upper = min(lower + BINDINGS_AT_ONCE, last.txn + 1)
            self._add(self._read(Txn(lower), Txn(upper)))

    def _among(self, last: Binding, names: Sequence[str]) -> dict[str, BoundFile]:
        for _ in range(LOOKS_MAX):
            with self._locked("BEGIN") as db:
                # Another process may have emptied the index since, to build it again.
                if self._mark(last.txn) == _mark_of(last):
                    return _found(db, names, upper=last.txn + 1)
            self._learn(last)
        raise sqlite3.OperationalError("other processes keep rebuilding it")

    def _add(self, bindings: Sequence[Binding]) -> None:
        """Add the files of these transactions in one commit. Those that another process has added are
        skipped."""
        with self._locked("BEGIN IMMEDIATE") as db:
            for binding in bindings:
                if self._mark(binding.txn) is not None:
                    continue
                db.execute("INSERT INTO bindings VALUES (?, ?)", (binding.txn, _mark_of(binding)))
                for file in Manifest.from_json(binding.manifest).files:
                    self._add_file(db, binding.txn, file)

    def _add_file(self, db: sqlite3.Connection, txn: Txn, file: BoundFile) -> None:
        row = (file.name, txn, file.seq, file.size, file.hash, file.mtime_ns, file.changed_ns, file.version)
        try:
            db.execute("INSERT INTO files VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
        except sqlite3.IntegrityError:
            (known,) = db.execute("SELECT seq FROM files WHERE name = ?", (file.name,)).fetchone()
            raise InvariantViolation(
                f"file {file.name!r} is bound twice, as number {known} and {file.seq}",
                hint="stop the pipeline; its records may be in two transactions",
            ) from None

    def _top(self) -> int:
        (top,) = self._connected().execute("SELECT max(txn) FROM bindings").fetchone()
        return int(top or 0)

    def _mark(self, txn: int) -> bytes | None:
        found = self._connected().execute("SELECT mark FROM bindings WHERE txn = ?", (txn,)).fetchone()
        return bytes(found[0]) if found is not None else None

    def _emptied(self) -> int:
        with self._locked("BEGIN IMMEDIATE") as db:
            db.execute("DELETE FROM files")
            db.execute("DELETE FROM bindings")
        return 0

    @contextmanager
    def _locked(self, begin: str) -> Iterator[sqlite3.Connection]:
        """One SQLite transaction."""
        db = self._connected()
        db.execute(begin)
        try:
            yield db
        except BaseException:
            db.execute("ROLLBACK")
            raise
        db.execute("COMMIT")

    def _connected(self) -> sqlite3.Connection:
        if self._db is None:
            if self._path is not None:
                with suppress(OSError):
                    self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                    os.close(os.open(self._path, os.O_CREAT | os.O_RDWR, 0o600))
            # For an empty name SQLite makes a temporary file, which it removes with the connection.
            name = str(self._path) if self._path is not None else ""
            self._db = sqlite3.connect(
                name, timeout=WAIT_SECONDS, isolation_level=None, check_same_thread=False
            )
            if _boot():
                # Only a machine crash loses writes that aren't synced, and the boot id reveals a restart.
                self._db.execute("PRAGMA synchronous=OFF")
            self._db.executescript(_TABLES)
            self._require_original()
        return self._db

    def _require_original(self) -> None:
        """Empty the index if it is a copy, or if the machine has restarted since. A copy may have been made
        during a write, and a crash may lose unsynced pages; SQLite would not detect either."""
        db, origin = self._connected(), "SELECT file FROM origin"
        found = self._path.stat() if self._path is not None else None
        here = f"{found.st_dev}:{found.st_ino}:{_boot()}" if found is not None else ""
        if db.execute(origin).fetchall() == [(here,)]:
            return
        with self._locked("BEGIN IMMEDIATE"):
            if db.execute(origin).fetchall() != [(here,)]:
                for table in ("files", "bindings", "origin"):
                    db.execute(f"DELETE FROM {table}")
                db.execute("INSERT INTO origin VALUES (?)", (here,))

    def _give_up(self) -> None:
        """Continue with a private index. A corrupt shared index is removed, so that the next process builds a
        new one."""
        if self._db is not None:
            with suppress(sqlite3.Error):
                self._db.close()
        self._db = None
        if self._path is not None and not _is_sound(self._path):
            with suppress(OSError):
                self._path.unlink()
        self._path = None


def _found(db: sqlite3.Connection, names: Sequence[str], *, upper: int) -> dict[str, BoundFile]:
    found: dict[str, BoundFile] = {}
    for start in range(0, len(names), NAMES_AT_ONCE):
        some = names[start : start + NAMES_AT_ONCE]
        marks = ", ".join("?" * len(some))
        query = f"SELECT {_COLUMNS} FROM files WHERE name IN ({marks}) AND txn < ?"
        for seq, name, size, content, mtime_ns, changed_ns, version in db.execute(query, (*some, upper)):
            found[name] = BoundFile(seq, name, size, content, mtime_ns, changed_ns, version=version)
    return found


def _boot() -> str:
    """An id that changes with every boot of the machine; empty where the system has none."""
    try:
        return BOOT.read_text().strip()
    except OSError:
        return ""


def _is_sound(path: Path) -> bool:
    try:
        with closing(sqlite3.connect(path, timeout=WAIT_SECONDS)) as db:
            return bool(db.execute("PRAGMA quick_check").fetchone() == ("ok",))
    except sqlite3.OperationalError:
        return True  # It is locked, or the disk refuses: other processes may still use it.
    except sqlite3.DatabaseError:
        return False


def _mark_of(binding: Binding) -> bytes:
    """A hash that differs between two bindings of the same transaction number."""
    text = repr((binding.txn, binding.owner, binding.lower, binding.upper, binding.manifest))
    return hashlib.blake2b(text.encode(), digest_size=16).digest()
