"""The messages of PostgreSQL's `pgoutput` plugin, from bytes to values (protocol version 1).

Promise: every byte of a message is accounted for. A message that is cut, has bytes left over or is of an
unknown kind is refused with `InvalidUsage`, never read halfway: what is behind it would be lost in silence.

The format is described in PostgreSQL's documentation, "Logical Replication Message Formats". Values come in
the text form of their types, so nothing is rounded on the way. An update's column that was stored out of
line and did not change is not sent at all; it is `UNCHANGED` here, which is not None.

Restriction: streamed transactions and two-phase commits (protocols 2 to 4) are not read.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidemark.core.errors import InvalidUsage
from tidemark.sources.pgbytes import Reader, Row


@dataclass(frozen=True, slots=True)
class Begin:
    """A source transaction starts. `lsn` is where its commit record begins."""

    lsn: int
    committed_us: int
    xid: int


@dataclass(frozen=True, slots=True)
class Commit:
    """It ends. The slot may be advanced to `end_lsn` once everything up to here is durable."""

    lsn: int
    end_lsn: int
    committed_us: int


@dataclass(frozen=True, slots=True)
class RelationColumn:
    """A column of a published table. `in_key` says that it is part of the replica identity."""

    name: str
    type_oid: int
    type_modifier: int
    in_key: bool


@dataclass(frozen=True, slots=True)
class Relation:
    """A table as it was when the rows that follow were written. `identity` is d, n, f or i."""

    oid: int
    schema: str
    table: str
    identity: str
    columns: tuple[RelationColumn, ...]

    @property
    def name(self) -> str:
        return f"{self.schema}.{self.table}"


@dataclass(frozen=True, slots=True)
class TypeName:
    """A type that is not built in."""

    oid: int
    schema: str
    name: str


@dataclass(frozen=True, slots=True)
class Insert:
    """A new row."""

    relation: int
    new: Row


@dataclass(frozen=True, slots=True)
class Update:
    """A row that changed. `old` is the old key when the key changed, the whole old row where the replica
    identity is full (`old_is_full`), and else None."""

    relation: int
    old: Row | None
    old_is_full: bool
    new: Row


@dataclass(frozen=True, slots=True)
class Delete:
    """A row that is gone, by its old key or whole."""

    relation: int
    old: Row
    old_is_full: bool


@dataclass(frozen=True, slots=True)
class Truncate:
    """All rows of these tables are gone."""

    relations: tuple[int, ...]
    cascade: bool
    restart_identity: bool


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the transaction came from, if it was replicated here."""

    lsn: int
    name: str


@dataclass(frozen=True, slots=True)
class LogicalMessage:
    """What somebody wrote with `pg_logical_emit_message`."""

    transactional: bool
    lsn: int
    prefix: str
    content: bytes


Message = Begin | Commit | Relation | TypeName | Insert | Update | Delete | Truncate | Origin | LogicalMessage


def parse(data: bytes) -> Message:
    """The message that these bytes are."""
    reader = Reader(data)
    kind = reader.mark()
    match kind:
        case "B":
            found: Message = Begin(reader.uint64(), reader.int64(), reader.uint32())
        case "C":
            reader.flags(0)
            found = Commit(reader.uint64(), reader.uint64(), reader.int64())
        case "R":
            found = _relation(reader)
        case "Y":
            found = TypeName(reader.uint32(), reader.text(), reader.text())
        case "I":
            relation = reader.uint32()
            reader.expect("N")
            found = Insert(relation, reader.row())
        case "U":
            found = _update(reader)
        case "D":
            relation, which = reader.uint32(), reader.expect("KO")
            found = Delete(relation, reader.row(), which == "O")
        case "T":
            count, options = reader.uint32(), reader.flags(3)
            relations = tuple(reader.uint32() for _ in range(count))
            found = Truncate(relations, bool(options & 1), bool(options & 2))
        case "O":
            found = Origin(reader.uint64(), reader.text())
        case "M":
            transactional = bool(reader.flags(1))
            found = LogicalMessage(transactional, reader.uint64(), reader.text(), reader.sized())
        case _:
            raise InvalidUsage(
                f"a replication message of kind {kind!r} is not known", hint="use protocol version 1"
            )
    reader.end()
    return found


def _relation(reader: Reader) -> Relation:
    oid, schema, table = reader.uint32(), reader.text(), reader.text()
    identity = reader.expect("dnfi")
    columns = []
    for _ in range(reader.uint16()):
        in_key = bool(reader.flags(1))
        columns.append(RelationColumn(reader.text(), reader.uint32(), reader.int32(), in_key))
    # An empty schema name stands for pg_catalog.
    return Relation(oid, schema or "pg_catalog", table, identity, tuple(columns))


def _update(reader: Reader) -> Update:
    relation, which = reader.uint32(), reader.expect("KON")
    if which == "N":
        return Update(relation, None, False, reader.row())
    old = reader.row()
    reader.expect("N")
    return Update(relation, old, which == "O", reader.row())
