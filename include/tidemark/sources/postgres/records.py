"""Change records made from row messages: one JSON line each, in Debezium's envelope.

A record names its table and its commit. An update that changes the key becomes a deletion and an insertion. A
truncate is a record of its own; the data plane refuses it and names the table.

A change that can't be captured without loss is refused before anything is captured. No transaction is bound
to it, and the slot keeps it until the cause is fixed. Refused are:

- a column that is not declared, or is declared with a lossy type; a declared column that is missing (unless
  it is nullable and `on_schema_change` is not `fail`);
- key columns that differ from the table's replica identity (scenario D7);
- an unchanged TOAST value that was not sent. With a full replica identity the old row has it (scenario U14),
  and a TOASTed key is sent in any case. Otherwise the value is unknown, and NULL would be wrong. A partition
  has a replica identity of its own, so even an old row that is marked as full may have only a key: only
  values that were sent count;
- a deletion without the row's key. A primary key is never NULL, so a NULL here was not sent: the replica
  identity of a partition may be an index on other columns.

Tables with a deferrable key need more. Their rows may share a key until the source transaction ends: `UPDATE
t SET id = id % 3 + 1` moves every row onto a key that another row still has. Applied one by one, a row that
has just moved would be deleted by the next row's move. So `Deferred` holds the changes of these tables until
the commit, and then writes one record for each key: its row, or a deletion. PostgreSQL sends changes of such
a table only with `REPLICA IDENTITY FULL`, so the old row is complete and identifies which of the rows with
one key is gone. A row that the transaction did not write had the key before; there is at most one.

Restriction: a source transaction's rows of tables with a deferrable key are held in memory.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow.compute as pc

from tidemark.config.shard import ShardConfig
from tidemark.core.errors import Determinate, InvalidUsage
from tidemark.sources.files.bound_files import Sweep
from tidemark.sources.postgres.catalog import refused, reread, written_columns
from tidemark.sources.postgres.pgoutput import (
    BINARY,
    DELETE,
    INSERT,
    NEW,
    NULL,
    OLD,
    TEXT,
    UNCHANGED,
    Broken,
    Bytes,
    Flags,
    Messages,
    Numbers,
    Relation,
    Rows,
    Spans,
    spelled,
)
from tidemark.sources.postgres.values import Lines, RowWriter, values_at

# Tables with a deferrable key.


@dataclass(frozen=True, slots=True)
class RowEvent:
    """A row that is written (`is_there`) or deleted. `key` is the record that deletes its key, `row` the
    record that writes it. Equal rows of a transaction have equal records."""

    is_there: bool
    key: bytes
    row: bytes


@dataclass(slots=True)
class _Key:
    rows: Counter[bytes] = field(default_factory=Counter)
    gone: int = 0


class Deferred:
    """The events of the open source transaction, by table and key."""

    def __init__(self) -> None:
        self._tables: dict[int, tuple[str, dict[bytes, _Key]]] = {}

    def __contains__(self, oid: int) -> bool:
        return oid in self._tables

    def add(self, oid: int, table: str, events: Iterable[RowEvent]) -> None:
        """Add events of a table, in their order."""
        _, keys = self._tables.setdefault(oid, (table, {}))
        for event in events:
            key = keys.setdefault(event.key, _Key())
            if event.is_there:
                key.rows[event.row] += 1
            elif key.rows[event.row] > 0:
                key.rows[event.row] -= 1
            else:
                key.gone += 1

    def settled(self) -> Lines:
        """The records of the transaction: one for each key that changed. Clears the events."""
        tables, self._tables = self._tables, {}
        return Lines.of([
            record for table, keys in tables.values() for key, one in keys.items()
            if (record := _record(table, key, one))
        ])  # fmt: skip


def _record(table: str, key: bytes, found: _Key) -> bytes:
    """The record for a key; empty if nothing has changed."""
    rows = list(found.rows.elements())
    if len(rows) > 1 or found.gone > 1:
        raise not_apart(table)
    return rows[0] if rows else key if found.gone else b""


def not_apart(table: str) -> InvalidUsage:
    """The error for rows that share a key if it is unknown which of them is gone."""
    fact = f"table {table}: its key is deferrable, so a transaction's rows can't be told apart"
    return InvalidUsage(fact, hint=reread(table))


# All tables.

_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), check_circular=False)
_FULL_THEN_REREAD: Final = (
    "ALTER TABLE {} REPLICA IDENTITY FULL, also for each of its partitions; then run `tidemark source"
    " reread`, which skips this change"
)


@dataclass(frozen=True, slots=True)
class Table:
    """A source table of a shard, with the columns that it had when its rows were written."""

    relation: Relation
    keys: tuple[int, ...]
    """The positions of the shard's keys among the columns, in the table's order."""
    written: tuple[int, ...]
    """The positions of the captured columns: all except those that were dropped since."""
    there: RowWriter
    """Writes the records of inserted and updated rows."""
    gone: RowWriter
    """Writes the records of deleted rows, which have only the key."""

    @classmethod
    def of(cls, relation: Relation, shard: ShardConfig, *, has: Set[str] | None = None) -> Table:
        """The table. Raises `InvalidUsage` if its columns or its key don't fit the shard. `has` are the
        columns that the table has in the catalog now; None if unknown."""
        names = [column.plain for column in relation.columns]
        written = written_columns(relation, shard, has)
        missing = [key for key in shard.keys if key not in names]
        identity = {column.plain for column in relation.columns if column.in_key}
        is_full = relation.identity == "f"
        if missing or (identity != set(shard.keys) and not is_full):
            have = ", ".join(sorted(identity)) or "none"
            raise refused(
                relation.name,
                f"the key is ({', '.join(shard.keys)}), but its rows are identified by ({have})",
                f"declare the table's own key, or ALTER TABLE {relation.name} REPLICA IDENTITY FULL",
            )
        keys = tuple(sorted(names.index(key) for key in shard.keys))
        there = RowWriter([relation.columns[at] for at in written], '{"op":"c","after":{', "},")
        gone = RowWriter([relation.columns[at] for at in keys], '{"op":"d","before":{', '},"after":null,')
        return cls(relation, keys, written, there, gone)

    def changes(
        self, messages: Messages, numbers: Numbers, places: Sequence[bytes], place_of: Numbers
    ) -> Iterator[tuple[Lines, Numbers]]:
        """The records of row messages, one each, or two if the key changes, with their order: twice the
        message's number for a deletion, plus one for a written row. Raises `Broken` for the first message
        that must be refused."""
        rows = messages.rows(numbers, len(self.relation.columns))
        is_there = rows.does != DELETE
        is_gone = ~is_there | self._has_moved(messages.data, rows)
        for writes, where, order in ((self._gone, is_gone, 0), (self._there, is_there, 1)):
            if where.any():
                try:
                    lines = writes(messages.data, rows.where(where), places, place_of[where])
                except Broken as broken:
                    raise Broken(int(numbers[where][broken.at]), broken.error) from None
                yield lines, 2 * numbers[where] + order

    def events(
        self, messages: Messages, numbers: Numbers, places: Sequence[bytes], place_of: Numbers
    ) -> list[list[RowEvent]]:
        """The row events of each message, for a table with a deferrable key. Raises `Broken` for a message
        without a complete old row."""
        rows = messages.rows(numbers, len(self.relation.columns))
        has_old, has_new = rows.does != INSERT, rows.does != DELETE
        lacking = has_old & (rows.marks != OLD)
        if lacking.any():
            raise Broken(int(numbers[lacking][0]), not_apart(self.relation.name))
        sent, whole = _whole(rows)
        found: list[list[RowEvent]] = [[] for _ in numbers]
        for is_there, where, spans, values in (
            (False, has_old, rows.old, rows.old), (True, has_new, sent, whole),
        ):  # fmt: skip
            try:
                written = self._keyed(
                    messages.data, spans.where(where), values.where(where), places, place_of[where]
                )
            except Broken as broken:
                raise Broken(int(numbers[where][broken.at]), broken.error) from None
            for row, (key, line) in zip(np.flatnonzero(where).tolist(), written, strict=True):
                found[row].append(RowEvent(is_there, key, line))
        return found

    def _keyed(
        self, data: Bytes, spans: Spans, values: Spans, places: Sequence[bytes], place_of: Numbers
    ) -> list[tuple[bytes, bytes]]:
        """For each row the record that deletes its key, and the record that writes it."""
        self._check_sent(values)
        of_keys = values.of(self.keys)
        keys = self.gone.lines(data, spans.of(self.keys), places, place_of, elsewhere=of_keys)
        lines = self._lines(data, spans, places, place_of, elsewhere=values)
        return [
            (keys.part(at, at + 1).tobytes(), lines.part(at, at + 1).tobytes()) for at in range(len(keys))
        ]

    def _gone(self, data: Bytes, rows: Rows, places: Sequence[bytes], place_of: Numbers) -> Lines:
        keys = rows.old.of(self.keys)
        self._check_keys(keys)
        self._check_sent(keys, self.keys)
        return self.gone.lines(data, keys, places, place_of)

    def _there(self, data: Bytes, rows: Rows, places: Sequence[bytes], place_of: Numbers) -> Lines:
        if not (rows.new.kinds == UNCHANGED).any():
            self._check_sent(rows.new)
            return self._lines(data, rows.new, places, place_of)
        sent, whole = _whole(rows)
        self._check_sent(whole)
        return self._lines(data, sent, places, place_of, elsewhere=whole)

    def _lines(
        self,
        data: Bytes,
        spans: Spans,
        places: Sequence[bytes],
        place_of: Numbers,
        *,
        elsewhere: Spans | None = None,
    ) -> Lines:
        """The records that write these rows."""
        if len(self.written) < len(self.relation.columns):
            spans, elsewhere = spans.of(self.written), elsewhere and elsewhere.of(self.written)
        return self.there.lines(data, spans, places, place_of, elsewhere=elsewhere)

    def _has_moved(self, data: Bytes, rows: Rows) -> Flags:
        """Which updates change the key."""
        moved: Flags = (rows.does != DELETE) & (rows.marks != NEW)
        if not moved.any():
            return moved
        old, new = (one.where(moved).of(self.keys) for one in (rows.old, rows.new))
        pairs = np.arange(0, 2 * old.sizes.size, 2)
        before, after = (values_at(data, one.starts, one.sizes).take(pairs) for one in (old, new))
        differ = pc.not_equal(before, after).to_numpy(zero_copy_only=False).reshape(old.sizes.shape)
        differ |= old.kinds != new.kinds
        moved[moved] = (differ & (new.kinds != UNCHANGED)).any(axis=1)
        return moved

    def _check_sent(self, spans: Spans, columns: Sequence[int] | None = None) -> None:
        """Refuse a value that was not sent, or not as text."""
        wrong = (spans.kinds == UNCHANGED) | (spans.kinds == BINARY)
        if not wrong.any():
            return
        row, at = (int(each[0]) for each in np.nonzero(wrong))
        name = self.relation.name
        if spans.kinds[row, at] == BINARY:
            raise Broken(row, refused(name, "a value was sent in binary form", "read the slot as text"))
        column = self.relation.columns[at if columns is None else columns[at]].name
        error = refused(
            name,
            f"an update did not send the unchanged value of the big column {column!r}",
            _FULL_THEN_REREAD.format(name),
        )
        raise Broken(row, error)

    def _check_keys(self, keys: Spans) -> None:
        """Refuse a deletion whose key was not sent."""
        if (keys.kinds == NULL).any():
            row, at = (int(each[0]) for each in np.nonzero(keys.kinds == NULL))
            column = self.relation.columns[self.keys[at]].name
            fact = f"a deleted row was sent without its key column {column!r}"
            raise Broken(row, refused(self.relation.name, fact, _FULL_THEN_REREAD.format(self.relation.name)))


@dataclass(slots=True)
class Taken:
    """The records of some rows, in the order of their messages. `ours` are the source transactions that have
    rows of the pipeline's tables, `touched` the tables whose rows each one captured."""

    lines: Lines = field(default_factory=lambda: Lines.of([]))
    order: Numbers = field(default_factory=lambda: np.zeros(0, np.int64))
    ours: set[int] = field(default_factory=set)
    touched: defaultdict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    deferred: defaultdict[int, list[tuple[int, list[RowEvent]]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    """By source transaction: the row events of tables with a deferrable key."""


def _whole(rows: Rows) -> tuple[Spans, Spans]:
    """The new rows as they were sent, and with unsent values filled in from the old rows. A value that the
    old row lacks too stays `UNCHANGED`."""
    new, old = rows.new, rows.old
    lacks = (new.kinds == UNCHANGED) & (old.kinds == TEXT)
    starts, sizes = np.where(lacks, old.starts, new.starts), np.where(lacks, old.sizes, new.sizes)
    return new, Spans(starts, sizes, np.where(lacks, old.kinds, new.kinds))


def place_of(relation: Relation, *, lsn: int, xid: int) -> bytes:
    """The end of a record's line: its table and its commit."""
    return b'%b,"lsn":%d,"txId":%d}}\n' % (_origin(relation.schema, relation.table), lsn, xid)


@lru_cache(maxsize=4_096)
def _origin(schema: str, table: str) -> bytes:
    return f'"source":{_text({"schema": spelled(schema), "table": spelled(table)})[:-1]}'.encode()


def sweep_of(shard: ShardConfig, place: bytes) -> Sweep:
    """The deletion of a key of a shard, whether or not the shard has it."""
    return Sweep(shard.name, f',"after":null,{place.decode().rstrip()}')


def swept_away(shard: str, error: FileNotFoundError) -> Determinate:
    """The error for files that maintenance has removed since they were listed."""
    return Determinate(f"files of shard {shard} are gone since they were listed: {error}", hint="run again")


def truncated(place: bytes) -> bytes:
    """The record of a truncate."""
    return b'{"op":"t","before":null,"after":null,' + place


def _text(value: dict[str, Any]) -> str:
    return _ENCODER.encode(value)
