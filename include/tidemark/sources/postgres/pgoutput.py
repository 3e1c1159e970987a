"""A parser for the messages of PostgreSQL's `pgoutput` plugin (protocol version 1), and for WAL positions.

The format is described in PostgreSQL's documentation, "Logical Replication Message Formats".

Promise: every byte of a message is accounted for. A message that is truncated, has extra bytes or is of an
unknown kind is refused and never read in part, because the rest would be lost silently. `parse` raises
`InvalidUsage`. Row messages raise `Broken`, also if the number of values is not the table's number of
columns, or a value is of an unknown kind.

Most messages are rows. One by one, Python would need microseconds for each value. So `Messages` puts them
into one block of memory, and parses the first value of all rows at once, then the second, and so on.

Restriction: streamed transactions and two-phase commits (protocols 2 to 4) are not supported.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from tidemark.core.errors import InvalidUsage


def lsn_text(lsn: int) -> str:
    """A WAL position in PostgreSQL's text form, such as `16/B374D848`."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def parsed_lsn(text: str) -> int:
    """A WAL position from PostgreSQL's text form. Raises `InvalidUsage` if it isn't one."""
    high, slash, low = text.partition("/")
    try:
        if not slash:
            raise ValueError
        return (int(high, 16) << 32) | int(low, 16)
    except ValueError:
        raise InvalidUsage(f"{text[:40]!r} is not a log position", hint="write it like 0/16B3748") from None


_UINT8, _UINT16, _INT32, _UINT32, _INT64, _UINT64 = (struct.Struct(f"!{code}") for code in "BHiIqQ")


class Reader:
    """Reads values from the front of a message. Invalid bytes raise `InvalidUsage` with their position."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def _take(self, size: int) -> bytes:
        taken = self._data[self._at : self._at + size]
        if len(taken) < size:
            raise self._broken(f"it ends {size - len(taken)} bytes too early")
        self._at += size
        return taken

    def _broken(self, why: str) -> InvalidUsage:
        kind = self._data[:1].decode("latin-1")
        return InvalidUsage(
            f"a replication message of kind {kind!r} can't be read at byte {self._at}: {why}",
            hint="nothing was captured; check that the slot's plugin is pgoutput, and its version",
        )

    def _number(self, kind: struct.Struct) -> int:
        at = self._at + kind.size
        if at > len(self._data):
            raise self._broken(f"it ends {at - len(self._data)} bytes too early")
        found: int = kind.unpack_from(self._data, self._at)[0]
        self._at = at
        return found

    def uint16(self) -> int:
        return self._number(_UINT16)

    def int32(self) -> int:
        return self._number(_INT32)

    def uint32(self) -> int:
        return self._number(_UINT32)

    def int64(self) -> int:
        return self._number(_INT64)

    def uint64(self) -> int:
        return self._number(_UINT64)

    def mark(self) -> str:
        return chr(self._number(_UINT8))

    def expect(self, marks: str) -> str:
        found = self.mark()
        if found not in marks:
            raise self._broken(f"expected one of {marks!r}, found {found!r}")
        return found

    def flags(self, known: int) -> int:
        found = self._take(1)[0]
        if found & ~known:
            raise self._broken(f"flags {found} are unknown")
        return found

    def text(self) -> str:
        end = self._data.find(b"\0", self._at)
        if end < 0:
            raise self._broken("a text is not terminated")
        raw = self._take(end - self._at + 1)[:-1]
        return self._decoded(raw)

    def _decoded(self, raw: bytes) -> str:
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise self._broken("a text is not UTF-8") from None

    def sized(self) -> bytes:
        size = self.int32()
        if size < 0:
            raise self._broken(f"a size is {size}")
        return self._take(size)

    def end(self) -> None:
        if self._at != len(self._data):
            raise self._broken(f"{len(self._data) - self._at} bytes are left over")


_EPOCH_SECONDS: Final = 946_684_800
"""2000-01-01, the epoch of the server's times."""
_BEGIN: Final = struct.Struct("!xQqI")
_COMMIT: Final = struct.Struct("!xxQQq")


