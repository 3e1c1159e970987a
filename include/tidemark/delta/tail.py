"""A log's tail without Spark: read, and folded to the last record of each key.

This is the fold on arrays. A record without an offset is a correction. The log's parts have the key hash
and the row digest beside their rows. A tail that can't be read here (`Unsuited`) is left to Spark, which
gives the same result: one whose sequence is not an integer, a date or a time, or whose files were written by
another program.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidemark.core.errors import Determinate
from tidemark.delta.state_files import BESIDE, DIGEST, KEY, RowKeys, keys_of
from tidemark.delta.store import Store

TXN: Final = "_txn"
OP: Final = "_op"
OFFSET: Final = "_offset"
_UPSERT: Final = "U"


class Unsuited(Exception):
    """This work is left to Spark; the message is the reason."""


@dataclass(frozen=True, slots=True)
class FoldedTail:
    """One record per key: the rows as the log has them, and numpy arrays of the values that decide. `since`
    is the last correction of each key in the tail, 0 for none."""

    rows: pa.Table
    keys: RowKeys
    upserts: npt.NDArray[np.bool_]
    txns: npt.NDArray[np.int64]
    since: npt.NDArray[np.int64]

    def taken(self, chosen: npt.NDArray[np.bool_]) -> FoldedTail:
        """The chosen records."""
        if chosen.all():
            return self
        return self.at(np.flatnonzero(chosen))

    def at(self, places: npt.NDArray[np.intp]) -> FoldedTail:
        """The records at these places."""
        keys = RowKeys(
            self.keys.hi[places],
            self.keys.lo[places],
            self.keys.digest[places],
            self.keys.sequence[places] if self.keys.sequence is not None else None,
        )
        rows = self.rows.take(pa.array(places))
        return FoldedTail(rows, keys, self.upserts[places], self.txns[places], self.since[places])


def read_tail(
    log: Store,
    paths: Sequence[str],
    columns: Sequence[str],
    *,
    lower: int,
    upper: int,
    keys: Sequence[str],
    sequence: str | None,
) -> FoldedTail:
    """The rows of a log's files with lower <= txn < upper, folded if there are keys."""
    placed = [OFFSET] if sequence is not None else []
    tables = [_read(log, path, [*columns, *placed], is_keyed=bool(keys)) for path in paths]
    if not tables:
        raise Unsuited("the tail has no files")
    rows = pa.concat_tables(tables, promote_options="default")
    txns = rows[TXN].to_numpy()
    inside = (txns >= lower) & (txns < upper)
    if not inside.all():
        rows, txns = rows.filter(pa.array(inside)), txns[inside]
    numbers = sequence_numbers(rows[sequence]) if sequence is not None else None
    upserts = pc.equal(rows[OP], _UPSERT).to_numpy()
    digests = rows[DIGEST].to_numpy()
    since = np.zeros(rows.num_rows, np.int64)
    if not keys:
        none = np.zeros(rows.num_rows, np.uint64)
        return FoldedTail(rows, RowKeys(none, none, digests, numbers), upserts, txns, since)
    hashed = keys_of(rows[KEY], rows[DIGEST], None)
    found = RowKeys(hashed.hi, hashed.lo, hashed.digest, numbers)
    if placed and rows[OFFSET].null_count:
        since = _since(found, np.where(rows[OFFSET].is_null().to_numpy(), txns, 0))
    tail = FoldedTail(rows, found, upserts, txns, since).taken(txns >= since)
    last = _last(tail.keys, tail.txns)
    return tail if len(last) == tail.rows.num_rows else tail.at(last)


def _since(keys: RowKeys, corrections: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """For each record the highest of these numbers among the records of its key."""
    order = np.lexsort([keys.lo, keys.hi])
    ends = _ends(keys, order)
    starts = np.append([0], np.flatnonzero(ends)[:-1] + 1)
    found = np.empty_like(corrections)
    found[order] = np.repeat(
        np.maximum.reduceat(corrections[order], starts), np.diff(starts, append=len(order))
    )
    return found


def _ends(keys: RowKeys, order: npt.NDArray[np.intp]) -> npt.NDArray[np.bool_]:
    """Which records are the last one of their key in an order that has the records of a key together."""
    hi, lo = keys.hi[order], keys.lo[order]
    ends = np.ones(len(order), np.bool_)
    ends[:-1] = (hi[1:] != hi[:-1]) | (lo[1:] != lo[:-1])
    return ends


def _last(keys: RowKeys, txns: npt.NDArray[np.int64]) -> npt.NDArray[np.intp]:
    """The positions of the last record of each key by (sequence, txn), ascending. A transaction has one
    record per key, so this order is total."""
    by = [txns, *([keys.sequence] if keys.sequence is not None else []), keys.lo, keys.hi]
    order = np.lexsort(by)
    return np.sort(order[_ends(keys, order)])


def _read(log: Store, path: str, columns: Sequence[str], *, is_keyed: bool) -> pa.Table:
    try:
        with pq.ParquetFile(log.opened(path), page_checksum_verification=True) as file:
            there = set(file.schema_arrow.names)
            needed = {TXN, OP, DIGEST, *([KEY] if is_keyed else [])}
            if not needed | ({OFFSET} & set(columns)) <= there:
                raise Unsuited(f"{path} doesn't say its rows' keys and digests")
            if any(file.schema.column(at).physical_type == "INT96" for at in range(len(file.schema))):
                raise Unsuited(f"{path} has times without a zone")
            names = [name for name in (*columns, TXN, OP, *BESIDE) if name in there]
            rows = file.read(columns=names)
    except (OSError, pa.ArrowException) as error:
        raise Determinate(
            f"{path} of {log.uri} can't be read: {error}",
            hint="check the store and retry; `tidemark replay PIPELINE --mode repair` restores a lost part",
        ) from error
    if any(rows[name].null_count for name in needed):
        raise Unsuited(f"{path} has rows without a key or a digest")
    return rows


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
