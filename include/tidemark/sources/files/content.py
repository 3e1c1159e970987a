"""A file's content without decoding it: hash, number of records, whether it unpacks, and record locations.

A record location for people is the file's name and a line or row number. Text is read in blocks, and a
record's ordinal combines the block with the record's number in it, both from 0. Locations count from 1, as
editors do; blank lines and a header are lines too.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidemark.config.storage import opened
from tidemark.sources.files.bound_files import Manifest

READ_BYTES: Final = 1024 * 1024
HASH_BYTES: Final = 16
_PARQUET_MAGIC = b"PAR1"
_PARQUET_END_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class Content:
    """A file that was read to its end. `records` is 0 unless counting was requested. `flaw` is the reason why
    the file is incomplete, or empty."""

    size: int
    hash: str
    mtime_ns: int
    changed_ns: int
    records: int = 0
    flaw: str = ""


def read_content(path: str, *, file_format: str, count_records: bool) -> Content:
    """Hash the file and, with `count_records`, count its lines or read the Parquet footer's row count.

    Size and times are read from the open file after its last byte. If they differ from the listing's, the
    file is still being written. A symlink raises `OSError`.
    """
    digest = hashlib.blake2b(digest_size=HASH_BYTES)
    buffer = bytearray(READ_BYTES)
    view = memoryview(buffer)
    counts_lines = count_records and file_format != "parquet" and not _is_packed(path)
    lines = size = 0
    tail = b""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(view[:count])
            size += count
            tail = (tail + bytes(view[max(0, count - 4) : count]))[-4:]
            if counts_lines:
                lines += buffer.count(b"\n", 0, count)
        after = os.fstat(descriptor)
    flaw = ""
    if file_format == "parquet":
        flaw = "" if tail == _PARQUET_MAGIC and size >= 12 else "it has no Parquet footer"
        lines = _parquet_rows(path) if count_records and not flaw else 0
    elif count_records and _is_packed(path):
        lines = _packed_lines(path)
    elif counts_lines and tail and not tail.endswith(b"\n"):
        lines += 1
    return Content(size, digest.hexdigest(), after.st_mtime_ns, after.st_ctime_ns, lines, flaw)


def footer_hash(path: str) -> str:
    """The hash of a Parquet file's footer, which has the size and place of every column of it. Enough for a
    file that nobody writes again, and the same work whatever its size."""
    with Path(path).open("rb") as file:
        end = file.seek(-_PARQUET_END_BYTES, os.SEEK_END)
        size = int.from_bytes(file.read(4), "little")
        if file.read(4) != _PARQUET_MAGIC or size > end:
            raise OSError(f"{path} has no Parquet footer")
        file.seek(end - size)
        return hashlib.blake2b(file.read(size), digest_size=HASH_BYTES).hexdigest()


def _is_packed(path: str) -> bool:
    return path.lower().endswith((".gz", ".zst"))


def _packed_lines(path: str) -> int:
    """The lines of a packed file. A corrupt file counts up to the corruption: only a transaction's size
    depends on the count."""
    lines = 0
    last = b"\n"
    try:
        for chunk in _unpacked(path):
            lines += chunk.count(b"\n")
            last = chunk[-1:]
    except (OSError, EOFError, zlib.error):
        pass
    return lines + (last != b"\n")


def packing_flaw(path: str) -> str:
    """Why a packed file can't be unpacked to its end. Empty if it can, isn't packed, or can't be opened."""
    if not _is_packed(path):
        return ""
    try:
        for _ in _unpacked(path):
            pass
    except FileNotFoundError:
        return ""
    except (OSError, EOFError, zlib.error) as error:
        return "" if isinstance(error, OSError) and error.errno is not None else str(error)
    return ""


def _unpacked(path: str) -> Iterator[bytes]:
    if path.lower().endswith(".gz"):
        with gzip.open(opened(path), "rb") as file:
            while chunk := file.read(READ_BYTES):
                yield chunk
        return
    import pyarrow as pa

    with pa.input_stream(opened(path), compression="zstd") as stream:
        while chunk := stream.read(READ_BYTES):
            yield chunk


def _parquet_rows(path: str) -> int:
    import pyarrow.parquet as pq

    try:
        return int(pq.read_metadata(path).num_rows)
    except (OSError, ValueError):
        return 0  # Only a transaction's size depends on the count; reading the file reports the error.


BLOCK_BYTES: Final = 32 * 1024**2
"""The size of the blocks that text is read in. Another size changes the ordinals, but not their order."""
LINE_BITS: Final = 33


def line_place(ordinal: int, *, what: str = "line") -> str:
    """The location of a record within its file.

    As in Hadoop, a line belongs to the block in which it begins; a line that begins exactly at the start of a
    block belongs to the block before."""
    block, number = divmod(ordinal, 1 << LINE_BITS)
    after = f" of those that begin after byte {block * BLOCK_BYTES}" if block else ""
    return f"{what} {number + 1}{after}"


def record_place(manifest: Manifest, offset: int, ordinal: int) -> str:
    """The location of a record for people: its file, and its line or row."""
    name = next((repr(file.name) for file in manifest.files if file.seq == offset), str(offset))
    is_row = manifest.format == "parquet" or any(f.seq == offset and f.sweep for f in manifest.files)
    return f"file {name}, {line_place(ordinal, what='row' if is_row else 'line')}"
