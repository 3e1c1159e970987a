"""Deletion vectors: the set of hidden rows of a data file, in the format of the Delta protocol.

A vector's bytes are a magic number (little-endian) and a 64-bit roaring bitmap in the portable format: the
number of 32-bit bitmaps, then the high half and the bytes of each. They are stored either in the log entry
itself (storage type `i`, Base85) or in a file of several vectors (`u`): a version byte, then for each vector
its size, its bytes and their CRC-32, big-endian. A descriptor in the log holds the location.

Every read checks the magic number, size, CRC and the number of rows in the descriptor. A vector that is read
wrongly would silently restore deleted rows or hide others.

Our vector files are in `_vectors/`, which a VACUUM by other programs skips. The first 48 bits of a file's
UUID are the table version that it was written for (`delta.vacuum`).

Restriction: a data file has fewer than 2**32 rows; a vector with a higher row number is rejected.
"""

from __future__ import annotations

import struct
import uuid
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyroaring import BitMap

from tidemark.core.errors import Determinate, InvalidUsage, InvariantViolation
from tidemark.delta.store import Store

FOLDER: Final = "_vectors"
ROWS_MAX: Final = 1 << 32
_MAGIC: Final = struct.pack("<I", 1681511377)
_FILE_VERSION: Final = b"\x01"
_SIZE: Final = struct.Struct(">I")
_COUNT: Final = struct.Struct("<Q")
_HIGH: Final = struct.Struct("<I")
_Z85: Final = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_Z85_VALUES: Final = {character: value for value, character in enumerate(_Z85)}
_UUID_CHARACTERS: Final = 20
_VERSION_BITS: Final = 48

Rows = BitMap
"""A set of row numbers."""


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A vector's location and the number of rows that it hides; `place` is a prefix and a UUID, or the vector
    itself."""

    storage: str
    place: str
    size: int
    cardinality: int
    offset: int | None = None

    @classmethod
    def of(cls, action: Mapping[str, Any]) -> Descriptor | None:
        """The descriptor in an `add` or a `remove`; None if no row is hidden."""
        found = action.get("deletionVector")
        if not found:
            return None
        try:
            offset = found.get("offset")
            return cls(
                str(found["storageType"]), str(found["pathOrInlineDv"]),
                int(found["sizeInBytes"]), int(found["cardinality"]), None if offset is None else int(offset),
            )  # fmt: skip
        except (KeyError, TypeError, ValueError) as error:
            raise InvariantViolation(
                f"the deletion vector of {action.get('path')} is not one: {found}",
                hint="restore the table's log from a backup",
            ) from error

    @property
    def action(self) -> dict[str, Any]:
        """The descriptor in its log format."""
        found: dict[str, Any] = {"storageType": self.storage, "pathOrInlineDv": self.place}
        if self.offset is not None:
            found["offset"] = self.offset
        return found | {"sizeInBytes": self.size, "cardinality": self.cardinality}

    @property
    def path(self) -> str | None:
        """The path of the vector's file in the table; None for an inline vector."""
        if self.storage == "i":
            return None
        if self.storage != "u" or len(self.place) < _UUID_CHARACTERS:
            raise InvalidUsage(
                f"a deletion vector of storage type {self.storage!r} at {self.place!r} is not in the table",
                hint="shallow clones have such vectors; run `tidemark rebuild PIPELINE SHARD`",
            )
        prefix, name = self.place[:-_UUID_CHARACTERS], self.place[-_UUID_CHARACTERS:]
        return vector_path(uuid.UUID(bytes=decoded85(name, 16)), prefix=prefix)


def vector_path(name: uuid.UUID, *, prefix: str = FOLDER) -> str:
    return f"{prefix}/deletion_vector_{name}.bin" if prefix else f"deletion_vector_{name}.bin"


def name_for(version: int, random: uuid.UUID) -> uuid.UUID:
    """The name of a vector file that is written for a table version."""
    if not 0 <= version < 1 << _VERSION_BITS:
        raise InvalidUsage(f"{version} is not a version of a table")
    return uuid.UUID(int=(version << (128 - _VERSION_BITS)) | _RANDOM_MARK | (random.int & _RANDOM_BITS))


# A UUID of version 8 has custom bits, except for the six that hold its version and variant.
_RANDOM_MARK: Final = (8 << 76) | (2 << 62)
_RANDOM_BITS: Final = ((1 << 76) - 1) & ~(3 << 62)


def version_in(name: uuid.UUID) -> int | None:
    """The table version that a vector file was written for; None for a foreign name."""
    ours = name.version == 8 and name.variant == uuid.RFC_4122
    return name.int >> (128 - _VERSION_BITS) if ours else None


def encoded(rows: Rows) -> bytes:
    if not rows:
        return _MAGIC + _COUNT.pack(0)
    compact = rows.copy()
    compact.run_optimize()
    return _MAGIC + _COUNT.pack(1) + _HIGH.pack(0) + compact.serialize()


