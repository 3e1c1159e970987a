"""What is known of a table's readings: which were made, which are asked for, and what is bound of them.

A table that was read is noted in a file of its own (`snapshot-<table>-<position>.json`), put if absent once
all its rows are durable. A note counts only while everything after its position is still to come: at or above
what is bound and what the slot has let go.

Someone can ask for a table to be read anew (`reread-<table>.json`, with the log's position at that time). The
request is met by a reading at or above that position, and never has to be taken back.

A table whose shard may have rows already (it is read anew, or was out of the pipeline for a while) is bound
in one transaction, whatever its size: first a deletion of every key that the shard may have, then its rows.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tidemark.config.model import Transaction
from tidemark.config.shard import ShardConfig
from tidemark.core.binding import Step
from tidemark.core.frontier import Frontier
from tidemark.sources.files.manifest import PARTITION, BoundFile, Manifest, TableRead
from tidemark.sources.postgres.change_files import WAL, ChangeFiles

_NOTE: Final = "snapshot"
_REQUEST: Final = "reread"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A table's rows in files, numbered from 0, and how many rows each has. `sweep` are files with deletions
    that come before the rows."""

    table: str
    read: TableRead
    files: tuple[BoundFile, ...]
    rows: tuple[int, ...]
    sweep: tuple[BoundFile, ...] = ()


def reading_prefix(table: str, shard: ShardConfig) -> str:
    """What is read, for what shard, as part of a file's name: short, and without what a path would read."""
    read = f"{table}\n{shard.name}\n{shard.columns.ddl}"
    return f"{_NOTE}-{_hash(read)}"


def find_snapshot(
    files: ChangeFiles, table: str, shard: ShardConfig, *, lsn_min: int, oid: int
) -> Snapshot | None:
    """The newest complete reading of a table for a shard that can still be used."""
    notes = sorted(_notes(files, reading_prefix(table, shard), lsn_min=lsn_min), reverse=True)
    for found in _read_notes(notes):
        is_it = found.table == table and found.read.oid in (0, oid)
        if is_it and all((files.folder / file.name).exists() for file in found.files):
            return found
    return None


def _notes(files: ChangeFiles, prefix: str, *, lsn_min: int) -> list[Path]:
    """The notes of readings at or above a position. Lower ones are not opened: maintenance removes them."""
    notes = files.folder.glob(f"{prefix}-*.json")
    return [note for note in notes if int(note.stem.rpartition("-")[2], 16) >= lsn_min]


def put_note(files: ChangeFiles, snapshot: Snapshot, shard: ShardConfig) -> None:
    """Note a reading whose files are durable."""
    name = f"{reading_prefix(snapshot.table, shard)}-{snapshot.read.lsn:016x}.json"
    files.write(files.folder / name, _to_json(snapshot).encode())


def noted_tables(files: ChangeFiles, *, lsn_min: int) -> set[str]:
    """The tables that were read at or above a position, bound or not."""
    return {found.table for found in _read_notes(_notes(files, _NOTE, lsn_min=lsn_min))}


def _read_notes(notes: Iterable[Path]) -> Iterator[Snapshot]:
    """Maintenance may let a note go while they are read: one that is gone counts no more than one that was
    gone before."""
    for note in notes:
        with suppress(FileNotFoundError):
            yield _from_json(note.read_text(encoding="utf-8"))


def ask_again(files: ChangeFiles, table: str, *, lsn: int) -> None:
    """Ask for a table to be read anew, at or above a position."""
    path = files.folder / f"{_REQUEST}-{_hash(table)}.json"
    files.replace(path, json.dumps({"table": table, "lsn": lsn}).encode())


def asked_again(files: ChangeFiles) -> dict[str, int]:
    """The tables that were asked for, met or not, and the position that a reading must reach."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in files.folder.glob(f"{_REQUEST}-*.json")]
    return {str(one["table"]): int(one["lsn"]) for one in found}


def steps_of(
    snapshots: Sequence[Snapshot], known: Mapping[str, TableRead], lower: Frontier, limits: Transaction
) -> list[Step]:
    """The readings as transactions, none larger than it may be unless one file is: small tables go together,
    and one that has something to sweep goes alone. Each says what is known of all tables."""
    steps: list[Step] = []
    seq = lower[PARTITION]
    for group in _grouped(snapshots, limits):
        bound = tuple(replace(file, seq=seq + at) for at, file in enumerate(group))
        seq += len(bound)
        upper = Frontier.of({PARTITION: seq, WAL: lower[WAL]})
        steps.append(Step(upper, Manifest("json", bound, dict(known)).to_json()))
    return steps


def _grouped(snapshots: Sequence[Snapshot], limits: Transaction) -> Iterator[list[BoundFile]]:
    rows_max = limits.max_records if limits.max_records is not None else sys.maxsize
    group: list[BoundFile] = []
    rows = size = 0
    for one in snapshots:
        if one.sweep:
            yield [*one.sweep, *one.files]
            continue
        for file, count in zip(one.files, one.rows, strict=True):
            rows, size = rows + count, size + file.size
            if group and (rows > rows_max or size > limits.max_bytes or len(group) == limits.max_files):
                yield group
                group, rows, size = [], count, file.size
            group.append(file)
    if group:
        yield group


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def _to_json(snapshot: Snapshot) -> str:
    files = [[f.seq, f.name, f.size, f.hash, f.mtime_ns] for f in snapshot.files]
    read = {"lsn": snapshot.read.lsn, "oid": snapshot.read.oid, "catalog": snapshot.read.catalog}
    return json.dumps({"table": snapshot.table, **read, "files": files, "rows": snapshot.rows})


def _from_json(text: str) -> Snapshot:
    found = json.loads(text)
    files = tuple(BoundFile(*fields) for fields in found["files"])
    read = TableRead(found["lsn"], found.get("oid", 0), found.get("catalog", ""))
    return Snapshot(found["table"], read, files, tuple(found["rows"]))
