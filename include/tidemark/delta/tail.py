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
from tidemark.delta.state_files import BESIDE, DIGEST, KEY, RowKeys, Unsuited, keys_of
from tidemark.delta.store import Store

TXN: Final = "_txn"
OP: Final = "_op"
OFFSET: Final = "_offset"
_UPSERT: Final = "U"


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
        rows, keys = self.rows.filter(pa.array(chosen)), self.keys.at(chosen)
        return FoldedTail(rows, keys, self.upserts[chosen], self.txns[chosen], self.since[chosen])


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
    upserts = pc.equal(rows[OP], _UPSERT).to_numpy()
    since = np.zeros(rows.num_rows, np.int64)
    if not keys:
        none = np.zeros(rows.num_rows, np.uint64)
        return FoldedTail(rows, RowKeys(none, none, rows[DIGEST].to_numpy()), upserts, txns, since)
    found = keys_of(rows, sequence=sequence)
    if placed and rows[OFFSET].null_count:
        since = _since(found, np.where(rows[OFFSET].is_null().to_numpy(), txns, 0))
    tail = FoldedTail(rows, found, upserts, txns, since).taken(txns >= since)
    return tail.taken(_is_last(tail.keys, tail.txns))


def _since(keys: RowKeys, corrections: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """For each record the highest of these numbers among the records of its key."""
    order = np.lexsort([keys.lo, keys.hi])
    ends = _ends(keys.at(order))
    starts = np.append([0], np.flatnonzero(ends)[:-1] + 1)
    found = np.empty_like(corrections)
    found[order] = np.repeat(
        np.maximum.reduceat(corrections[order], starts), np.diff(starts, append=len(order))
    )
    return found


def _is_last(keys: RowKeys, txns: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Which records are the last of their key by (sequence, txn). A transaction has one record per key, so
    this order is total."""
    order = np.argsort(keys.hi)
    same = np.flatnonzero(np.diff(keys.hi[order]) == 0)
    found = np.ones(len(keys), np.bool_)
    if len(same):
        # Most keys come once; only the others are compared.
        places = order[np.unique([same, same + 1])]
        few = keys.at(places)
        by = [txns[places], *([few.sequence] if few.sequence is not None else []), few.lo, few.hi]
        ranked = np.lexsort(by)
        found[places[ranked]] = _ends(few.at(ranked))
    return found


def _ends(keys: RowKeys) -> npt.NDArray[np.bool_]:
    """Which records are the last one of their key, where the records of a key are together."""
    ends = np.ones(len(keys), np.bool_)
    ends[:-1] = (keys.hi[1:] != keys.hi[:-1]) | (keys.lo[1:] != keys.lo[:-1])
    return ends


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
