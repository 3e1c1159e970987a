"""The pieces that `pgoutput` messages are made of: numbers, texts and rows, taken from the front of bytes."""

from __future__ import annotations

import struct
from enum import Enum
from typing import Final

from tidemark.core.errors import InvalidUsage


class Unchanged(Enum):
    """The marker for a value that was stored out of line, did not change, and was not sent."""

    UNCHANGED = "u"


UNCHANGED: Final = Unchanged.UNCHANGED

Value = str | bytes | None | Unchanged
"""Text as it came, bytes of a value that was sent in binary form, None for NULL, or `UNCHANGED`."""
Row = tuple[Value, ...]


class Reader:
    """Takes bytes from the front; says where a message stops making sense."""

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

    def uint16(self) -> int:
        return int(struct.unpack("!H", self._take(2))[0])

    def int32(self) -> int:
        return int(struct.unpack("!i", self._take(4))[0])

    def uint32(self) -> int:
        return int(struct.unpack("!I", self._take(4))[0])

    def int64(self) -> int:
        return int(struct.unpack("!q", self._take(8))[0])

    def uint64(self) -> int:
        return int(struct.unpack("!Q", self._take(8))[0])

    def mark(self) -> str:
        return self._take(1).decode("latin-1")

    def expect(self, marks: str) -> str:
        found = self.mark()
        if found not in marks:
            raise self._broken(f"expected one of {marks!r}, found {found!r}")
        return found

    def flags(self, known: int) -> int:
        found = self._take(1)[0]
        if found & ~known:
            raise self._broken(f"flags {found} are not known")
        return found

    def text(self) -> str:
        end = self._data.find(b"\0", self._at)
        if end < 0:
            raise self._broken("a text has no end")
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

    def row(self) -> Row:
        """The values of a row, in one loop: nearly all the time of a capture is spent here."""
        data, at = self._data, self._at + 2
        values: list[Value] = []
        for _ in range(self.uint16()):
            mark = data[at : at + 1]
            at += 1
            if mark == b"n":
                values.append(None)
            elif mark == b"u":
                values.append(UNCHANGED)
            elif mark in (b"t", b"b"):
                size = int.from_bytes(data[at : at + 4], signed=True)
                start, at = at + 4, at + 4 + size
                if size < 0 or at > len(data):
                    raise self._broken(f"a value of {size} bytes does not fit into it")
                raw = data[start:at]
                values.append(self._decoded(raw) if mark == b"t" else raw)
            else:
                raise self._broken(f"{mark!r} is not a kind of value")
        self._at = at
        return tuple(values)

    def end(self) -> None:
        if self._at != len(self._data):
            raise self._broken(f"{len(self._data) - self._at} bytes are left over")
