"""From row messages to change records: one JSON line each, in Debezium's envelope.

A record names its table and the commit it belongs to. What can't be told without loss is refused before
anything is captured, so nothing is bound to it, and the slot keeps it until the cause is mended:

- a column that is not declared, or declared as a type that would lose something; a declared column that is
  gone (with `on_schema_change: add_columns`, a nullable one may be);
- key columns that are not those of the table's replica identity (scenario D7);
- a big value that did not change and was not sent. Where the replica identity is full, the old row comes
  along and has it (scenario U14). Without that nobody knows it, and NULL would be a lie.

An update that changes the key is a deletion and an insertion. A truncate is a record of its own, which the
data plane refuses by the table's name.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final

from tidemark.config.schema import Column
from tidemark.config.shard import ShardConfig
from tidemark.core.errors import InvalidUsage
from tidemark.sources.pgbytes import UNCHANGED, Row, Value
from tidemark.sources.pgoutput import Delete, Insert, Relation, Update
from tidemark.sources.postgres.values import declared_for, lossless, writer_of

_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), check_circular=False)


def refused(table: str, fact: str, hint: str) -> InvalidUsage:
    return InvalidUsage(f"table {table}: {fact}", hint=hint)


@dataclass(frozen=True, slots=True)
class Table:
    """A table that goes to a shard, in the shape that it had when its rows were written."""

    relation: Relation
    keys: tuple[int, ...]
    """Where the shard's keys stand among the columns."""
    writers: tuple[tuple[str, Callable[[str], str]], ...]
    """For each column, its name as a member of a JSON object begins, and what writes its values."""

    @classmethod
    def of(cls, relation: Relation, shard: ShardConfig) -> Table:
        """The table, once its shape is known to fit the shard."""
        names = [column.name for column in relation.columns]
        _check_columns(relation, shard)
        missing = [key for key in shard.keys if key not in names]
        identity = {column.name for column in relation.columns if column.in_key}
        is_full = relation.identity == "f"
        if missing or (identity != set(shard.keys) and not is_full):
            have = ", ".join(sorted(identity)) or "none"
            raise refused(
                relation.name,
                f"the key is ({', '.join(shard.keys)}), and its rows are identified by ({have})",
                f"declare the table's own key, or: ALTER TABLE {relation.name} REPLICA IDENTITY FULL",
            )
        writers = tuple((f"{_text(c.name)}:", writer_of(c.type_oid)) for c in relation.columns)
        return cls(relation, tuple(names.index(key) for key in shard.keys), writers)

    def insert(self, new: Row, place: str) -> bytes:
        """A row that is there now."""
        return f'{{"op":"c","after":{self._object(new)},{place}}}\n'.encode()

    def delete(self, old: Row, place: str) -> bytes:
        """A row that is gone, by its key alone."""
        key = ",".join(self._member(old[at], at) for at in self.keys)
        return f'{{"op":"d","before":{{{key}}},"after":null,{place}}}\n'.encode()

    def lines(self, message: Insert | Update | Delete, place: str) -> Iterator[bytes]:
        """The records of a row message: one, or two when a key changes."""
        match message:
            case Insert(_, new):
                yield self.insert(new, place)
            case Delete(_, old, _):
                yield self.delete(old, place)
            case Update(_, old, old_is_full, new):
                whole = self._filled(new, old if old_is_full else None)
                if old is not None and any(old[at] != whole[at] for at in self.keys):
                    yield self.delete(old, place)
                yield self.insert(whole, place)

    def _filled(self, new: Row, old: Row | None) -> Row:
        """The new row with what was not sent taken from the old one."""
        if UNCHANGED not in new:
            return new
        whole = tuple(
            old[at] if value is UNCHANGED and old is not None else value for at, value in enumerate(new)
        )
        if UNCHANGED in whole:
            column = self.relation.columns[whole.index(UNCHANGED)].name
            raise refused(
                self.relation.name,
                f"an update did not send the unchanged value of the big column {column!r}",
                f"ALTER TABLE {self.relation.name} REPLICA IDENTITY FULL; then begin with a new slot",
            )
        return whole

    def _object(self, row: Row) -> str:
        return f"{{{','.join([self._member(value, at) for at, value in enumerate(row)])}}}"

    def _member(self, value: Value, at: int) -> str:
        name, write = self.writers[at]
        if isinstance(value, str):
            return name + write(value)
        if value is None:
            return f"{name}null"
        raise refused(self.relation.name, "a value came in binary form", "ask the slot for text")


def place_of(relation: Relation, *, lsn: int, xid: int) -> str:
    """Which table a record is of and which commit it came with, as the end of a line."""
    source = {"schema": relation.schema, "table": relation.table, "lsn": lsn, "txId": xid}
    return f'"source":{_text(source)}'


def swept(key: Mapping[str, Any], shard: ShardConfig, place: str) -> bytes:
    """A key of a shard that is gone, whether it was there or not."""
    before = {name: _plain(value, shard.columns.get(name)) for name, value in key.items()}
    return f'{{"op":"d","before":{_text(before)},"after":null,{place}}}\n'.encode()


def _plain(value: Any, column: Column | None) -> Any:
    """A key's value out of a shard's file, as JSON that its declared type reads back."""
    match value:
        case datetime():
            zone = "Z" if column is not None and column.type.name == "TIMESTAMP" else ""
            return value.replace(tzinfo=None).isoformat() + zone
        case date():
            return value.isoformat()
        case bytes():
            return base64.b64encode(value).decode()
        case Decimal():
            return str(value)
        case _:
            return value


def truncated(place: str) -> bytes:
    """All rows of a table are gone."""
    return f'{{"op":"t","before":null,"after":null,{place}}}\n'.encode()


def _text(value: dict[str, Any] | str) -> str:
    return _ENCODER.encode(value)


def _check_columns(relation: Relation, shard: ShardConfig) -> None:
    for column in relation.columns:
        declared = shard.columns.get(column.name)
        wanted = declared_for(column.type_oid, column.type_modifier)
        if declared is None:
            raise refused(
                relation.name,
                f"column {column.name!r} is not declared",
                f"declare {column.name} {wanted} in shard {shard.name}, and if the rows that are there got a"
                " default, `tidemark source reread` the table; with schema: from_source, set"
                " on_schema_change: add_columns",
            )
        if not lossless(column.type_oid, column.type_modifier, declared.type):
            raise refused(
                relation.name,
                f"column {column.name!r} can't be read as {declared.type.ddl} without loss",
                f"declare it as {wanted}: {_where(shard)}",
            )
    names = {column.name for column in relation.columns}
    for declared in shard.columns:
        may_lack = shard.on_schema_change == "add_columns" and declared.nullable
        if declared.name not in names and not (may_lack and declared.name not in shard.keys):
            raise refused(
                relation.name,
                f"the declared column {declared.name!r} is not sent",
                "it was dropped, or is generated, or is not in the publication's column list: remove it from"
                f" the schema of shard {shard.name}, or set on_schema_change: add_columns",
            )


def _where(shard: ShardConfig) -> str:
    """What can be done about columns that differ: a shard with rows keeps its own."""
    return (
        f"in shard {shard.name} if that has no rows yet, else in one of another name, with a higher"
        " generation of the pipeline, and the table is read into it anew"
    )
