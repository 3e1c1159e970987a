"""Rows of tables whose key is deferrable: what a source transaction comes to, told when it ends.

Under such a key rows may share one until the transaction ends: `UPDATE t SET id = id % 3 + 1` moves every row
onto a key that another one still has. One change after the other, a row that has just moved would be deleted
by the next one's move. So changes of these tables are held until the commit, and then each key is told once:
the row that has it, or that it is gone.

PostgreSQL sends changes of such a table only with `REPLICA IDENTITY FULL`, so the old row comes along whole,
and tells which of the rows with one key is gone. A row that this transaction has not written is the one that
had the key before; there is at most one.

Restriction: a source transaction's rows of these tables are held in memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from tidemark.core.errors import InvalidUsage
from tidemark.sources.postgres.catalog import reread
from tidemark.sources.postgres.writing import Lines


@dataclass(frozen=True, slots=True)
class RowEvent:
    """A row that is there from now on, or is gone. `key` is the record that deletes its key, `row` the one
    that writes it; equal rows of a transaction have equal records."""

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
        """Hear events of a table, in their order."""
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
        """The records that the transaction comes to; what was heard is forgotten."""
        tables, self._tables = self._tables, {}
        return Lines.of([
            record for table, keys in tables.values() for key, one in keys.items()
            if (record := _record(table, key, one))
        ])  # fmt: skip


def _record(table: str, key: bytes, found: _Key) -> bytes:
    """What a key comes to; empty when nothing has changed."""
    rows = list(found.rows.elements())
    if len(rows) > 1 or found.gone > 1:
        raise not_apart(table)
    return rows[0] if rows else key if found.gone else b""


def not_apart(table: str) -> InvalidUsage:
    """Rows that share a key, and nothing tells which of them is gone."""
    fact = f"table {table}: its key is deferrable, and a transaction's rows can't be told apart"
    return InvalidUsage(fact, hint=reread(table))
