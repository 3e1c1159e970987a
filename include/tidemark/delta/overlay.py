"""Publishing a folded tail onto a state without Spark: which rows go, which come, and the new digest.

After the publish the state is the fold of its log (Invariant 18). A record that is older than its key's live
row (`is_older`) changes nothing. Any other record replaces the row or removes it. Without a sequence the tail
always wins.

An unchanged row is not rewritten. The caller must compare the values of the candidate rows (`alike`), because
two rows with the same 64-bit digest need not be equal.

`TableIndex` keeps the key index up to date with a head and finds live rows. It is stored in the cache folder,
on a local disk: memory-mapped files on a network disk could crash the process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
from tidemark.delta.state_files import DIGEST, KEY, RowKeys, Unsuited, digest_of, keys_of
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
            same &= np.array(
                [a == b for a, b in zip(left.to_pylist(), right.to_pylist(), strict=True)], np.bool_
            )
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
