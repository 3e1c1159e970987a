"""Snapshots of database tables: how they are read with COPY, noted, requested, and divided into steps.

A temporary replication slot is created for the snapshots. With it the database exports a transaction snapshot
that has exactly the transactions whose commit lies before the slot's position. Several sessions import it and
copy tables, and page ranges of large tables, in parallel. So a change whose commit lies before the position
is in the rows already, and the capture skips it. A change at or after the position is captured.

An exported snapshot does not protect against rewrites: a table that is truncated or rewritten later is empty
in it. So each session locks the tables in ACCESS SHARE mode before the slot is created. Rows can be written
meanwhile; statements that rewrite a table, or change its columns, wait until the tables are read.

COPY prints every value with its type's output function, as logical decoding does. So a row gives the same
record whether it is copied or captured. COPY escapes tabs and line ends within values, so the remaining ones
delimit values and rows. A value with an escape is decoded individually.

A table gets a note (`snapshot.put_note`) once all its rows are durable: it is not read again after a crash.

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
import logging
import os
import re
import secrets
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import SimpleQueue
from threading import Lock, local
from typing import Final

import numpy as np
import psycopg
from psycopg import errors, sql
from psycopg.pq import ExecStatus

from tidemark.config.model import Transaction
from tidemark.config.shard import ShardConfig
from tidemark.config.source import PostgresSource
from tidemark.core.binding import Step
from tidemark.core.errors import Determinate, InvariantViolation
from tidemark.core.ids import Frontier
from tidemark.sources.files.bound_files import PARTITION, BoundFile, Manifest, TableRead
from tidemark.sources.postgres.catalog import put_facts
from tidemark.sources.postgres.change_files import FRAGMENT_BYTES, WAL, Buffer, ChangeFiles
from tidemark.sources.postgres.pgoutput import NULL, TEXT, Broken, Spans, parsed_lsn
from tidemark.sources.postgres.records import Table, place_of
from tidemark.sources.postgres.slot import connect, translated_errors
from tidemark.sources.postgres.tables import PublishedTable, published_tables
from tidemark.sources.postgres.values import Lines

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


BLOCK_BYTES: Final = 2 * 1024**2
_TAB, _END, _ESCAPE, _N = b"\t\n\\N"
_ESCAPED: Final = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


@dataclass(frozen=True, slots=True)
class Pages:
    """A range of a table's pages; without an `end`, all pages from the first on. `count` is the number of
    pages when the read began, for progress."""

    first: int = 0
    end: int | None = None
    count: int = 0

    def conditions(self) -> Iterator[sql.Composable]:
        """The SQL conditions that select its rows; none for all rows."""
        if self.first:
            yield sql.SQL("ctid >= {}").format(sql.Literal(f"({self.first},0)"))
        if self.end is not None:
            yield sql.SQL("ctid < {}").format(sql.Literal(f"({self.end},0)"))


def copy_statement(table: PublishedTable, pages: Pages) -> sql.Composed:
    """The COPY statement for a range of rows, with values in text form. It leaves out the rows of inheriting
    tables, whose changes are sent under their own names."""
    columns = sql.SQL(", ").join(sql.Identifier(column.name) for column in table.relation.columns)
    # The row filter is SQL text from the database's catalog.
    own = [sql.SQL(f"({table.row_filter})")] if table.row_filter else []
    conditions: list[sql.Composable] = [*own, *pages.conditions()]
    where = sql.SQL(" WHERE ") + sql.SQL(" AND ").join(conditions) if conditions else sql.SQL("")
    return sql.SQL("COPY (SELECT {} FROM {}{}) TO STDOUT").format(columns, from_sql(table), where)


def from_sql(table: PublishedTable) -> sql.Composable:
    """The table in a FROM clause, with its partitions, but without inheriting tables."""
    name = sql.Identifier(table.relation.schema, table.relation.table)
    return name if table.is_partitioned else sql.SQL("ONLY {}").format(name)


def blocks(db: psycopg.Connection, statement: sql.Composed) -> Iterator[bytes]:
    """The output of a COPY, in blocks of whole rows.

    libpq returns one row at a time. Calling it directly costs a fifth of the cursor's iterator. If the
    generator is closed early, the session can't be used again."""
    begun = db.pgconn.exec_(statement.as_bytes(db))
    if begun.status != ExecStatus.COPY_OUT:
        raise errors.error_from_result(begun)
    take, rows, size = db.pgconn.get_copy_data, list[memoryview](), 0
    while True:
        length, row = take(0)
        if length < 0:
            break
        rows.append(row)
        size += length
        if size >= BLOCK_BYTES:
            yield b"".join(rows)
            rows, size = [], 0
    if rows:
        yield b"".join(rows)
    while ended := db.pgconn.get_result():
        if ended.status != ExecStatus.COMMAND_OK:
            raise errors.error_from_result(ended)


