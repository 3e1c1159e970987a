"""The messages of PostgreSQL's `pgoutput` plugin, from bytes to values (protocol version 1).

Promise: every byte of a message is accounted for. A message that is cut, has bytes left over or is of an
unknown kind is refused with `InvalidUsage`, never read halfway: what is behind it would be lost in silence.

The format is described in PostgreSQL's documentation, "Logical Replication Message Formats". Rows are most of
what comes, and are not read one by one: see `pgrows`.

Restriction: streamed transactions and two-phase commits (protocols 2 to 4) are not read.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import Final

from tidemark.core.errors import InvalidUsage
from tidemark.sources.pgbytes import Reader

_EPOCH_SECONDS: Final = 946_684_800
"""2000-01-01, from which the server counts."""
_BEGIN: Final = struct.Struct("!xQqI")
_COMMIT: Final = struct.Struct("!xxQQq")


def plain_name(name: str) -> str:
    """What a shard calls a column: the same, but for characters that a column of a plain Delta table can't
    have, which become `_`."""
    plain = re.sub(r"\W", "_", name)
    return f"_{plain}" if plain[:1].isdigit() else plain


def spelled(name: str) -> str:
    """A schema's or a table's name as part of a longer one: in quotes when it has a dot or a quote itself."""
    return f'"{name.replace(chr(34), chr(34) * 2)}"' if "." in name or '"' in name else name


@dataclass(frozen=True, slots=True)
class Begin:
    """A source transaction starts. `lsn` is where its commit record begins."""

    lsn: int
    committed_us: int
    xid: int

    @property
    def committed_seconds(self) -> float:
        """When it was committed, by the clock of the server, in seconds since 1970."""
        return _EPOCH_SECONDS + self.committed_us / 1e6


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

    @property
    def plain(self) -> str:
        """What a shard calls the column."""
        return plain_name(self.name)


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
        return f"{spelled(self.schema)}.{spelled(self.table)}"


@dataclass(frozen=True, slots=True)
class TypeName:
    """A type that is not built in."""

    oid: int
    schema: str
    name: str


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


Message = Begin | Commit | Relation | TypeName | Truncate | Origin | LogicalMessage


def parse(data: bytes) -> Message:
    """The message that these bytes are; it must not be a row."""
    # Every transaction has these two, and many have only one row: the short way for them.
    if data[:1] == b"B" and len(data) == _BEGIN.size:
        return Begin(*_BEGIN.unpack(data))
    if data[:2] == b"C\0" and len(data) == _COMMIT.size:
        return Commit(*_COMMIT.unpack(data))
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
