"""A file source's notes in a binding: exactly which files, in which order, with what content.

The text is JSON, `{"kind": "files", "format": …, "files": [{"seq", "name", "size", "hash", "mtime_ns",
"changed_ns"}, …]}`. A file's *sequence number* is its offset in the one partition, `files`: dense from 0 in
the order of binding.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tidemark.core.errors import InvariantViolation

PARTITION: Final = "files"
_KIND = "files"


@dataclass(frozen=True, slots=True)
class BoundFile:
    """One file as it was when it was bound. `name` is relative to the source's folder, with `/`. `changed_ns`
    is when the system says that it was last changed, which nobody can set; 0 where that is not on record."""

    seq: int
    name: str
    size: int
    hash: str
    mtime_ns: int
    changed_ns: int = 0


@dataclass(frozen=True, slots=True)
class TableRead:
    """A reading of a database's table: the position in its log that the rows stand for; which of all tables
    that may have that name it was; and the record of what the catalog said of it. 0 and empty where that is
    not on record."""

    lsn: int
    oid: int = 0
    catalog: str = ""


@dataclass(frozen=True, slots=True)
class Manifest:
    """The files of one transaction, in order of their sequence numbers.

    `snapshots` are a captured database's: by table, its last reading. Every manifest has those of all tables
    read so far."""

    format: str
    files: tuple[BoundFile, ...]
    snapshots: Mapping[str, TableRead] = field(default_factory=dict)

    def to_json(self) -> str:
        files = [
            {"seq": f.seq, "name": f.name, "size": f.size, "hash": f.hash, "mtime_ns": f.mtime_ns}
            | ({"changed_ns": f.changed_ns} if f.changed_ns else {})
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
        """The manifest of a binding, checked: dense numbers, and names that stay inside the folder."""
        try:
            found = json.loads(text)
            if found["kind"] != _KIND:
                raise InvariantViolation(f"the manifest is of kind {found['kind']!r}, not {_KIND!r}")
            files = tuple(
                BoundFile(f["seq"], f["name"], f["size"], f["hash"], f["mtime_ns"], f.get("changed_ns", 0))
                for f in found["files"]
            )
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


def _check(files: Sequence[BoundFile]) -> None:
    for index, file in enumerate(files):
        if file.seq != files[0].seq + index:
            raise InvariantViolation(f"file {file.name!r} has number {file.seq}, not {files[0].seq + index}")
        if not is_inside(file.name):
            raise InvariantViolation(f"file name {file.name!r} leads out of the source's folder")


def is_inside(name: str) -> bool:
    """Whether a relative name stays below its folder, as far as the text can tell."""
    return not {"", ".", ".."} & set(name.split("/")) and "\0" not in name
