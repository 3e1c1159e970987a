"""A data file's statistics for the Delta log, as good as those that Delta writes itself.

Readers leave files out by them, so a bound may be too wide and never too narrow. What can't be said exactly
is widened (a long text's maximum is rounded up, a time's to whole milliseconds) or left out: no bounds where
a NaN is among the values, because readers disagree where NaN stands; none for booleans, binary and nested
lists and maps. Decimals are written with all their digits.

The data files of a state: rows, and beside them what finds and proves them.

Each file has two columns that are not in the table's schema, so that readers pass over them: the hash of a
row's key (16 bytes) and the digest of the row. A lost index, a second machine or a compaction then needs no
row to be hashed again. A file that somebody else has written does not have them.
"""

from __future__ import annotations

import io
import json
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidemark.core.checksum import Digest
from tidemark.core.errors import Determinate, InvalidUsage
from tidemark.delta.commit import file_name
from tidemark.delta.index_runs import Numbers
from tidemark.delta.state import NewFile
from tidemark.delta.store import Store

COLUMNS_MAX: Final = 32
"""Delta's own default: further columns have no statistics."""
TEXT_CHARACTERS_MAX: Final = 32
_LAST: Final = "\U0010ffff"
_MILLISECOND: Final = timedelta(milliseconds=1)


def statistics(rows: pa.Table, *, columns_max: int = COLUMNS_MAX) -> str:
    """The statistics of a file with these rows, as JSON; the columns are those of the table's schema."""
    found: dict[str, dict[str, Any]] = {"minValues": {}, "maxValues": {}, "nullCount": {}}
    for count, (path, column) in enumerate(_leaves(rows)):
        if count >= columns_max:
            break
        _put(found["nullCount"], path, str(column.null_count))
        low, high = _bounds(column)
        if low is not None and high is not None:
            _put(found["minValues"], path, low)
            _put(found["maxValues"], path, high)
    inner = ",".join(f'"{name}":{_object(values)}' for name, values in found.items())
    return f'{{"numRecords":{rows.num_rows},{inner},"tightBounds":true}}'


def footer_statistics(
    footer: pq.FileMetaData, *, columns_max: int = COLUMNS_MAX, columns: Container[str] | None = None
) -> str:
    """The same of a file that is written already, from its footer alone, and of these columns only if some
    are given. A footer does not tell whether a NaN is among the numbers, so fractions have no bounds."""
    found: dict[str, dict[str, Any]] = {"minValues": {}, "maxValues": {}, "nullCount": {}}
    groups = [footer.row_group(group) for group in range(footer.num_row_groups)]
    at = 0
    for path, kind, leaves in _footer_leaves((), footer.schema.to_arrow_schema()):
        chunks = [group.column(at).statistics for group in groups]
        at += leaves
        if columns is not None and path[0] not in columns:
            continue
        if at > columns_max or leaves != 1 or pa.types.is_nested(kind) or not all(chunks):
            continue
        if all(chunk.has_null_count for chunk in chunks):
            _put(found["nullCount"], path, str(sum(chunk.null_count for chunk in chunks)))
        low, high = _footer_bounds(kind, chunks)
        if low is not None and high is not None:
            _put(found["minValues"], path, low)
            _put(found["maxValues"], path, high)
    inner = ",".join(f'"{name}":{_object(values)}' for name, values in found.items())
    return f'{{"numRecords":{footer.num_rows},{inner},"tightBounds":true}}'


def _footer_leaves(
    path: tuple[str, ...], fields: Iterable[pa.Field]
) -> Iterator[tuple[tuple[str, ...], pa.DataType, int]]:
    """The columns of a file in their order, each with how many it is: a map is two, a list what is in it."""
    for field in fields:
        if pa.types.is_struct(field.type):
            yield from _footer_leaves((*path, field.name), _inner(field.type))
        else:
            yield (*path, field.name), field.type, _width(field.type)


def _inner(kind: pa.DataType) -> list[pa.Field]:
    return [kind.field(at) for at in range(kind.num_fields)]


def _width(kind: pa.DataType) -> int:
    """How many columns of a file a type takes."""
    if pa.types.is_map(kind):
        return _width(kind.key_type) + _width(kind.item_type)
    return sum(_width(field.type) for field in _inner(kind)) if pa.types.is_nested(kind) else 1


