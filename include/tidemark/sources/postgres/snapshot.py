"""The first reading of a table: all its rows, and the log position that they stand for.

A temporary slot is made for the reading; the database hands out, with it, a snapshot that has exactly the
transactions whose commit lies before the slot's position. The rows are copied under that snapshot into change
files. So a change whose commit lies before the position is in the rows already, and is dropped from the
pipeline's own slot; one at or after it is not, and is taken. Nothing is locked, and nothing stops meanwhile.

A table that was read is noted in a file of its own (`snapshot-<table>-<position>.json`), put if absent once
all its rows are durable. After a crash the tables that have their note are not read again. A note counts only
while everything after its position is still to come: at or above what is bound and what the slot has let go.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from typing import Final

import psycopg
from psycopg import errors

from tidemark.config.shard import ShardConfig
from tidemark.core.errors import Determinate, InvariantViolation
from tidemark.sources.lsn import parsed_lsn
from tidemark.sources.manifest import BoundFile
from tidemark.sources.postgres.changes import FRAGMENT_BYTES, ChangeFiles
from tidemark.sources.postgres.records import Table, place_of
from tidemark.sources.postgres.tables import Published

_NOTE: Final = "snapshot"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A table's rows in files, numbered from 0, and how many rows each has; `lsn` is what they stand for."""

    table: str
    lsn: int
    files: tuple[BoundFile, ...]
    rows: tuple[int, ...]


def find_snapshot(files: ChangeFiles, table: str, shard: ShardConfig, *, lsn_min: int) -> Snapshot | None:
    """The newest complete reading of a table for a shard that can still be used."""
    notes = sorted(files.folder.glob(f"{_prefix(table, shard)}-*.json"), reverse=True)
    for note in notes:
        found = _from_json(note.read_text(encoding="utf-8"))
        if found.table == table and found.lsn >= lsn_min and all(
            (files.folder / file.name).exists() for file in found.files
        ):  # fmt: skip
            return found
    return None


def noted_tables(files: ChangeFiles, *, lsn_min: int) -> set[str]:
    """The tables that were read at or above a position, bound or not."""
    notes = files.folder.glob(f"{_NOTE}-*.json")
    recent = [note for note in notes if int(note.stem.rpartition("-")[2], 16) >= lsn_min]
    return {_from_json(note.read_text(encoding="utf-8")).table for note in recent}


def take_snapshot(
    db: psycopg.Connection,
    files: ChangeFiles,
    published: Published,
    shard: ShardConfig,
    *,
    slot: str,
    rows_max: int | None,
) -> Snapshot:
    """Read the table now, over a connection for replication, into files of at most `rows_max` rows."""
    db.execute("BEGIN READ ONLY ISOLATION LEVEL REPEATABLE READ")
    try:
        made = db.execute(f"CREATE_REPLICATION_SLOT {slot} TEMPORARY LOGICAL pgoutput (SNAPSHOT 'use')")
    except errors.LockNotAvailable:
        raise Determinate(
            f"the first reading of table {published.name} waits for transactions that are open since long",
            hint="end them: SELECT pid, xact_start, query FROM pg_stat_activity WHERE backend_xid IS NOT NULL"
            " ORDER BY xact_start; then run again",
        ) from None
    row = made.fetchone()
    if row is None:
        raise InvariantViolation(f"the server made the slot {slot!r} and did not say where it stands")
    lsn = parsed_lsn(row[1])
    prefix = _prefix(published.name, shard)
    found = _copied(db, files, Table.of(published.relation, shard), published, lsn, rows_max, prefix)
    db.execute("COMMIT")
    db.execute(f"DROP_REPLICATION_SLOT {slot}")
    note = files.folder / f"{prefix}-{lsn:016x}.json"
    files.write(note, _to_json(found).encode())
    return found


def _copied(
    db: psycopg.Connection,
    files: ChangeFiles,
    table: Table,
    published: Published,
    lsn: int,
    rows_max: int | None,
    prefix: str,
) -> Snapshot:
    place = place_of(published.relation, lsn=lsn, xid=0)
    put: list[BoundFile] = []
    counts: list[int] = []
    lines: list[bytes] = []
    size = 0

    def spill() -> None:
        put.append(files.put(f"{lsn:016x}-{prefix}-{len(put):04d}", lines, len(put)))
        counts.append(len(lines))
        lines.clear()

    with db.cursor() as cursor, cursor.copy(published.copy_sql()) as copy:
        for row in copy.rows():
            lines.append(table.insert(row, place))
            size += len(lines[-1])
            if size >= FRAGMENT_BYTES or len(lines) == rows_max:
                spill()
                size = 0
    if lines:
        spill()
    return Snapshot(published.name, lsn, tuple(put), tuple(counts))


def renumbered(snapshot: Snapshot, first: int) -> tuple[BoundFile, ...]:
    """The files with the numbers that they are bound under."""
    return tuple(replace(file, seq=first + at) for at, file in enumerate(snapshot.files))


def _prefix(table: str, shard: ShardConfig) -> str:
    """What is read, for what shard, as part of a file's name: short, and without what a path would read."""
    read = f"{table}\n{shard.name}\n{shard.columns.ddl}"
    return f"{_NOTE}-{hashlib.blake2b(read.encode(), digest_size=6).hexdigest()}"


def _to_json(snapshot: Snapshot) -> str:
    files = [[f.seq, f.name, f.size, f.hash, f.mtime_ns] for f in snapshot.files]
    found = {"table": snapshot.table, "lsn": snapshot.lsn, "files": files, "rows": snapshot.rows}
    return json.dumps(found)


def _from_json(text: str) -> Snapshot:
    found = json.loads(text)
    files = tuple(BoundFile(*fields) for fields in found["files"])
    return Snapshot(found["table"], found["lsn"], files, tuple(found["rows"]))
