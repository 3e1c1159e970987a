"""The keys that a shard may have, without an engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final
from urllib.parse import unquote, urlparse

import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from tidemark.core.errors import Determinate

ROWS_PER_BATCH: Final = 10_000


def keys_in(shard_uri: str, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The key of every row that lies in a file of the shard's log or state, on a local disk.

    Every key that a reader sees is among them. So are keys that were deleted, and the same one many times:
    whether a row still counts is not asked."""
    # All files are listed before the first is read, the log's first: what leaves the log is published before,
    # so a state that is listed later has it.
    for path in [path for table in ("log", "state") for path in _files_of(f"{shard_uri}/{table}")]:
        yield from _keys_of(path, columns)


def _files_of(table: str) -> list[str]:
    try:
        uris = DeltaTable(table).file_uris()
    except TableNotFoundError:
        return []
    return [unquote(urlparse(uri).path if uri.startswith("file:") else uri) for uri in uris]


def _keys_of(path: str, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    try:
        # Spark's own kind of timestamp has nanoseconds, and Python's has none.
        file = pq.ParquetFile(path, coerce_int96_timestamp_unit="us")
        for batch in file.iter_batches(ROWS_PER_BATCH, columns=list(columns)):
            yield from batch.to_pylist()
    except OSError as error:
        # Maintenance may have replaced it since the table was listed.
        raise Determinate(f"keys can't be read from {path}: {error}", hint="run again") from None