def plain_name(name: str) -> str:
    """The name of a column in its shard: the same, with `_` for characters that a plain Delta table doesn't
    allow in column names."""
    plain = re.sub(r"\W", "_", name)
    return f"_{plain}" if plain[:1].isdigit() else plain


def spelled(name: str) -> str:
    """A schema's or a table's name as part of a qualified name: quoted if it has a dot or a quote."""
    return f'"{name.replace(chr(34), chr(34) * 2)}"' if "." in name or '"' in name else name


@dataclass(frozen=True, slots=True)
class Begin:
    """The begin of a source transaction. `lsn` is the start of its commit record."""

    lsn: int
    committed_us: int
    xid: int

    @property
    def committed_seconds(self) -> float:
        """The time of the commit by the server's clock, in seconds since 1970."""
        return _EPOCH_SECONDS + self.committed_us / 1e6


@dataclass(frozen=True, slots=True)
class Commit:
    """The end of a source transaction. The slot may advance to `end_lsn` once everything below is durable."""

    lsn: int
    end_lsn: int
    committed_us: int


@dataclass(frozen=True, slots=True)
class RelationColumn:
    """A column of a published table. `in_key` is whether it is part of the replica identity."""

    name: str
    type_oid: int
    type_modifier: int
    in_key: bool

    @property
    def plain(self) -> str:
        """The name of the column in its shard."""
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
    """A type that is not built into PostgreSQL."""

    oid: int
    schema: str
    name: str


