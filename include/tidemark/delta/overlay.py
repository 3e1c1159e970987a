"""Publishing a log's tail onto a state without Spark: read and fold it, find the rows that go and that come.

After the publish the state is the fold of its log (Invariant 18). A record that is older than its key's live
row (`is_older`) changes nothing. Any other record replaces the row or removes it. Without a sequence the tail
always wins.

An unchanged row is not rewritten. The caller must compare the values of the candidate rows (`alike`), because
two rows with the same 64-bit digest need not be equal.

`TableIndex` keeps the key index up to date with a head and finds live rows. It is stored in the cache folder,
on a local disk: memory-mapped files on a network disk could crash the process.

The tail is folded on arrays (`read_tail`). A record without an offset is a correction. The log's parts have
the key hash and the row digest beside their rows. A tail that can't be read here (`Unsuited`) is left to
Spark, which gives the same result: one whose sequence is not an integer, a date or a time, or whose files
were written by another program.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidemark.config.storage import cache_folder
from tidemark.core.checksum import ENCODING, Digest
from tidemark.core.errors import Determinate, InvariantViolation
from tidemark.core.ids import TXN_NONE
from tidemark.core.publish import carried_forward
from tidemark.delta.deletion_vectors import Rows
from tidemark.delta.head import LiveFile, TableHead
from tidemark.delta.index import Hits, KeyIndex
from tidemark.delta.index_runs import DataFile, RunScope
from tidemark.delta.state_files import BESIDE, DIGEST, KEY, RowKeys, Unsuited, digest_of, keys_of
from tidemark.delta.store import Store

ROWS_MAX: Final = 200_000_000
"""For a larger table Spark finds the rows: the index would take more than 10 GB of disk."""

Engine = Callable[[LiveFile], RowKeys]
Hidden = Callable[[list[str]], Mapping[str, Rows]]


class TableIndex:
    """The key index of one table. `digest` is the column of row digests."""

    def __init__(self, store: Store, *, sequence: str | None, digest: str = DIGEST) -> None:
        self._store, self._sequence, self._digest = store, sequence, digest
        self._open: tuple[RunScope, KeyIndex] | None = None

    def find(
        self,
        keys: RowKeys,
        head: TableHead,
        hidden: Hidden,
        *,
        engine: Engine | None = None,
        once: bool = True,
    ) -> Hits:
        """The live rows of these keys; `engine` reads files that lack the key and digest columns."""
        index = self._covering(head, engine)
        return index.find(keys, head, hidden, once=once)

    def add(self, head: TableHead, file: DataFile, keys: RowKeys) -> None:
        """Add a file that was just committed, while its keys are in memory."""
        index = self._at(head)
        index.add({file: keys})
        index.merge(head)

    def cover(self, head: TableHead) -> None:
        """Add the files that compaction has written, so that the next publish need not read them. Nothing is
        done for a table that this index has not been used for."""
        if self._open is not None:
            with suppress(Unsuited):
                self._covering(head, None)

    def _covering(self, head: TableHead, engine: Engine | None) -> KeyIndex:
        if head.rows > ROWS_MAX:
            raise Unsuited(f"{head.rows} rows are too many for an index")
        try:
            index = self._at(head)
            for file in index.missing(head):
                keys = self._read(file)
                if keys is None and engine is not None:
                    keys = engine(file)
                if keys is None:
                    raise Unsuited(f"{file.path} doesn't say its rows' keys")
                index.add({DataFile(file.path, file.bytes, file.rows): keys})
            index.merge(head)
        except OSError as error:
            # A cache that can't be written must not fail the publish: Spark does it.
            raise Unsuited(f"the key index can't be written: {error}") from error
        return index

    def _at(self, head: TableHead) -> KeyIndex:
        scope = RunScope(f"{head.metadata['id']}/{self._sequence}", ENCODING)
        if self._open is None or self._open[0] != scope:
            self._open = scope, KeyIndex(cache_folder(self._store.folder, uri=self._store.uri), scope)
        return self._open[1]

    def _read(self, file: LiveFile) -> RowKeys | None:
        names = [KEY, self._digest, *([self._sequence] if self._sequence is not None else [])]
        try:
            with pq.ParquetFile(self._store.opened(file.location)) as opened:
                if not set(names) <= set(opened.schema_arrow.names):
                    return None
                rows = opened.read(columns=names)
        except (OSError, pa.ArrowException) as error:
            raise Determinate(
                f"{file.location} of {self._store.uri} can't be read: {error}",
                hint="check the store, then retry",
            ) from error
        return keys_of(rows, sequence=self._sequence, digest=self._digest)


def rows_at(store: Store, file: LiveFile, places: npt.NDArray[np.integer], columns: list[str]) -> pa.Table:
    """The rows of a file at these row numbers, in their order. Only the row groups that have them are
    read."""
    try:
        with pq.ParquetFile(store.opened(file.location)) as opened:
            starts = np.cumsum(
                [0, *(opened.metadata.row_group(at).num_rows for at in range(opened.num_row_groups))]
            )
            groups = np.unique(np.searchsorted(starts, places, "right") - 1)
            there = [name for name in columns if name in opened.schema_arrow.names]
            rows = opened.read_row_groups(groups.tolist(), columns=there)
    except (OSError, pa.ArrowException) as error:
        raise Determinate(
            f"{file.location} of {store.uri} can't be read: {error}", hint="check the store, then retry"
        ) from error
    sizes = np.diff(starts)[groups]
    shift = starts[groups] - np.concatenate([[0], np.cumsum(sizes)[:-1]])
    within = places - shift[np.searchsorted(starts[groups], places, "right") - 1]
    return rows.take(pa.array(within))


def are_equal(one: pa.Table, other: pa.Table, columns: list[str]) -> npt.NDArray[np.bool_]:
    """Compare two tables row by row; a missing column counts as NULL, and NaN equals NaN."""
    same = np.ones(one.num_rows, np.bool_)
    for name in columns:
        left, right = (rows[name] if name in rows.column_names else None for rows in (one, other))
        if left is None or right is None:
            there = left if left is not None else right
            same &= True if there is None else pc.is_null(there).to_numpy()
        elif pa.types.is_nested(left.type):
            try:
                values = zip(left.to_pylist(), right.to_pylist(), strict=True)
                same &= np.array([mine == theirs for mine, theirs in values], np.bool_)
            except (OverflowError, ValueError):
                # Python has no time after the year 9999. A row that is written again is no error.
                same &= False
        else:
            equal = pc.or_(
                pc.fill_null(pc.equal(left, right.cast(left.type)), False),
                pc.and_(pc.is_null(left), pc.is_null(right)),
            )
            if pa.types.is_floating(left.type):
                nan = pc.and_(pc.is_nan(left), pc.is_nan(right.cast(left.type)))
                equal = pc.or_(equal, pc.fill_null(nan, False))
            same &= equal.to_numpy()
    return same


@dataclass(frozen=True, slots=True)
class Overlay:
    """The effect of a tail on a state: the tail's rows to add, the state's rows to hide, and the new
    digest."""

    comes: npt.NDArray[np.bool_]
    hidden: Mapping[str, Rows]
    digest: Digest


def is_older(
    sequence: npt.NDArray[np.int64],
    txns: npt.NDArray[np.int64],
    *,
    than: npt.NDArray[np.int64],
    at: npt.NDArray[np.int64] | int = TXN_NONE,
) -> npt.NDArray[np.bool_]:
    """Which records lose to another record of their key or to its row, by (sequence, txn). This is
    The fold on arrays, like `spark.tail.is_older` on columns. A state's rows precede all transactions."""
    found: npt.NDArray[np.bool_] = (sequence < than) | ((sequence == than) & (txns < at))
    return found


