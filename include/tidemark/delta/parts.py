"""The files of a pipeline's logs for readers: delta-rs lists them, pyarrow checks them.

A file is intact if it exists, has its sealed size, and has its sealed row count in its footer. Pages have
checksums, which Spark verifies when it reads; `fault(whole=True)` verifies them here.

`files_of_shard` names the files with all keys that a shard may have.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlparse

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from arro3.core import Table
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from pyarrow import fs

from tidemark.core.errors import Determinate
from tidemark.core.ids import ShardId, Txn
from tidemark.core.ledger import Head
from tidemark.core.log import OP_COLUMN, LogFile, begins_at
from tidemark.core.seal import Part
from tidemark.delta.log import LOG_MARKS, span_of
from tidemark.delta.store import reading
from tidemark.delta.table import VERSION_NONE, ControlTable
from tidemark.ports.control import LogListing

_TXN: Final = "_txn"
_READ_ROWS: Final = 65_536


class DeltaParts:
    """The `PartFiles` port for `<warehouse>/<pipeline>`. `listed` must be called from one thread only."""

    def __init__(self, root: str, storage_options: Mapping[str, str] | None = None) -> None:
        self._root = root
        self._options = dict(storage_options or {})
        self._tables: dict[ShardId, ControlTable] = {}
        self._readers: dict[ShardId, DeltaTable] = {}

    def listed(
        self, shard: ShardId, *, lower: Txn, upper: Txn | None = None, columns: Sequence[str] = ()
    ) -> LogListing:
        table = self._tables.setdefault(
            shard,
            ControlTable(
                f"{self._root}/{shard}/log",
                storage_options=self._options,
                schema=None,
                configuration={},
                marks=LOG_MARKS,
            ),
        )
        head = table.refresh()
        adds = _wanted(self._adds(shard, head), lower=lower, upper=upper, columns=(*columns, OP_COLUMN))
        files = (_file_of(add, lower=lower, upper=head.upper) for add in adds)
        found = tuple(file for file in files if file.txn_last >= lower)
        return LogListing(head.version, head.upper, found, begins_at(head))

    def _adds(self, shard: ShardId, head: Head) -> Table | None:
        """The active files of a log with typed bounds of all columns; None if there is no log."""
        if head.version == VERSION_NONE:
            return None
        uri = f"{self._root}/{shard}/log"
        with reading(uri):
            if shard not in self._readers:
                self._readers[shard] = DeltaTable(uri, version=head.version, storage_options=self._options)
            elif self._readers[shard].version() != head.version:
                self._readers[shard].load_as_version(head.version)
            return Table.from_arrow(self._readers[shard].get_add_actions(flatten=True))

    def fault(self, shard: ShardId, part: Part, *, whole: bool) -> str:
        store, root = self._store()
        path = f"{root}/{shard}/log/{part.path}"
        try:
            info = store.get_file_info(path)
        except OSError as error:
            raise Determinate(
                f"{path} can't be looked up: {error}", hint="check the store, then retry"
            ) from error
        if info.type != fs.FileType.File:
            return "there is no such file"
        if info.size != part.bytes:
            return f"it has {info.size} bytes"
        try:
            with pq.ParquetFile(path, filesystem=store, page_checksum_verification=whole) as file:
                rows: int = file.metadata.num_rows
                if whole:
                    for _ in file.iter_batches(_READ_ROWS, use_threads=False):
                        pass
        except (OSError, ValueError, pa.ArrowException) as error:
            # An error of the machine or the store has an errno; a damaged file has none.
            if isinstance(error, OSError) and error.errno not in (None, errno.ENOENT):
                hint = "check the store, retry"
                raise Determinate(f"{path} can't be read now: {error}", hint=hint) from error
            return f"it can't be read: {error}"
        return "" if rows == part.rows else f"it has {rows} rows, and was sealed with {part.rows}"

    def _store(self) -> tuple[fs.FileSystem, str]:
        if "://" not in self._root:
            return fs.LocalFileSystem(), self._root
        found: tuple[fs.FileSystem, str] = fs.FileSystem.from_uri(self._root.replace("s3a://", "s3://", 1))
        return found


def _wanted(
    found: Table | None, *, lower: Txn, upper: Txn | None, columns: Sequence[str]
) -> list[dict[str, Any]]:
    """The add actions that may have rows in the range, with the statistics of these columns only."""
    if found is None:
        return []
    # Not pa.table(): for that pyarrow imports pandas.
    adds = pa.RecordBatchReader.from_stream(found).read_all()
    if f"max.{_TXN}" in adds.column_names:
        known = pc.fill_null(pc.cast(adds[f"max.{_TXN}"], pa.int64()), int(lower))
        adds = adds.filter(pc.greater_equal(known, int(lower)))
    if upper is not None and f"min.{_TXN}" in adds.column_names:
        known = pc.fill_null(pc.cast(adds[f"min.{_TXN}"], pa.int64()), int(lower))
        adds = adds.filter(pc.less(known, int(upper)))
    bounds = [f"{end}.{name}" for end in ("min", "max") for name in (_TXN, *columns)]
    names = ["path", "size_bytes", "num_records", *(name for name in bounds if name in adds.column_names)]
    rows: list[dict[str, Any]] = adds.select(names).to_pylist()
    return rows


def _file_of(add: Mapping[str, Any], *, lower: Txn, upper: Txn) -> LogFile:
    """A file's range of transactions, from its name or else from its statistics; without both, it may have
    rows of any transaction."""
    span = span_of(add["path"])
    if span is not None:
        first, last = span
    else:
        low, high = add.get(f"min.{_TXN}"), add.get(f"max.{_TXN}")
        first = lower if low is None else Txn(int(low))
        last = Txn(max(upper - 1, lower)) if high is None else Txn(int(high))
    return LogFile(
        Part(add["path"], add["num_records"], add["size_bytes"]),
        first,
        last,
        _bounds(add, "min."),
        _bounds(add, "max."),
    )


def _bounds(add: Mapping[str, Any], end: str) -> dict[str, Any]:
    return {name.removeprefix(end): value for name, value in add.items() if name.startswith(end)}


def files_of_shard(shard_uri: str, tables: Sequence[str] = ("log", "state")) -> list[Path]:
    """The files of the shard's log and state, on a local disk. They have every key that a reader sees, and
    deleted ones too. A log that was begun anew since the last publish has them alone."""
    # The log's are listed first: rows are published before they leave the log, so the state, listed later,
    # has them.
    return [Path(path) for table in tables for path in _files_of(f"{shard_uri}/{table}")]


def _files_of(table: str) -> list[str]:
    try:
        uris = DeltaTable(table).file_uris()
    except TableNotFoundError:
        return []
    return [unquote(urlparse(uri).path if uri.startswith("file:") else uri) for uri in uris]
