"""Compaction of a state's data files, without Spark: copy the visible rows of several files into one.

Rows are copied batch by batch, in their order. A copy has the columns of the table's schema, and the extra
columns (`delta.state_files`) that all of its files have. A schema column that a file lacks is NULL, as it is
for readers. Page checksums are verified, so that damaged data never gets a valid checksum.

A compaction need not start again when a publish hides rows while it copies. The order is kept, so a row's
place in the copy follows from its old place: the number of rows copied from earlier files, the row's number,
and the number of hidden rows before it (`new = base + row - rank`). `carried` translates the rows that were
hidden in the meantime, and the copy is committed with its own deletion vector.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import Schema

from tidemark.core.errors import Determinate, InvalidUsage, InvariantViolation
from tidemark.delta.commit import file_name
from tidemark.delta.deletion_vectors import Rows
from tidemark.delta.head import LiveFile, TableHead
from tidemark.delta.state import NewFile
from tidemark.delta.state_files import GROUP_ROWS, footer_statistics, parquet_options
from tidemark.delta.store import Store

BATCH_ROWS: Final = 65_536
GROUP_BYTES: Final = 128 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Source:
    """A file to copy, and the columns that it has."""

    file: LiveFile
    columns: pa.Schema


def table_schema(head: TableHead) -> pa.Schema:
    return pa.schema(Schema.from_json(str(head.metadata["schemaString"])).to_arrow())


def read_source(store: Store, file: LiveFile) -> Source:
    """Read a file's footer; `InvariantViolation` if its row count differs from the log's."""
    with _opened(store, file) as opened:
        if opened.metadata.num_rows != file.rows:
            raise InvariantViolation(
                f"{file.location} of {store.uri} has {opened.metadata.num_rows} rows, and the log says "
                f"{file.rows}",
                hint="restore it from a backup, or run `tidemark rebuild PIPELINE SHARD`",
            )
        return Source(file, opened.schema_arrow)


def columns_beside(source: Source, schema: pa.Schema) -> frozenset[str]:
    """The columns of a file that are not in the table's schema."""
    names = frozenset(source.columns.names)
    lacking = [name for name in schema.names if name not in names]
    alike = {name.lower(): name for name in names - set(schema.names)}
    for name in lacking:
        if name.lower() in alike:
            # Some readers treat both names as one column; copied as another column, its values would become
            # NULL.
            raise InvalidUsage(
                f"{source.file.location} has the column {alike[name.lower()]}, and the table has {name}",
                hint="run `tidemark rebuild PIPELINE SHARD`",
            )
    return names - set(schema.names)


def copy_rows(
    store: Store,
    sources: Sequence[Source],
    hidden: Mapping[str, Rows],
    schema: pa.Schema,
    *,
    version: int,
    nonce: UUID,
) -> NewFile | None:
    """Copy the visible rows to one file, named for `version`, and sync it to disk; None if no row is left."""
    wanted = _copied_schema(sources, schema)
    path, rows = file_name(version, nonce), 0
    beside = set(wanted.names) - set(schema.names)
    try:
        groups = _groups(_live(store, sources, hidden, wanted))
        first = next(groups, None)
        if first is None:
            return None
        options = parquet_options(first, beside=beside)
        with store.writing(path) as file, pq.ParquetWriter(file, wanted, **options) as writer:
            for group in chain((first,), groups):
                writer.write_table(group, row_group_size=max(group.num_rows, 1))
                rows += group.num_rows
        footer = pq.read_metadata(store.opened(path))
        stats = footer_statistics(footer, columns=frozenset(schema.names))
        return NewFile(path, int(store.size(path)), rows, stats)
    except (OSError, pa.ArrowException) as error:
        store.remove_quietly(path)
        raise Determinate(
            f"files of {store.uri} can't be copied: {error}",
            hint="check the disk's free space and the files, then retry",
        ) from error


def _copied_schema(sources: Sequence[Source], schema: pa.Schema) -> pa.Schema:
    """The table's columns, and the extra columns that all files have with the same type."""
    beside = []
    for field in sources[0].columns:
        found = [source.columns.field(field.name) for source in sources if field.name in source.columns.names]
        is_in_all = len(found) == len(sources) and all(one.type == field.type for one in found)
        if is_in_all and field.name not in schema.names:
            beside.append(pa.field(field.name, field.type, nullable=any(one.nullable for one in found)))
    return pa.schema([*schema, *beside])