def _footer_bounds(kind: pa.DataType, chunks: Sequence[Any]) -> tuple[str | None, str | None]:
    filled = [chunk for chunk in chunks if not (chunk.has_null_count and chunk.num_values == 0)]
    known = filled and all(chunk.has_min_max for chunk in filled)
    if not known or not _has_order(kind) or pa.types.is_floating(kind):
        return None, None
    try:
        low = _widened(min(chunk.min for chunk in filled), is_high=False)
        high = _widened(max(chunk.max for chunk in filled), is_high=True)
    except (OverflowError, ValueError):
        # A time that is no value here, like one after the year 9999.
        return None, None
    return low, high


def _leaves(rows: pa.Table) -> Iterator[tuple[tuple[str, ...], pa.ChunkedArray]]:
    """The columns, and the fields of structs by their names. A field of a NULL struct is NULL."""
    for name in rows.column_names:
        yield from _leaves_of((name,), rows[name])


def _leaves_of(
    path: tuple[str, ...], column: pa.ChunkedArray
) -> Iterator[tuple[tuple[str, ...], pa.ChunkedArray]]:
    if pa.types.is_struct(column.type):
        for at in range(column.type.num_fields):
            inner = pa.chunked_array(
                [pc.struct_field(chunk, at) for chunk in column.chunks], column.type.field(at).type
            )
            yield from _leaves_of((*path, column.type.field(at).name), inner)
    else:
        yield path, column


def _bounds(column: pa.ChunkedArray) -> tuple[str | None, str | None]:
    """The lowest and the highest value as JSON; None where they can't be given."""
    kind = column.type
    if column.null_count == len(column) or not _has_order(kind):
        return None, None
    if pa.types.is_floating(kind) and pc.any(pc.is_nan(column)).as_py():
        return None, None
    ends = pc.min_max(column)
    try:
        low, high = (_widened(ends[end].as_py(), is_high=end == "max") for end in ("min", "max"))
    except (OverflowError, ValueError):
        # A time that is no value here, like one after the year 9999.
        return None, None
    return low, high


def _has_order(kind: pa.DataType) -> bool:
    is_one = (
        pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_date,
        pa.types.is_timestamp, pa.types.is_string, pa.types.is_large_string,
    )  # fmt: skip
    return any(is_kind(kind) for is_kind in is_one)


def _widened(value: Any, *, is_high: bool) -> str | None:
    """A bound as JSON, at or beyond the value."""
    match value:
        case Decimal():
            return format(value, "f")
        case str():
            found = _text(value, is_high=is_high)
            return json.dumps(found, ensure_ascii=False) if found is not None else None
        case datetime():
            value = value.astimezone(UTC) if value.tzinfo is not None else value
            floor = value.replace(microsecond=value.microsecond // 1000 * 1000)
            end = floor + _MILLISECOND if is_high and floor != value else floor
            zone = "Z" if end.tzinfo is not None else ""
            return json.dumps(end.replace(tzinfo=None).isoformat(timespec="milliseconds") + zone)
        case date():
            return json.dumps(value.isoformat())
        case float():
            if value == 0:
                # For some readers -0.0 lies below 0.0, and equals it all the same.
                return "0.0" if is_high else "-0.0"
            return json.dumps(value) if value - value == 0 else None
        case _:
            return json.dumps(value)


def _text(value: str, *, is_high: bool) -> str | None:
    """The beginning of a text; as a maximum, with a last character that is above all that can follow."""
    if len(value) <= TEXT_CHARACTERS_MAX:
        return value
    if not is_high:
        return value[:TEXT_CHARACTERS_MAX]
    end = TEXT_CHARACTERS_MAX
    while end < len(value) and value[end] == _LAST:
        end += 1
    return value[:end] + _LAST if end < len(value) else value


def _put(values: dict[str, Any], path: tuple[str, ...], text: str) -> None:
    for name in path[:-1]:
        values = values.setdefault(name, {})
    values[path[-1]] = text


def _object(values: dict[str, Any]) -> str:
    """JSON of texts that are JSON already: a decimal's digits must not go through a float."""
    inner = (
        f"{json.dumps(name, ensure_ascii=False)}:{_object(one) if isinstance(one, dict) else one}"
        for name, one in values.items()
    )
    return "{" + ",".join(inner) + "}"


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
    path, data = file_name(version, nonce), out.getvalue()
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