def copied(table: Table, block: bytes, place: bytes) -> Lines:
    """The rows of a block as change records."""
    data = np.frombuffer(block, np.uint8)
    columns = len(table.relation.columns)
    ends = np.flatnonzero((data == _TAB) | (data == _END))
    if len(ends) % columns or (data[ends[columns - 1 :: columns]] != _END).any():
        raise InvariantViolation(f"a copy of {table.relation.name} has rows without {columns} values")
    starts = np.concatenate([np.zeros(1, np.int64), ends[:-1] + 1]).reshape(-1, columns)
    sizes = ends.reshape(starts.shape) - starts
    is_null = sizes == 2
    at = starts[is_null]
    is_null[is_null] = (data[at] == _ESCAPE) & (data[at + 1] == _N)
    spans = Spans(starts, np.where(is_null, 0, sizes), np.where(is_null, NULL, TEXT).astype(np.uint8))
    places = np.zeros(len(starts), np.int64)
    try:
        return table.there.lines(data, spans, [place], places, decoded=unescaped)
    except Broken as broken:
        raise broken.error from None


def unescaped(value: bytes) -> str:
    """A value's text, without COPY's escapes."""
    return re.sub(r"\\(.)", lambda found: _ESCAPED.get(found[1], found[1]), value.decode())


logger = logging.getLogger(__name__)

CONNECTIONS_MAX: Final = 4
PAGES_PER_RANGE: Final = 8_192
REPORT_EVERY_SECONDS: Final = 5.0
Tables = Mapping[str, tuple[PublishedTable, ShardConfig]]


def read_tables(
    db: psycopg.Connection,
    source: PostgresSource,
    files: ChangeFiles,
    tables: Tables,
    *,
    rows_max: int | None,
) -> dict[str, Snapshot]:
    """Snapshots of these tables, all at one position, in files of at most `rows_max` rows. Each table has its
    note when this returns. `db` is used to query the catalog."""
    if not tables:
        return {}
    ranges = {name: ranges_of(_pages_of(db, tables[name][0])) for name in sorted(tables)}
    conn_id, count = source.postgres_conn_id, min(CONNECTIONS_MAX, sum(map(len, ranges.values())))
    with Sessions() as sessions, closing(connect(conn_id, replication=True)) as exporter:
        sessions.lock(conn_id, count, [tables[name][0] for name in sorted(tables)])
        tables = _locked(tables, published_tables(db, source.publication))
        lsn, snapshot = _exported(exporter, min(tables))
        sessions.share(snapshot)
        return _read_all(Reading(files, sessions, lsn, rows_max), tables, ranges)


def _locked(tables: Tables, published: Mapping[str, PublishedTable]) -> Tables:
    """The tables as they are under their locks. Raises `Determinate` for a table that changed between the
    first catalog query and its lock. Another file is not such a change: a truncate in between has ended
    before the rows are read."""
    for name, (before, _) in tables.items():
        if name not in published or not published[name].is_same_but_for_files(before):
            raise Determinate(f"table {name} changed while its reading began", hint="run again")
    return {name: (published[name], shard) for name, (_, shard) in tables.items()}


def _exported(db: psycopg.Connection, table: str) -> tuple[int, str]:
    """The position of a new temporary slot, and the name of its exported snapshot. The snapshot is valid
    until the next command on this connection, the slot until the connection ends."""
    slot = f"tidemark_{secrets.token_hex(8)}_{os.getpid()}"
    try:
        made = db.execute(f"CREATE_REPLICATION_SLOT {slot} TEMPORARY LOGICAL pgoutput (SNAPSHOT 'export')")
    except errors.LockNotAvailable:
        raise Determinate(
            f"the first reading of table {table} waits for long-running transactions",
            hint="end them: SELECT pid, xact_start, query FROM pg_stat_activity WHERE backend_xid IS NOT NULL"
            " ORDER BY xact_start; then run again",
        ) from None
    row = made.fetchone()
    if row is None:
        raise InvariantViolation(f"the server made the slot {slot!r} and did not report its position")
    return parsed_lsn(row[1]), str(row[2])


class Sessions:
    """One session for each thread, all with the same exported snapshot and the same locks."""

    def __init__(self) -> None:
        self._all: list[psycopg.Connection] = []
        self._free = SimpleQueue[psycopg.Connection]()
        self._mine = local()

    def __enter__(self) -> Sessions:
        return self

    def __exit__(self, *_: object) -> None:
        for db in self._all:
            db.close()

    def __len__(self) -> int:
        return len(self._all)

    def lock(self, conn_id: str, count: int, tables: Sequence[PublishedTable]) -> None:
        """Open `count` sessions, and lock the tables in each. A session that locked them later would queue
        behind statements that wait for the other sessions."""
        for _ in range(count):
            self._all.append(connect(conn_id))
        listed = sql.SQL(", ").join(map(from_sql, tables))
        for db in self._all:
            db.isolation_level, db.read_only = psycopg.IsolationLevel.REPEATABLE_READ, True
            db.execute(sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(listed))

    def share(self, snapshot: str) -> None:
        """Import the exported snapshot into all sessions."""
        for db in self._all:
            db.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot)))
            self._free.put(db)

    def mine(self) -> psycopg.Connection:
        """The session of the calling thread. There must not be more threads than sessions."""
        if not hasattr(self._mine, "db"):
            self._mine.db = self._free.get_nowait()
        found: psycopg.Connection = self._mine.db
        return found


