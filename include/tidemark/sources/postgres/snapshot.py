"""Snapshots of database tables: notes of completed ones, requests for new ones, and their steps.

A completed snapshot has a note, `snapshot-<table>-<position>.json`, which is put if absent once all rows are
durable. A note is usable only while every change after its position can still be captured: its position must
be at or above both the bound position and the slot's.

A user can request that a table is read again: `reread-<table>.json`, with the WAL position at that time. Any
snapshot at or above that position fulfils the request, so a request never has to be removed.

If a table's shard may already have rows (the table is read again, or was out of the pipeline for a while),
the snapshot is bound as one transaction, whatever its size: first a deletion of every key that the shard may
have, then the rows.
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
from tidemark.core.ids import Frontier
from tidemark.sources.files.manifest import PARTITION, BoundFile, Manifest, TableRead
from tidemark.sources.postgres.change_files import WAL, ChangeFiles

_NOTE: Final = "snapshot"
_REQUEST: Final = "reread"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A table's rows in files, numbered from 0, with the number of rows in each. `sweep` are files of
    deletions that come before the rows."""

    table: str
    read: TableRead
    files: tuple[BoundFile, ...]
    rows: tuple[int, ...]
    sweep: tuple[BoundFile, ...] = ()


def reading_prefix(table: str, shard: ShardConfig) -> str:
    """The prefix of a snapshot's file names. It hashes the table, the shard and its columns, so it is short
    and safe in a path."""
    read = f"{table}\n{shard.name}\n{shard.columns.ddl}"
    return f"{_NOTE}-{_hash(read)}"


def find_snapshot(
    files: ChangeFiles, table: str, shard: ShardConfig, *, lsn_min: int, oid: int
) -> Snapshot | None:
    """The newest complete snapshot of a table for a shard, at or above `lsn_min`; None if there is none."""
    notes = sorted(_notes(files, reading_prefix(table, shard), lsn_min=lsn_min), reverse=True)
    for found in _read_notes(notes):
        is_it = found.table == table and found.read.oid in (0, oid)
        if is_it and all((files.folder / file.name).exists() for file in found.files):
            return found
    return None


def _notes(files: ChangeFiles, prefix: str, *, lsn_min: int) -> list[Path]:
    """The notes of snapshots at or above a position. Lower ones are not opened: maintenance may be removing
    them."""
    notes = files.folder.glob(f"{prefix}-*.json")
    return [note for note in notes if int(note.stem.rpartition("-")[2], 16) >= lsn_min]


def put_note(files: ChangeFiles, snapshot: Snapshot, shard: ShardConfig) -> None:
    """Write the note of a snapshot whose files are durable."""
    name = f"{reading_prefix(snapshot.table, shard)}-{snapshot.read.lsn:016x}.json"
    files.write(files.folder / name, _to_json(snapshot).encode())


def noted_tables(files: ChangeFiles, *, lsn_min: int) -> set[str]:
    """The tables with a snapshot at or above a position, bound or not."""
    return {found.table for found in _read_notes(_notes(files, _NOTE, lsn_min=lsn_min))}


def _read_notes(notes: Iterable[Path]) -> Iterator[Snapshot]:
    """The snapshots of these notes. A note that maintenance removes meanwhile is skipped."""
    for note in notes:
        with suppress(FileNotFoundError):
            yield _from_json(note.read_text(encoding="utf-8"))


def ask_again(files: ChangeFiles, table: str, *, lsn: int) -> None:
    """Request a new snapshot of a table, at or above a position."""
    path = files.folder / f"{_REQUEST}-{_hash(table)}.json"
    files.replace(path, json.dumps({"table": table, "lsn": lsn}).encode())


def asked_again(files: ChangeFiles) -> dict[str, int]:
    """The requested tables, fulfilled or not, with the position that a snapshot must reach."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in files.folder.glob(f"{_REQUEST}-*.json")]
    return {str(one["table"]): int(one["lsn"]) for one in found}


def steps_of(
    snapshots: Sequence[Snapshot], known: Mapping[str, TableRead], lower: Frontier, limits: Transaction
) -> list[Step]:
    """The snapshots as steps within the limits. Small tables share a step. A snapshot with a sweep has a step
    of its own, and so has a file that exceeds the limits. Every manifest has the `known` snapshots of all
    tables."""
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