def _groups(batches: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Group batches into row groups of up to about `GROUP_ROWS` rows or `GROUP_BYTES` bytes."""
    kept: list[pa.Table] = []
    for batch in batches:
        kept.append(batch)
        if sum(one.num_rows for one in kept) >= GROUP_ROWS or sum(one.nbytes for one in kept) >= GROUP_BYTES:
            yield pa.concat_tables(kept)
            kept = []
    if kept:
        yield pa.concat_tables(kept)


def _live(
    store: Store, sources: Sequence[Source], hidden: Mapping[str, Rows], wanted: pa.Schema
) -> Iterator[pa.Table]:
    for source in sources:
        gone = np.frombuffer(hidden.get(source.file.path, Rows()).to_array(), np.uint32)
        first = 0
        with _opened(store, source.file) as opened:
            # One thread: the reader for an object store is implemented in Python.
            for batch in opened.iter_batches(BATCH_ROWS, use_threads=False):
                end = first + batch.num_rows
                least, most = np.searchsorted(gone, [first, end])
                rows = pa.Table.from_batches([batch])
                if least != most:
                    mask = np.ones(batch.num_rows, np.bool_)
                    mask[gone[least:most] - np.uint32(first)] = False
                    rows = rows.filter(pa.array(mask))
                first = end
                if rows.num_rows:
                    yield _aligned(rows, wanted, source.file)
        if first != source.file.rows:
            raise InvariantViolation(
                f"{source.file.location} of {store.uri} has {first} rows according to its pages"
            )


def _aligned(rows: pa.Table, wanted: pa.Schema, file: LiveFile) -> pa.Table:
    columns = []
    for field in wanted:
        if field.name not in rows.column_names:
            columns.append(pa.nulls(rows.num_rows, field.type))
            continue
        column = rows[field.name]
        try:
            columns.append(column if column.type == field.type else column.cast(field.type))
        except pa.ArrowException as error:
            raise InvalidUsage(
                f"the column {field.name} of {file.location} is {column.type}, and that of the table "
                f"{field.type}: {error}",
                hint="run `tidemark rebuild PIPELINE SHARD`",
            ) from error
    return pa.table(columns, schema=wanted)


def _opened(store: Store, file: LiveFile) -> pq.ParquetFile:
    try:
        # INT96 timestamps have no unit; as nanoseconds they would end in 2262.
        return pq.ParquetFile(
            store.opened(file.location), coerce_int96_timestamp_unit="us", page_checksum_verification=True
        )
    except (OSError, pa.ArrowException) as error:
        raise Determinate(
            f"{file.location} of {store.uri} can't be read: {error}", hint="check the store, then retry"
        ) from error


@dataclass(frozen=True, slots=True)
class Copied:
    """A file that was copied: its row count, and the rows that were hidden then and were not copied."""

    path: str
    rows: int
    hidden: Rows


def carried(copied: Sequence[Copied], now: Mapping[str, Rows]) -> Rows:
    """The rows of the copy to hide, given the hidden rows of the same files at a later head.

    A file that `now` lacks has no visible row left. `Determinate` if hidden rows became visible again: then
    the compaction starts over."""
    base, found = 0, []
    for file in copied:
        later = now.get(file.path)
        if later is None:
            gone = np.arange(file.rows - len(file.hidden), dtype=np.uint32)
        else:
            if not file.hidden.issubset(later):
                raise Determinate(
                    f"hidden rows of {file.path} became visible while it was copied",
                    hint="run `tidemark maintain` again",
                )
            before = np.frombuffer(file.hidden.to_array(), np.uint32)
            since = np.frombuffer((later - file.hidden).to_array(), np.uint32)
            gone = since - np.searchsorted(before, since).astype(np.uint32)
        found.append(gone + np.uint32(base))
        base += file.rows - len(file.hidden)
    return Rows(np.concatenate(found)) if found else Rows()