@dataclass(slots=True)
class Progress:
    """The progress of the snapshots, in pages."""

    tables: int
    pages: int
    started: float
    pages_done: int = 0
    reported_at: float = 0.0
    lock: Lock = field(default_factory=Lock)

    def done(self, pages: int, *, now: float) -> str:
        """Add pages that were read. Returns a message every few seconds, and otherwise an empty text."""
        with self.lock:
            self.pages_done += pages
            if now - max(self.reported_at, self.started) < REPORT_EVERY_SECONDS:
                return ""
            self.reported_at = now
            share = self.pages_done / max(self.pages, 1)
        left = (now - self.started) * (1 - share) / share if share else 0.0
        return f"first rows of {self.tables} tables: {share:.0%} read, about {left:.0f} s left"


@dataclass(frozen=True, slots=True)
class Reading:
    """The common settings of all snapshots at one position."""

    files: ChangeFiles
    sessions: Sessions
    lsn: int
    rows_max: int | None


def _read_all(reading: Reading, tables: Tables, ranges: Mapping[str, list[Pages]]) -> dict[str, Snapshot]:
    pages = sum(one.count for some in ranges.values() for one in some)
    progress = Progress(len(tables), pages, time.monotonic())
    found: dict[str, Snapshot] = {}
    with ThreadPoolExecutor(len(reading.sessions), thread_name_prefix="tidemark-read") as pool:
        asked = {
            name: [
                pool.submit(read_range, *tables[name], one, number, reading, progress)
                for number, one in enumerate(some)
            ]
            for name, some in ranges.items()
        }
        try:
            for name, futures in asked.items():
                parts = [part for one in futures for part in one.result()]
                files = tuple(replace(file, seq=at) for at, (file, _) in enumerate(parts))
                table = tables[name][0]
                read = TableRead(reading.lsn, table.relation.oid, put_facts(reading.files, table.facts))
                found[name] = Snapshot(name, read, files, tuple(rows for _, rows in parts))
                put_note(reading.files, found[name], tables[name][1])
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return found


def read_range(
    published: PublishedTable,
    shard: ShardConfig,
    pages: Pages,
    number: int,
    reading: Reading,
    progress: Progress,
) -> Sequence[tuple[BoundFile, int]]:
    """Copy a range of a table's pages into files; returns each file with its number of rows."""
    prefix = f"{reading.lsn:016x}-{reading_prefix(published.name, shard)}-{number:04d}"
    table, place = Table.of(published.relation, shard), place_of(published.relation, lsn=reading.lsn, xid=0)
    put: list[tuple[BoundFile, int]] = []
    buffer = Buffer()

    def spill() -> None:
        count = buffer.count
        file = reading.files.put(f"{prefix}{len(put):04d}", buffer.taken(), len(put))
        put.append((file, count))

    statement = copy_statement(published, pages)
    with translated_errors():
        for block in blocks(reading.sessions.mine(), statement):
            lines, first = copied(table, block, place), 0
            while first < len(lines):
                room = len(lines) if reading.rows_max is None else reading.rows_max - buffer.count
                end = min(first + room, len(lines))
                buffer.add(lines, first, end)
                first = end
                if buffer.size >= FRAGMENT_BYTES or buffer.count == reading.rows_max:
                    spill()
    if buffer.count:
        spill()
    line = progress.done(pages.count, now=time.monotonic())
    if line:
        logger.info(line)
    return put


def ranges_of(pages: int) -> list[Pages]:
    """The page ranges of a table. The last one has no end, so that a table that grows is read completely."""
    firsts = range(0, max(pages, 1), PAGES_PER_RANGE)
    ranges = [Pages(first, first + PAGES_PER_RANGE, PAGES_PER_RANGE) for first in firsts[:-1]]
    return [*ranges, Pages(firsts[-1], None, max(pages, 1) - firsts[-1])]


def _pages_of(db: psycopg.Connection, table: PublishedTable) -> int:
    """The number of pages of a table; 0 for a partitioned table, which is read as one range."""
    query = "SELECT pg_relation_size(%s::oid) / current_setting('block_size')::int"
    row = db.execute(query, (table.relation.oid,)).fetchone()
    return int(row[0]) if row is not None and row[0] is not None else 0
