"""What a tail changes in a state, found by the key index: no Spark, and no scan of the state.

The tail is read and folded on arrays, its keys are looked up in the index, and its rows are written as they
are. So the cost follows the tail. What the index is not for (`Unsuited`) is left to Spark, which finds the
places by a scan (`spark.changes`): a tail or a state above its bounds, a sequence that is no whole number, a
table without deletion vectors. The commit is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark.core.checksum import Digest
from tidemark.core.ledger import Conflict
from tidemark.core.publish import VERSION_NONE, Published
from tidemark.delta.entry import NewFile
from tidemark.delta.head import LiveFile, TableHead
from tidemark.delta.index import Hits
from tidemark.delta.overlay import alike, is_older, overlay
from tidemark.delta.protocol import VECTORS, is_on
from tidemark.delta.runs import DataFile
from tidemark.delta.state import StateTable
from tidemark.delta.state_files import DIGEST, KEY, RowKeys, keys_of
from tidemark.delta.store import Store
from tidemark.delta.table_index import TableIndex, are_equal, rows_at
from tidemark.delta.tail import TXN, FoldedTail, Unsuited, read_tail, sequence_numbers
from tidemark.ports.state import Tail
from tidemark.spark.spec import StateSpec
from tidemark.spark.state_write import NextVersion
from tidemark.spark.tables import log_files
from tidemark.spark.tombstones import buried

TAIL_ROWS_MAX: Final = 1_000_000
TAIL_BYTES_MAX: Final = 64 << 20
"""A longer tail would take too much of this process's memory."""
ALIKE_BYTES_MAX: Final = 256 << 20
"""Spark compares faster what lies in more than so much of the state."""

Engine = Callable[[LiveFile], RowKeys]


@dataclass(frozen=True, slots=True)
class Laid:
    """A tail laid over a state: what its commit has to do, the digest after it, and the tombstones'
    version."""

    change: Mapping[str, Any]
    digest: Digest
    tombstones: int
    new: tuple[NewFile, RowKeys] | None


