"""The rows of some data files, copied to one in their order, batch by batch and without an engine.

Files are copied by their own columns: those of the table's schema, and those beside them that readers pass
over (`delta.state_files`), where all of the files have them. A column of the schema that a file does not have
is NULL, as it is for readers. Page checksums are verified: damage must not get a new checksum.

The order is kept, so that the place of each row in the copy follows from its old one (`delta.carry`).

A compaction that wins against publishers: rows that were hidden while it worked are hidden in its file
too.

A compaction copies the rows of some files that their vectors don't hide, in their order. So the place of each
row in the copy follows from its old one: how many rows lie before its file's, its number, and how many hidden
rows stood before it (`new = base + row - rank`). What a publish has hidden since is carried over by that, and
the copy goes in with a vector of its own, instead of being made again and again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import Schema

from tidemark.core.errors import Determinate, InvalidUsage, InvariantViolation
from tidemark.delta.commit import Action, file_name
from tidemark.delta.deletion_vectors import Rows
from tidemark.delta.head import LiveFile, TableHead
from tidemark.delta.state import NewFile
from tidemark.delta.state_files import footer_statistics, parquet_options
from tidemark.delta.store import Store

BATCH_ROWS: Final = 65_536
GROUP_ROWS: Final = 1_048_576
GROUP_BYTES: Final = 128 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Source:
    """A file to be copied, and the columns that it has."""

    file: LiveFile
    columns: pa.Schema


def table_schema(head: TableHead) -> pa.Schema:
    """The columns of a table's schema."""
    return pa.schema(Schema.from_json(str(head.metadata["schemaString"])).to_arrow())


def read_source(store: Store, file: LiveFile) -> Source:
    """Look at a file's footer."""
    with _opened(store, file) as opened:
        if opened.metadata.num_rows != file.rows:
            raise InvariantViolation(
                f"{file.location} of {store.uri} has {opened.metadata.num_rows} rows, and the log says "
                f"{file.rows}",
                hint="restore it from a backup, or rebuild the state from its log",
            )
        return Source(file, opened.schema_arrow)


def columns_beside(source: Source, schema: pa.Schema) -> frozenset[str]:
    """The columns of a file that are not in the table's schema."""
    names = frozenset(source.columns.names)
    lacking = [name for name in schema.names if name not in names]
    alike = {name.lower(): name for name in names - set(schema.names)}
    for name in lacking:
        if name.lower() in alike:
            # For some readers it is the same column; copied as another one, its values would be NULL.
            raise InvalidUsage(
                f"{source.file.location} has the column {alike[name.lower()]}, and the table has {name}",
                hint="rebuild the state",
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
    """Write the rows that are not hidden to one file, named for a version, and have it on disk; None where no
    row is left."""
    wanted = _copied_schema(sources, schema)
    path, rows = file_name(version, nonce), 0
    options = parquet_options(wanted, beside=set(wanted.names) - set(schema.names))
    try:
        with store.writing(path) as file, pq.ParquetWriter(file, wanted, **options) as writer:
            for group in _groups(_live(store, sources, hidden, wanted)):
                writer.write_table(group, row_group_size=max(group.num_rows, 1))
                rows += group.num_rows
        if not rows:
            store.remove_quietly(path)
            return None
        footer = pq.read_metadata(store.opened(path))
        stats = footer_statistics(footer, columns=frozenset(schema.names))
        return NewFile(path, int(store.size(path)), rows, stats)
    except (OSError, pa.ArrowException) as error:
        store.remove_quietly(path)
        raise Determinate(
            f"files of {store.uri} can't be copied: {error}", hint="check the room and the files, then retry"
        ) from error


def _copied_schema(sources: Sequence[Source], schema: pa.Schema) -> pa.Schema:
    """The table's columns, and those beside them that all files have in the same type."""
    beside = []
    for field in sources[0].columns:
        found = [source.columns.field(field.name) for source in sources if field.name in source.columns.names]
        is_in_all = len(found) == len(sources) and all(one.type == field.type for one in found)
        if is_in_all and field.name not in schema.names:
            beside.append(pa.field(field.name, field.type, nullable=any(one.nullable for one in found)))
    return pa.schema([*schema, *beside])


def _groups(batches: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Row groups of a good size."""
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
            # One thread: the reader of an object store is Python's.
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
            raise InvariantViolation(f"{source.file.location} of {store.uri} has {first} rows by its pages")


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
                hint="rebuild the state",
            ) from error
    return pa.table(columns, schema=wanted)


def _opened(store: Store, file: LiveFile) -> pq.ParquetFile:
    try:
        # Times in Spark's older format have no unit; in nanoseconds they would not reach beyond 2262.
        return pq.ParquetFile(
            store.opened(file.location), coerce_int96_timestamp_unit="us", page_checksum_verification=True
        )
    except (OSError, pa.ArrowException) as error:
        raise Determinate(
            f"{file.location} of {store.uri} can't be read: {error}", hint="check the store, then retry"
        ) from error


@dataclass(frozen=True, slots=True)
class Copied:
    """A file that was copied: how many rows it has, and which were hidden then, and so left out."""

    path: str
    rows: int
    hidden: Rows


def carried(copied: Sequence[Copied], now: Mapping[str, Rows]) -> Rows:
    """The rows of the copy that have to be hidden, when `now` are the hidden rows of the same files at a
    later head. A file that is gone there has no row left. `Determinate` when rows came back: then begin
    again."""
    base, found = 0, []
    for file in copied:
        later = now.get(file.path)
        if later is None:
            gone = np.arange(file.rows - len(file.hidden), dtype=np.uint32)
        else:
            if not file.hidden.issubset(later):
                raise Determinate(
                    f"rows of {file.path} came back while it was copied", hint="begin the compaction again"
                )
            before = np.frombuffer(file.hidden.to_array(), np.uint32)
            since = np.frombuffer((later - file.hidden).to_array(), np.uint32)
            gone = since - np.searchsorted(before, since).astype(np.uint32)
        found.append(gone + np.uint32(base))
        base += file.rows - len(file.hidden)
    return Rows(np.concatenate(found)) if found else Rows()


def foreign_write(before: TableHead, actions: Sequence[Action], after: TableHead) -> str:
    """The name of a commit that is not ours and changed rows; empty for one that only rearranged files or
    described the table. Its name alone says nothing: what it did to files, counts and columns does. One that
    can't be shown to be harmless, because its files don't say how many rows they have, is none."""
    files = [line[kind] for line in actions for kind in ("add", "remove") if kind in line]
    info: Action = next((line["commitInfo"] for line in actions if "commitInfo" in line), {})
    name = str(info.get("operation") or "a commit without a name")
    if any(file.get("dataChange", True) for file in files) or any("cdc" in line for line in actions):
        return name
    touched = {str(file["path"]) for file in files}
    try:
        counts = [
            sum(head.files[path].live for path in touched if path in head.files) for head in (before, after)
        ]
    except InvalidUsage:
        return f"{name} with rows that can't be counted"
    kept = _columns(before).items() <= _columns(after).items()
    return "" if counts[0] == counts[1] and kept else name


def _columns(head: TableHead) -> dict[str, str]:
    """The columns by their names; a nested type may get fields, so only that it is one is told."""
    fields = json.loads(head.metadata.get("schemaString") or "{}").get("fields", ())
    return {
        field["name"]: field["type"] if isinstance(field["type"], str) else field["type"]["type"]
        for field in fields
    }
