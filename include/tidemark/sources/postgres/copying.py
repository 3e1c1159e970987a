"""The statement that copies a table's rows out of the database as finished change records.

The server itself writes each row as the line that a captured insertion of it would be, so a row costs no work
here. What it writes for a value is what `values.to_json` makes of the value's text: both are read back as the
same JSON, which a test holds against every type. A table with a column for which the server has no such
expression (an array of bytea) is copied value by value.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from psycopg import sql
from psycopg.postgres import types

from tidemark.sources.pgoutput import RelationColumn
from tidemark.sources.postgres.tables import Published
from tidemark.sources.postgres.values import ELEMENTS, is_number

_TIMES: Final = frozenset(types[name].oid for name in ("timestamp", "timestamptz"))
_AS_IT_IS: Final = frozenset(types[name].oid for name in ("bool", "text", "varchar", "bpchar"))
_BYTEA, _OID = types["bytea"].oid, types["oid"].oid


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


def copies_lines(table: Published) -> bool:
    """Whether the server can write the table's rows as records by itself."""
    return all(ELEMENTS.get(column.type_oid) != _BYTEA for column in table.relation.columns)


def copy_lines(table: Published, place: str, pages: Pages) -> sql.Composed:
    """Copy rows as change records, one line each; `place` is the end of every line."""
    columns = table.relation.columns
    parts: list[sql.Composable] = []
    for at, column in enumerate(columns):
        before = ('{"op":"c","after":{' if at == 0 else ",") + json.dumps(column.name) + ":"
        parts += [sql.Literal(before), sql.SQL("coalesce({}, 'null')").format(_json(column))]
    parts.append(sql.Literal(f"}},{place}}}"))
    return _copy(table, sql.SQL(" || ").join(parts), pages)


def copy_values(table: Published, pages: Pages) -> sql.Composed:
    """Copy rows as they are, each value in its text form."""
    columns = sql.SQL(", ").join(sql.Identifier(column.name) for column in table.relation.columns)
    return _copy(table, columns, pages)


def unescaped(lines: bytes) -> bytes:
    """Lines as the server wrote them, out of the format of COPY: of what it escapes, JSON has only the
    backslash."""
    return lines.replace(b"\\\\", b"\\")


def _copy(table: Published, what: sql.Composable, pages: Pages) -> sql.Composed:
    name = sql.Identifier(table.relation.schema, table.relation.table)
    # The filter is the database's own text, as its catalog prints it.
    own = [sql.SQL(f"({table.row_filter})")] if table.row_filter else []
    conditions: list[sql.Composable] = [*own, *pages.conditions()]
    where = sql.SQL(" WHERE ") + sql.SQL(" AND ").join(conditions) if conditions else sql.SQL("")
    return sql.SQL("COPY (SELECT {} FROM {}{}) TO STDOUT").format(what, name, where)


def _json(column: RelationColumn) -> sql.Composed:
    """The JSON text of a column's value; NULL where it is NULL."""
    kind, name = column.type_oid, sql.Identifier(column.name)
    element = ELEMENTS.get(kind)
    if kind == _OID:
        template = "to_json({}::int8)::text"
    elif element == _OID:
        template = "to_json({}::int8[])::text"
    elif is_number(element or kind) or (element or kind) in _AS_IT_IS:
        template = "to_json({})::text"
    elif kind == _BYTEA:
        template = "to_json(translate(encode({}, 'base64'), E'\\n', ''))::text"
    elif (element or kind) in _TIMES:
        text = "{}::text[]" if element else "{}::text"
        template = f"replace(replace(to_json({text})::text, ' ', 'T'), '+00\"', 'Z\"')"
    elif element is not None:
        template = "to_json({}::text[])::text"
    else:
        # By the type's own output, as the log has it: a cast to text may differ.
        template = "CASE WHEN {0} IS DISTINCT FROM NULL THEN to_json(format('%s', {0}))::text END"
    return sql.SQL(template.replace("{}", "{0}")).format(name)