class ShardIndex:
    """The key indexes of one shard: its state's, and its tombstones'."""

    def __init__(self, spec: StateSpec, *, engine: Engine) -> None:
        self._spec, self._engine = spec, engine
        sequence = spec.rule.sequence_by
        self._log = Store(spec.log, spec.storage_options)
        self._dead = StateTable(spec.tombstones, storage_options=spec.storage_options)
        self._state_index = TableIndex(Store(spec.state, spec.storage_options), sequence=sequence)
        self._dead_index = TableIndex(self._dead.store, sequence=sequence, digest=TXN)

    @property
    def tombstones(self) -> StateTable:
        return self._dead

    def lay(self, tail: Tail, base: Published | None, version: NextVersion) -> Laid | Conflict:
        """Work out and write what a tail changes in a state that stands at this version's head; `Unsuited`
        where that is for Spark, before anything is written."""
        folded = self._folded(tail, version.head)
        before = base.commit.digest if base is not None else Digest()
        tombstones = VERSION_NONE
        if self._spec.rule.keys and self._spec.rule.sequence_by is not None:
            dead = NextVersion(self._spec.tombstones, self._spec.storage_options, table=self._dead)
            folded = folded.taken(~self._is_buried(folded, dead.head))
            hits, same = self._met(folded, version)
            found = self._bury(folded, dead, tail.watermark)
            if isinstance(found, Conflict):
                return found
            tombstones = found
        else:
            hits, same = self._met(folded, version)
        over = overlay(folded.keys, folded.txns, folded.upserts, hits, base=before, same=same)
        comes = folded.taken(over.comes)
        columns = [*self._columns(comes.rows), *([KEY] if self._spec.rule.keys else []), DIGEST]
        added = version.put(comes.rows.select(columns))
        change = {"added": added, "hidden": over.hidden}
        return Laid(change, over.digest, tombstones, (added[0], comes.keys) if added else None)

    def keep(self, head: TableHead, laid: Laid) -> None:
        """After the commit: have the new file in the index, while its keys are at hand."""
        if laid.new is not None and self._spec.rule.keys:
            file, keys = laid.new
            self._state_index.add(head, DataFile(file.path, file.bytes, file.rows), keys)

    def _columns(self, rows: pa.Table) -> list[str]:
        return [name for name in self._spec.declared.names if name in rows.column_names]

    def _folded(self, tail: Tail, head: TableHead) -> FoldedTail:
        spec = self._spec
        is_new = head.version == VERSION_NONE
        if not (spec.deletion_vectors if is_new else is_on(head.configuration, VECTORS)):
            raise Unsuited("the table has no deletion vectors")
        files = log_files(spec, lower=tail.lower, upper=tail.upper, version=tail.log_version)
        rows, size = (
            sum(numbers) for numbers in ([f.part.rows for f in files], [f.part.bytes for f in files])
        )
        if rows > TAIL_ROWS_MAX or size > TAIL_BYTES_MAX:
            raise Unsuited(f"the tail has {rows} rows of {size} bytes")
        return read_tail(
            self._log,
            [file.part.path for file in files],
            spec.declared.names,
            lower=tail.lower,
            upper=tail.upper,
            keys=spec.rule.keys,
            sequence=spec.rule.sequence_by,
        )

    def _met(self, folded: FoldedTail, version: NextVersion) -> tuple[Hits, npt.NDArray[np.bool_]]:
        """The state's rows that have a key of the tail, and which of them an upsert would not change."""
        if not self._spec.rule.keys or not version.head.files:
            return Hits.none(), np.zeros(0, np.bool_)
        hits = self._state_index.find(folded.keys, version.head, version.hidden, engine=self._engine)
        same = alike(folded.keys, folded.upserts, hits)
        touched = np.unique(hits.records["file"][same]).tolist()
        size = sum(version.head.files[hits.paths[number]].bytes for number in touched)
        if size > ALIKE_BYTES_MAX:
            raise Unsuited(f"rows may be the same again in {size} bytes of the state")
        for number in touched:
            # Equal digests make it likely, and not certain.
            at = np.flatnonzero(same & (hits.records["file"] == number))
            file = version.head.files[hits.paths[number]]
            columns = list(self._spec.declared.names)
            theirs = rows_at(version.store, file, hits.records["row"][at].astype(np.int64), columns)
            mine = folded.rows.take(pa.array(hits.query[at]))
            same[at] = are_equal(mine, theirs, columns)
        return hits, same

    def _is_buried(self, folded: FoldedTail, head: TableHead) -> npt.NDArray[np.bool_]:
        """Which records are older than their key's tombstone."""
        found = np.zeros(len(folded.keys), np.bool_)
        sequence = folded.keys.sequence
        if not head.files or sequence is None:
            return found
        hits = self._dead_index.find(folded.keys, head, lambda _: {}, once=False)
        own, txns = sequence[hits.query], folded.txns[hits.query]
        at = np.ascontiguousarray(hits.records["digest"]).view(np.int64)
        found[hits.query[is_older(own, txns, than=hits.records["sequence"], at=at)]] = True
        return found

    def _bury(self, folded: FoldedTail, dead: NextVersion, watermark: int | None) -> int | Conflict:
        """Add the tail's deletes to the tombstones; their version to read from now on."""
        spec = self._spec
        deletes = folded.taken(~folded.upserts)
        if not len(deletes.keys):
            return dead.head.version
        rows = deletes.rows.select([*spec.rule.keys, str(spec.rule.sequence_by), TXN, KEY])
        return buried(dead, spec, dead.put(rows), watermark=watermark)


def keys_found(rows: pa.Table, *, sequence: str | None) -> RowKeys:
    """What Spark has worked out for a file that does not say it."""
    found = keys_of(rows[KEY], rows[DIGEST])
    if sequence is None:
        return found
    return RowKeys(found.hi, found.lo, found.digest, sequence_numbers(rows[sequence]))