def alike(tail: RowKeys, upserts: npt.NDArray[np.bool_], hits: Hits) -> npt.NDArray[np.bool_]:
    """The hits that an upsert replaces by a row with the same digest."""
    digests = np.ascontiguousarray(hits.records["digest"]).view(np.int64)
    found: npt.NDArray[np.bool_] = upserts[hits.query] & (digests == tail.digest[hits.query])
    return found


def overlay(
    tail: RowKeys,
    txns: npt.NDArray[np.int64],
    upserts: npt.NDArray[np.bool_],
    hits: Hits,
    *,
    base: Digest,
    same: npt.NDArray[np.bool_] | None = None,
    corrected: npt.NDArray[np.bool_] | None = None,
) -> Overlay:
    """Apply a tail, which has each key once, to the state in which its keys have these rows. `same` are the
    hits that an upsert would not change; `corrected` keys win whatever their sequence."""
    goes = np.ones(len(hits.records), np.bool_)
    if tail.sequence is not None:
        own, at = tail.sequence[hits.query], txns[hits.query]
        goes = ~is_older(own, at, than=hits.records["sequence"])
    if corrected is not None:
        goes |= corrected[hits.query]
    if same is not None:
        goes &= ~same
    comes = upserts.copy()
    comes[hits.query[~goes]] = False
    removed = digest_of(np.ascontiguousarray(hits.records["digest"][goes]))
    added = digest_of(np.ascontiguousarray(tail.digest[comes]))
    digest = carried_forward(base, removed=removed, added=added)
    hidden = hits.places(goes)
    if sum(map(len, hidden.values())) != removed.count:
        raise InvariantViolation(
            f"{removed.count} rows are to be removed, but they are in {sum(map(len, hidden.values()))}"
            " places",
            hint="run `tidemark verify PIPELINE`; if it fails, `tidemark rebuild PIPELINE SHARD`",
        )
    return Overlay(comes, hidden, digest)


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
