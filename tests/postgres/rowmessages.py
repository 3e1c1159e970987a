"""Row messages as values, the format that they come in, and the records they stand for: each written down
plainly, one row after the other, to hold the product's way of doing many at once against."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

import numpy as np

from tidemark.sources.postgres.pgoutput import (
    BINARY,
    DELETE,
    INSERT,
    NEW,
    NULL,
    OLD,
    Messages,
    Relation,
    Spans,
)
from tidemark.sources.postgres.pgoutput import UNCHANGED as NOT_SENT
from tidemark.sources.postgres.values import to_json


class Unchanged(Enum):
    UNCHANGED = "u"


UNCHANGED: Final = Unchanged.UNCHANGED
Value = str | bytes | None | Unchanged
Row = tuple[Value, ...]


@dataclass(frozen=True)
class Insert:
    relation: int
    new: Row


@dataclass(frozen=True)
class Update:
    relation: int
    old: Row | None
    old_is_full: bool
    new: Row


@dataclass(frozen=True)
class Delete:
    relation: int
    old: Row
    old_is_full: bool


RowMessage = Insert | Update | Delete


def tuple_data(row: Row) -> bytes:
    out = struct.pack("!h", len(row))
    for value in row:
        if value is None:
            out += b"n"
        elif value is UNCHANGED:
            out += b"u"
        else:
            raw = value if isinstance(value, bytes) else str(value).encode()
            out += (b"b" if isinstance(value, bytes) else b"t") + struct.pack("!i", len(raw)) + raw
    return out


def encoded_row(message: RowMessage) -> bytes:
    """The documented format, written down a second time."""
    head = struct.pack("!I", message.relation)
    match message:
        case Insert(_, new):
            return b"I" + head + b"N" + tuple_data(new)
        case Update(_, old, is_full, new):
            before = (b"O" if is_full else b"K") + tuple_data(old) if old is not None else b""
            return b"U" + head + before + b"N" + tuple_data(new)
        case Delete(_, old, is_full):
            return b"D" + head + (b"O" if is_full else b"K") + tuple_data(old)


def understood(batch: Sequence[bytes], columns: int) -> list[RowMessage]:
    """What the product makes of row messages, as values."""
    messages = Messages(batch)
    rows = messages.rows(np.flatnonzero(messages.is_row), columns)
    found: list[RowMessage] = []
    for at, number in enumerate(rows.numbers.tolist()):
        relation, mark = int(messages.relations[number]), rows.marks[at]
        new, old = (_values(messages, spans, at) for spans in (rows.new, rows.old))
        if rows.does[at] == INSERT:
            found.append(Insert(relation, new))
        elif rows.does[at] == DELETE:
            found.append(Delete(relation, old, mark == OLD))
        else:
            found.append(Update(relation, None if mark == NEW else old, mark == OLD, new))
    return found


def _values(messages: Messages, spans: Spans, row: int) -> Row:
    found: list[Value] = []
    for start, size, kind in zip(
        spans.starts[row].tolist(), spans.sizes[row].tolist(), spans.kinds[row].tolist(), strict=True
    ):
        raw = messages.data[start : start + size].tobytes()
        absent: dict[int, Value] = {NULL: None, NOT_SENT: UNCHANGED}
        found.append(absent[kind] if kind in absent else raw if kind == BINARY else raw.decode())
    return tuple(found)


def plain_records(
    message: RowMessage, relation: Relation, keys: Sequence[str], *, lsn: int, xid: int
) -> list[dict[str, Any]]:
    """The records of one row message, by the rules that `records` describes."""
    names = [column.name for column in relation.columns]
    source = {"schema": relation.schema, "table": relation.table, "lsn": lsn, "txId": xid}

    def written(row: Row) -> dict[str, Any]:
        return {
            column.name: to_json(value, column.type_oid) if isinstance(value, str) else None
            for column, value in zip(relation.columns, row, strict=True)
        }

    def gone(row: Row) -> dict[str, Any]:
        before = {name: value for name, value in written(row).items() if name in keys}
        return {"op": "d", "before": before, "after": None, "source": source}

    match message:
        case Insert(_, new):
            return [{"op": "c", "after": written(new), "source": source}]
        case Delete(_, old, _):
            return [gone(old)]
        case Update(_, old, _, new):
            whole = tuple(
                old[at] if value is UNCHANGED and old and isinstance(old[at], str) else value
                for at, value in enumerate(new)
            )
            there = {"op": "c", "after": written(whole), "source": source}
            moved = old is not None and any(old[names.index(key)] != whole[names.index(key)] for key in keys)
            return [gone(old), there] if moved and old is not None else [there]


def parsed_lines(data: bytes | memoryview) -> list[Any]:
    return [json.loads(line) for line in bytes(data).split(b"\n")[:-1]]