@dataclass(frozen=True, slots=True)
class Truncate:
    """A truncate of these tables."""

    relations: tuple[int, ...]
    cascade: bool
    restart_identity: bool


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of a source transaction that was replicated into this database."""

    lsn: int
    name: str


@dataclass(frozen=True, slots=True)
class LogicalMessage:
    """A message written with `pg_logical_emit_message`."""

    transactional: bool
    lsn: int
    prefix: str
    content: bytes


Message = Begin | Commit | Relation | TypeName | Truncate | Origin | LogicalMessage


def parse(data: bytes) -> Message:
    """Parse one message, which must not be a row."""
    # A fast path: every transaction has these two messages, and many have only one row.
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


# Row messages, many at once.

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

TEXT, BINARY, NULL, UNCHANGED = b"tbnu"
"""The kinds of values. `UNCHANGED` is a TOAST value that did not change and was not sent."""
INSERT, UPDATE, DELETE = b"IUD"
KEY, OLD, NEW = b"KON"
_PADDING: Final = bytes(8)
"""Follows the last message, so that reading a truncated number stays within the data."""


class Broken(Exception):
    """The first row message that must be refused: its number `at`, and the `error` to raise."""

    def __init__(self, at: int, error: InvalidUsage) -> None:
        super().__init__(at, error)
        self.at, self.error = at, error


@dataclass(frozen=True, slots=True)
class Spans:
    """The positions of values in the data, by row and column. A value that was not sent has size 0."""

    starts: Numbers
    sizes: Numbers
    kinds: Bytes

    def where(self, rows: Flags) -> Spans:
        """The positions for some rows."""
        return Spans(self.starts[rows], self.sizes[rows], self.kinds[rows])

    def of(self, columns: Sequence[int]) -> Spans:
        """The positions for some columns."""
        at = list(columns)
        return Spans(self.starts[:, at], self.sizes[:, at], self.kinds[:, at])


@dataclass(frozen=True, slots=True)
class Rows:
    """The row messages of one table: their numbers, their operations and their values. Without an old row
    (`marks` is NEW) the old values are NULL; the new values of a deletion are NULL."""

    numbers: Numbers
    does: Bytes
    marks: Bytes
    old: Spans
    new: Spans

    def where(self, rows: Flags) -> Rows:
        """Some of the rows."""
        if rows.all():
            return self
        numbers, does, marks = self.numbers[rows], self.does[rows], self.marks[rows]
        return Rows(numbers, does, marks, self.old.where(rows), self.new.where(rows))


class Messages:
    """Messages in one block of memory, with the kind and the relation of each."""

    def __init__(self, messages: Sequence[bytes]) -> None:
        self.messages = messages
        sizes = np.fromiter(map(len, messages), np.int64, len(messages))
        self._ends = np.cumsum(sizes)
        self._starts = self._ends - sizes
        self.data: Bytes = np.frombuffer(b"".join([*messages, _PADDING]), np.uint8)
        # An empty message is not a row; `parse` raises the error for it.
        self._kinds = np.where(sizes > 0, self.data[self._starts], 0)
        self.is_row: Flags = np.isin(self._kinds, np.array([INSERT, UPDATE, DELETE], np.uint8))
        self.relations: Numbers = self._uint32(self._starts + 1)

    def rows(self, numbers: Numbers, columns: int) -> Rows:
        """The rows of a table with this number of columns. Raises `Broken` for the first invalid one."""
        at, ends = self._starts[numbers] + 6, self._ends[numbers]
        does, marks = self._kinds[numbers], self.data[at - 1]
        has_old, has_new = marks != NEW, does != DELETE
        broken = (at > ends) | ~np.isin(marks, np.array([KEY, OLD, NEW], np.uint8))
        broken |= ((does == INSERT) & has_old) | ((does == DELETE) & ~has_old)
        old, at, broken = self._values(at, ends, broken, has_old, columns)
        # A mark separates the old from the new row.
        between = has_old & has_new
        broken |= between & (self.data[np.minimum(at, ends)] != NEW)
        new, at, broken = self._values(at + between, ends, broken, has_new, columns)
        broken |= at != ends
        if broken.any():
            first = int(numbers[int(np.argmax(broken))])
            raise Broken(first, _unreadable(chr(self.messages[first][0])))
        return Rows(numbers, does, marks, old, new)

    def _values(
        self, at: Numbers, ends: Numbers, broken: Flags, there: Flags, columns: int
    ) -> tuple[Spans, Numbers, Flags]:
        """The values from position `at` for the rows in `there`; the positions where they end, and which rows
        are broken."""
        starts = np.empty((len(at), columns), np.int64)
        sizes, kinds = np.zeros_like(starts), np.full(starts.shape, NULL, np.uint8)
        at = np.where(broken, ends, at)
        count = self.data[at].astype(np.int64) << 8 | self.data[at + 1]
        broken = broken | (there & (count != columns))
        at = at + 2 * there
        for column in range(columns):
            at = np.where(broken, ends, np.minimum(at, ends))
            kind = np.where(there, self.data[at], NULL)
            sized = (kind == TEXT) | (kind == BINARY)
            size = np.where(sized, self._int32(at + 1), 0)
            starts[:, column], sizes[:, column], kinds[:, column] = at + 5 * sized, size, kind
            at = at + np.where(sized, 5 + size, there)
            broken |= (size < 0) | (at > ends) | ~(sized | (kind == NULL) | (kind == UNCHANGED))
        return Spans(starts, sizes, kinds), at, broken

    def _uint32(self, at: Numbers) -> Numbers:
        return self._int32(at) & 0xFFFFFFFF

    def _int32(self, at: Numbers) -> Numbers:
        # A number may begin at any byte, so the words overlap.
        words = np.ndarray((len(self.data) - 3,), ">i4", self.data, strides=(1,))
        return words[at].astype(np.int64)


def _unreadable(kind: str) -> InvalidUsage:
    return InvalidUsage(
        f"a replication message of kind {kind!r} can't be read: it is incomplete, or has bytes left over",
        hint="nothing of it was captured; check that the slot's plugin is pgoutput, and its version",
    )
