"""The data files of a state: rows, and beside them what finds and proves them.

Each file has two columns that are not in the table's schema, so that readers pass over them: the hash of a
row's key (16 bytes) and the digest of the row. A lost index, a second machine or a compaction then needs no
row to be hashed again. A file that somebody else has written does not have them.
"""

from __future__ import annotations

import io
from collections.abc import Container
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from tidemark.core.checksum import Digest
from tidemark.core.errors import Determinate, InvalidUsage
from tidemark.delta.entry import NewFile
from tidemark.delta.file_names import name_of
from tidemark.delta.runs import Numbers
from tidemark.delta.statistics import footer_statistics, statistics
from tidemark.delta.store import Store

KEY: Final = "_tidemark_key"
DIGEST: Final = "_tidemark_digest"
BESIDE: Final = (KEY, DIGEST)
KEY_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class RowKeys:
    """The key hashes, digests and sequences of some rows, in their order."""

    hi: Numbers
    lo: Numbers
    digest: npt.NDArray[np.int64]
    sequence: npt.NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.hi)


def keys_of(hashes: pa.ChunkedArray, digests: pa.ChunkedArray, sequences: Any = None) -> RowKeys:
    """Key hashes of 16 bytes, and digests, as numbers."""
    halves = np.frombuffer(b"".join(_bytes_of(chunk) for chunk in hashes.chunks), ">u8").reshape(-1, 2)
    return RowKeys(
        halves[:, 0].astype(np.uint64),
        halves[:, 1].astype(np.uint64),
        digests.to_numpy().astype(np.int64),
        None if sequences is None else sequences.to_numpy().astype(np.int64),
    )


def _bytes_of(chunk: pa.Array) -> bytes:
    try:
        chunk = chunk.cast(pa.binary(KEY_BYTES))
    except pa.ArrowInvalid as error:
        raise InvalidUsage(f"the column {KEY} is not of hashes: {error}") from error
    if chunk.null_count:
        raise InvalidUsage(f"the column {KEY} has {chunk.null_count} NULLs")
    data: bytes = chunk.buffers()[1].to_pybytes()
    return data[chunk.offset * KEY_BYTES : (chunk.offset + len(chunk)) * KEY_BYTES]


def described(store: Store, folder: str) -> list[NewFile]:
    """The files with rows that an engine has written into a folder of its own, by their footers, and have
    them on disk; its other files are removed."""
    found: list[NewFile] = []
    try:
        for name in store.names_after(folder, ""):
            path = f"{folder}/{name}"
            footer = pq.read_metadata(store.opened(path)) if name.endswith(".parquet") else None
            if footer is None or footer.num_rows == 0:
                store.remove_quietly(path)
                continue
            size = int(store.size(path))
            columns = frozenset(footer.schema.to_arrow_schema().names) - set(BESIDE)
            stats = footer_statistics(footer, columns=columns)
            found.append(NewFile(path, size, footer.num_rows, stats))
        store.sync_files([file.path for file in found])
    except (OSError, pa.ArrowException) as error:
        raise Determinate(
            f"the files in {folder} of {store.uri} can't be read back: {error}", hint="check the store, retry"
        ) from error
    return found


def parquet_options(schema: pa.Schema, *, beside: Container[str]) -> dict[str, Any]:
    """How files of a state are written. What stands beside the rows are hashes, which don't repeat. Fractions
    have neither bounds nor a dictionary in the file. Its bounds are made without NaNs, and Spark believes
    that there are none; and in a dictionary it does not find 0.0 for -0.0."""
    sink = io.BytesIO()
    pq.write_table(schema.empty_table(), sink)
    known = pq.read_metadata(io.BytesIO(sink.getvalue())).schema
    columns = [known.column(at) for at in range(len(known))]
    exact = [column.path for column in columns if column.physical_type not in ("FLOAT", "DOUBLE")]
    return {
        "compression": "zstd",
        "compression_level": 1,
        "write_page_checksum": True,
        "use_dictionary": [path for path in exact if path not in beside],
        "write_statistics": exact,
    }


def write_rows(store: Store, rows: pa.Table, *, version: int, nonce: UUID) -> NewFile:
    """Write rows to one file, and have it on disk. Statistics leave out what stands beside them."""
    out = io.BytesIO()
    plain = [name for name in BESIDE if name in rows.column_names]
    pq.write_table(rows, out, **parquet_options(rows.schema, beside=plain))
    path, data = name_of(version, nonce), out.getvalue()
    try:
        store.put_synced(path, data)
    except OSError as error:
        raise Determinate(
            f"the rows for version {version} of {store.uri} were not written: {error}",
            hint="check the room and the permissions, then retry",
        ) from error
    return NewFile(path, len(data), rows.num_rows, statistics(rows.drop_columns(plain)))


def digest_of(digests: npt.NDArray[Any]) -> Digest:
    """The digest of rows with these hashes."""
    values = digests.view(np.uint64)
    low, high = values & np.uint64(0xFFFFFFFF), values >> np.uint64(32)
    xor = int(np.bitwise_xor.reduce(values)) if len(values) else 0
    return Digest(len(values), xor, int(low.sum(dtype=np.uint64)), int(high.sum(dtype=np.uint64)))