def decoded(data: bytes) -> Rows:
    """Decode a vector; ValueError if it is damaged."""
    if data[:4] != _MAGIC:
        raise ValueError(f"a vector begins with {data[:4].hex()}, not with {_MAGIC.hex()}")
    if len(data) < 12:
        raise ValueError(f"a vector of {len(data)} bytes is incomplete")
    (count,) = _COUNT.unpack_from(data, 4)
    if count == 0:
        return BitMap()
    if len(data) < 16:
        raise ValueError(f"a vector of {len(data)} bytes is incomplete")
    (high,) = _HIGH.unpack_from(data, 12)
    if count != 1 or high != 0:
        raise ValueError(f"a vector hides rows from {ROWS_MAX} on")
    return BitMap.deserialize(data[16:])


def encoded85(data: bytes) -> str:
    """Encode as Z85: five characters for four bytes, big-endian, padded with zeros."""
    padded = data + bytes(-len(data) % 4)
    out = []
    for at in range(0, len(padded), 4):
        value = int.from_bytes(padded[at : at + 4], "big")
        out += [_Z85[value // 85**power % 85] for power in (4, 3, 2, 1, 0)]
    return "".join(out)


def decoded85(text: str, size: int) -> bytes:
    """Decode the first `size` bytes of a Z85 text; ValueError if it is invalid."""
    if len(text) % 5 or not 0 <= size <= len(text) // 5 * 4:
        raise ValueError(f"{len(text)} characters of Base85 are not {size} bytes")
    out = bytearray()
    for at in range(0, len(text), 5):
        value = 0
        for character in text[at : at + 5]:
            if character not in _Z85_VALUES:
                raise ValueError(f"{character!r} is not a Base85 character")
            value = value * 85 + _Z85_VALUES[character]
        if value >= 1 << 32:
            raise ValueError(f"{text[at : at + 5]!r} is more than four bytes")
        out += value.to_bytes(4, "big")
    return bytes(out[:size])


def pack(vectors: Sequence[Rows], name: uuid.UUID) -> tuple[bytes, tuple[Descriptor, ...]]:
    """Encode several vectors as the file `name`; return its bytes and the descriptors in the same order."""
    place = FOLDER + encoded85(name.bytes)
    out = bytearray(_FILE_VERSION)
    descriptors = []
    for rows in vectors:
        data = encoded(rows)
        descriptors.append(Descriptor("u", place, len(data), len(rows), len(out)))
        out += _SIZE.pack(len(data)) + data + _SIZE.pack(zlib.crc32(data))
    return bytes(out), tuple(descriptors)


def unpack(file: bytes, descriptor: Descriptor) -> Rows:
    """Decode one vector of a file; ValueError if the file is damaged or does not match the descriptor."""
    if file[:1] != _FILE_VERSION:
        raise ValueError(f"a vector file begins with {file[:1].hex()}, not with {_FILE_VERSION.hex()}")
    at = descriptor.offset if descriptor.offset is not None else len(_FILE_VERSION)
    end = at + _SIZE.size + descriptor.size
    if len(file) < end + _SIZE.size or at < len(_FILE_VERSION):
        raise ValueError(f"a vector at {at} of {descriptor.size} bytes is not in a file of {len(file)} bytes")
    data = file[at + _SIZE.size : end]
    if _SIZE.unpack_from(file, at) != (descriptor.size,):
        raise ValueError(f"a vector at {at} has another size than {descriptor.size} bytes")
    if _SIZE.unpack_from(file, end) != (zlib.crc32(data),):
        raise ValueError(f"a vector at {at} does not agree with its checksum")
    return decoded(data)


def read_vectors(store: Store, wanted: Mapping[str, Descriptor]) -> dict[str, Rows]:
    """The hidden rows by data file path. Each vector file is read once."""
    files: dict[str, bytes] = {}
    found: dict[str, Rows] = {}
    for path, descriptor in wanted.items():
        source: str | None = None
        try:
            source = descriptor.path
            if source is None:
                rows = decoded(decoded85(descriptor.place, descriptor.size))
            else:
                if source not in files:
                    files[source] = store.get(source)
                rows = unpack(files[source], descriptor)
            if len(rows) != descriptor.cardinality:
                raise ValueError(f"it hides {len(rows)} rows, but the log says {descriptor.cardinality}")
        except FileNotFoundError as error:
            raise _damaged(path, source, "it is gone") from error
        except OSError as error:
            raise Determinate(f"the deletion vector {source} can't be read: {error}", hint="retry") from error
        except ValueError as error:
            raise _damaged(path, source, str(error)) from error
        found[path] = rows
    return found


def _damaged(path: str, source: str | None, why: str) -> InvariantViolation:
    where = source if source is not None else "in the log"
    return InvariantViolation(
        f"the deletion vector of {path} ({where}) can't be used: {why}",
        hint="restore it from a backup, or run `tidemark rebuild PIPELINE SHARD`",
    )
