"""The manifest of a file source in a binding: exactly which files, in which order, with which content.

The text is JSON, `{"kind": "files", "format": …, "files": [{"seq", "name", "size", "hash", "mtime_ns",
"changed_ns", "sweep", "version"}, …]}`. A file's *sequence number* is its offset in the only partition,
`files`. Numbers are dense from 0, in the order of binding.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tidemark.core.errors import InvariantViolation

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
