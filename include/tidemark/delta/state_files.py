"""The data files of a state: their statistics, and the extra columns for index and digest.

Each file has two columns that are not in the table's schema, so readers ignore them: the hash of a row's key
(16 bytes) and the digest of the row. So after a lost index, on another machine or in a compaction no row is
hashed again. Files that other programs write lack these columns.

Statistics are as good as Delta's own. Readers skip files by them, so a bound may be too wide but never too
narrow. Inexact bounds are widened (a long text's maximum is rounded up, a time's to whole milliseconds) or
left out: there are none for columns with a NaN, because readers disagree on its order, nor for booleans,
binary, lists and maps. Decimals keep all their digits.
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

GROUP_ROWS: Final = 262_144
"""The rows of a row group. Readers divide a file between their cores by row groups."""
SAMPLE_ROWS: Final = 65_536
"""So many rows tell whether a column's values repeat."""

# Statistics.
COLUMNS_MAX: Final = 32
"""Delta's default: further columns have no statistics."""
TEXT_CHARACTERS_MAX: Final = 32
_LAST: Final = "\U0010ffff"
_MILLISECOND: Final = timedelta(milliseconds=1)


def statistics(rows: pa.Table) -> str:
    """The statistics of a file with these rows, as JSON; the columns must be those of the table's schema."""
    found: dict[str, dict[str, Any]] = {"minValues": {}, "maxValues": {}, "nullCount": {}}
    for count, (path, column) in enumerate(_leaves(rows)):
        if count >= COLUMNS_MAX:
            break
        _put(found["nullCount"], path, str(column.null_count))
        low, high = _bounds(column)
        if low is not None and high is not None:
            _put(found["minValues"], path, low)
            _put(found["maxValues"], path, high)
    inner = ",".join(f'"{name}":{_object(values)}' for name, values in found.items())
    return f'{{"numRecords":{rows.num_rows},{inner},"tightBounds":true}}'


def footer_statistics(footer: pq.FileMetaData, *, columns: Container[str] | None = None) -> str:
    """The statistics of an existing file, from its footer; of `columns` only, if given. A footer does not
    show whether a column has NaN, so floating-point columns have no bounds."""
    found: dict[str, dict[str, Any]] = {"minValues": {}, "maxValues": {}, "nullCount": {}}
    groups = [footer.row_group(group) for group in range(footer.num_row_groups)]
    at = 0
    for path, kind, leaves in _footer_leaves((), footer.schema.to_arrow_schema()):
        chunks = [group.column(at).statistics for group in groups]
        at += leaves
        if columns is not None and path[0] not in columns:
            continue
        if at > COLUMNS_MAX or leaves != 1 or pa.types.is_nested(kind) or not all(chunks):
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
    """The columns of a file in order, each with its number of Parquet columns."""
    for field in fields:
        if pa.types.is_struct(field.type):
            yield from _footer_leaves((*path, field.name), _inner(field.type))
        else:
            yield (*path, field.name), field.type, _width(field.type)


def _inner(kind: pa.DataType) -> list[pa.Field]:
    return [kind.field(at) for at in range(kind.num_fields)]


def _width(kind: pa.DataType) -> int:
    """How many Parquet columns a type takes: a map takes two or more, a list as many as its element."""
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
        # Python has no such time, for example one after the year 9999.
        return None, None
    return low, high


def _leaves(rows: pa.Table) -> Iterator[tuple[tuple[str, ...], pa.ChunkedArray]]:
    """The columns and struct fields by path. A field of a NULL struct is NULL."""
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
    """The minimum and maximum as JSON; None if they can't be given."""
    kind = column.type
    if column.null_count == len(column) or not _has_order(kind):
        return None, None
    if pa.types.is_floating(kind) and pc.any(pc.is_nan(column)).as_py():
        return None, None
    ends = pc.min_max(column)
    try:
        low, high = (_widened(ends[end].as_py(), is_high=end == "max") for end in ("min", "max"))
    except (OverflowError, ValueError):
        # Python has no such time, for example one after the year 9999.
        return None, None
    return low, high


def _has_order(kind: pa.DataType) -> bool:
    is_one = (
        pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_date,
        pa.types.is_timestamp, pa.types.is_string, pa.types.is_large_string,
    )  # fmt: skip
    return any(is_kind(kind) for is_kind in is_one)


