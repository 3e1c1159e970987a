"""Rows of a table as COPY sends them: the statement, the blocks that come, and the records in them.

The server prints every value by its type's own output, as it does for the log, so a row that is read and one
that is captured are the same record. COPY escapes what would end a value or a line, so tabs and line ends
tell where each stands; a value with an escape in it is taken back by itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import psycopg
from psycopg import errors, sql
from psycopg.pq import ExecStatus

from tidemark.core.errors import InvariantViolation
from tidemark.sources.pgrows import NULL, TEXT, Broken, Spans
from tidemark.sources.postgres.records import Table
from tidemark.sources.postgres.tables import Published
from tidemark.sources.postgres.writing import Lines

BLOCK_BYTES: Final = 2 * 1024**2
_TAB, _END, _ESCAPE, _N = b"\t\n\\N"
_ESCAPED: Final = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


@dataclass(frozen=True, slots=True)
class Pages:
    """A range of a table's pages; without an end, all from the first on. `count` is what it had before."""

    first: int = 0
    end: int | None = None
    count: int = 0

    def conditions(self) -> Iterator[sql.Composable]:
        """What is so for the rows in it; nothing for all rows."""
        if self.first:
            yield sql.SQL("ctid >= {}").format(sql.Literal(f"({self.first},0)"))
        if self.end is not None:
            yield sql.SQL("ctid < {}").format(sql.Literal(f"({self.end},0)"))


def copy_statement(table: Published, pages: Pages) -> sql.Composed:
    """Copy rows, each value in its text form. Rows of tables that inherit from it are theirs: changes of them
    come under their own names."""
    columns = sql.SQL(", ").join(sql.Identifier(column.name) for column in table.relation.columns)
    # The filter is the database's own text, as its catalog prints it.
    own = [sql.SQL(f"({table.row_filter})")] if table.row_filter else []
    conditions: list[sql.Composable] = [*own, *pages.conditions()]
    where = sql.SQL(" WHERE ") + sql.SQL(" AND ").join(conditions) if conditions else sql.SQL("")
    return sql.SQL("COPY (SELECT {} FROM {}{}) TO STDOUT").format(columns, from_sql(table), where)


def from_sql(table: Published) -> sql.Composable:
    """The table with the rows that are its own: those of its partitions are, those of heirs are not."""
    name = sql.Identifier(table.relation.schema, table.relation.table)
    return name if table.is_partitioned else sql.SQL("ONLY {}").format(name)


def blocks(db: psycopg.Connection, statement: sql.Composed) -> Iterator[bytes]:
    """What a COPY sends, in blocks of whole rows.

    The server sends a row at a time, and libpq hands them out so: at its own level that costs a fifth of what
    the cursor's iterator costs. A session that was left in the middle of it is of no more use."""
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
    """The rows of a block as records of rows that are there."""
    data = np.frombuffer(block, np.uint8)
    columns = len(table.relation.columns)
    ends = np.flatnonzero((data == _TAB) | (data == _END))
    if len(ends) % columns or (data[ends[columns - 1 :: columns]] != _END).any():
        raise InvariantViolation(f"a copy of {table.relation.name} has not {columns} values in each row")
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
    """A value's text out of the format of COPY."""
    return re.sub(r"\\(.)", lambda found: _ESCAPED.get(found[1], found[1]), value.decode())
