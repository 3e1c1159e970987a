"""The pieces that `pgoutput` messages are made of: numbers and texts, taken from the front of bytes."""

from __future__ import annotations

import struct

from tidemark.core.errors import InvalidUsage

_UINT8, _UINT16, _INT32, _UINT32, _INT64, _UINT64 = (struct.Struct(f"!{code}") for code in "BHiIqQ")


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

    def end(self) -> None:
        if self._at != len(self._data):
            raise self._broken(f"{len(self._data) - self._at} bytes are left over")