def time_bound(value: datetime, *, is_high: bool) -> str:
    """A time as a bound in the log, in whole milliseconds, that includes the time."""
    value = value.astimezone(UTC) if value.tzinfo is not None else value
    floor = value.replace(microsecond=value.microsecond // 1000 * 1000)
    end = floor + _MILLISECOND if is_high and floor != value else floor
    zone = "Z" if end.tzinfo is not None else ""
    return end.replace(tzinfo=None).isoformat(timespec="milliseconds") + zone


def _widened(value: Any, *, is_high: bool) -> str | None:
    """A bound as JSON that includes the value."""
    match value:
        case Decimal():
            return format(value, "f")
        case str():
            found = _text(value, is_high=is_high)
            return json.dumps(found, ensure_ascii=False) if found is not None else None
        case datetime():
            return json.dumps(time_bound(value, is_high=is_high))
        case date():
            return json.dumps(value.isoformat())
        case float():
            if value == 0:
                # Some readers order -0.0 below 0.0, although both are equal.
                return "0.0" if is_high else "-0.0"
            return json.dumps(value) if value - value == 0 else None
        case _:
            return json.dumps(value)


def _text(value: str, *, is_high: bool) -> str | None:
    """A prefix of a text; for a maximum, followed by a character that sorts above any continuation."""
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
    """Join values that are already JSON: a decimal's digits must not pass through a float."""
    inner = (
        f"{json.dumps(name, ensure_ascii=False)}:{_object(one) if isinstance(one, dict) else one}"
        for name, one in values.items()
    )
    return "{" + ",".join(inner) + "}"


# Rows and the extra columns.
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

    def at(self, places: npt.NDArray[np.intp] | npt.NDArray[np.bool_]) -> RowKeys:
        """The keys at these places."""
        sequence = self.sequence[places] if self.sequence is not None else None
        return RowKeys(self.hi[places], self.lo[places], self.digest[places], sequence)


class Unsuited(Exception):
    """This work is left to Spark; the message is the reason."""


def keys_of(rows: pa.Table, *, sequence: str | None = None, digest: str = DIGEST) -> RowKeys:
    """The key hashes of some rows, their digests in the column `digest`, and their sequences."""
    halves = np.frombuffer(b"".join(_bytes_of(chunk) for chunk in rows[KEY].chunks), ">u8").reshape(-1, 2)
    return RowKeys(
        halves[:, 0].astype(np.uint64),
        halves[:, 1].astype(np.uint64),
        rows[digest].to_numpy().astype(np.int64),
        None if sequence is None else sequence_numbers(rows[sequence]),
    )


def sequence_numbers(column: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """A sequence as integers in the same order: the numbers themselves, days, or microseconds."""
    kind = column.type
    if column.null_count:
        raise Unsuited("a sequence is NULL")
    if pa.types.is_date32(kind):
        column = column.cast(pa.int32())
    elif pa.types.is_timestamp(kind) and kind.unit == "us":
        column = column.cast(pa.int64())
    elif not pa.types.is_integer(kind):
        raise Unsuited(f"a sequence is of {kind}")
    found: npt.NDArray[np.int64] = column.to_numpy().astype(np.int64)
    return found


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
    """The non-empty files that Spark wrote into a folder, described by their footers and synced to disk.
    Other files in the folder are removed."""
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
            f"the files in {folder} of {store.uri} can't be read back: {error}",
            hint="check the store, then retry",
        ) from error
    return found


def parquet_options(rows: pa.Table, *, beside: Container[str]) -> dict[str, Any]:
    """Parquet options for a file of a state that begins with these rows.

    The extra columns (`beside`) are hashes, which don't repeat, so they get no dictionary. Neither does a
    column of mostly different values: it would make the file no smaller, and Spark's scan half as long again.
    Floating-point columns get neither bounds nor a dictionary: Parquet bounds ignore NaN, and Spark concludes
    that there is none; in a dictionary Spark does not find 0.0 for -0.0."""
    sink = io.BytesIO()
    pq.write_table(rows.slice(0, 0), sink)
    known = pq.read_metadata(io.BytesIO(sink.getvalue())).schema
    columns = [known.column(at) for at in range(len(known))]
    exact = [column.path for column in columns if column.physical_type not in ("FLOAT", "DOUBLE")]
    varied = {name for name in rows.column_names if name in beside or _is_varied(rows[name])}
    return {
        "compression": "zstd",
        "compression_level": 1,
        "write_page_checksum": True,
        "use_dictionary": [path for path in exact if path not in varied],
        "write_statistics": exact,
    }


def _is_varied(column: pa.ChunkedArray) -> bool:
    """Whether most values of a column are different. The fields of nested columns are not looked at."""
    if pa.types.is_nested(column.type):
        return False
    seen = column.slice(0, SAMPLE_ROWS)
    return 2 * len(seen.unique()) > len(seen)


def write_rows(store: Store, rows: pa.Table, *, version: int, nonce: UUID) -> NewFile:
    """Write rows to one file and sync it to disk. The statistics leave out the extra columns."""
    out = io.BytesIO()
    plain = [name for name in BESIDE if name in rows.column_names]
    pq.write_table(rows, out, row_group_size=GROUP_ROWS, **parquet_options(rows, beside=plain))
    path, data = file_name(version, nonce), out.getvalue()
    try:
        store.put_synced(path, data)
    except OSError as error:
        raise Determinate(
            f"the rows for version {version} of {store.uri} were not written: {error}",
            hint="check the free space and the permissions, then retry",
        ) from error
    return NewFile(path, len(data), rows.num_rows, statistics(rows.drop_columns(plain)))


def digest_of(digests: npt.NDArray[Any]) -> Digest:
    """The digest of rows with these hashes."""
    values = digests.view(np.uint64)
    low, high = values & np.uint64(0xFFFFFFFF), values >> np.uint64(32)
    xor = int(np.bitwise_xor.reduce(values)) if len(values) else 0
    return Digest(len(values), xor, int(low.sum(dtype=np.uint64)), int(high.sum(dtype=np.uint64)))
