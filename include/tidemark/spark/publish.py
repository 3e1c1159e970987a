"""The changes that a folded tail makes in a state: rows to remove, rows to add, and the digests of both.

There are two ways to find them; the commit is the same. `ShardIndex` uses the key index, without Spark and
without a scan of the state: it reads and folds the tail as arrays, looks its keys up in the index, and
writes its rows, so the cost depends on the tail alone. It raises `Unsuited` where the index does not apply,
for example for a tail or a state above its bounds, a sequence that is neither an integer nor a time, and a
table without deletion vectors.

`changes_of` is the way for those cases. It finds the state's rows with a key of the tail
(`tail.matching_rows`) in one Spark scan and persists a few numbers for each. Most of them are removed.
Usually none stays because it is newer or equal; then the tail's rows are added as they are, without another
join.

The commit gets the rows to remove as row numbers per file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, cast
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from tidemark.core.checksum import Digest
from tidemark.core.errors import InvariantViolation
from tidemark.core.ids import TXN_NONE, Txn
from tidemark.core.ledger import Conflict
from tidemark.core.publish import VERSION_NONE, Published
from tidemark.delta.deletion_vectors import Rows
from tidemark.delta.head import LiveFile, TableHead
from tidemark.delta.index import Hits
from tidemark.delta.index_runs import DataFile
from tidemark.delta.overlay import (
    TXN,
    FoldedTail,
    TableIndex,
    alike,
    are_equal,
    is_older,
    overlay,
    read_tail,
    rows_at,
)
from tidemark.delta.protocol import FEED, VECTORS, is_on
from tidemark.delta.state import NewFile, StateTable
from tidemark.delta.state_files import DIGEST, KEY, RowKeys, Unsuited
from tidemark.delta.store import Store
from tidemark.ports.planes import Tail
from tidemark.spark.columns import OP, UPSERT
from tidemark.spark.digest import digest_of, partials
from tidemark.spark.session import counted, persisted
from tidemark.spark.state_table import NextVersion, StateSpec
from tidemark.spark.tables import at_version, log_files, parquet_rows, within_key_bounds
from tidemark.spark.tail import FILE, OLD_HASH, REMOVED, ROW, changes, matching_rows, with_file_positions
from tidemark.spark.tombstones import is_overtaken, tombstoned
from tidemark.spark.views import with_declared_columns

_REMOVED: Final = "removed_"
_ADDED: Final = "added_"
_CHANGE: Final = "_change_type"
_FEED_FOLDER: Final = "_change_data/"
ROWS_PER_FILE: Final = 250_000
"""A publish writes as few files as keep every task busy."""


@dataclass(frozen=True, slots=True)
class Changes:
    """The tail's rows that change something (`rows`, deletions included), and the state's rows to remove
    (`gone`)."""

    spec: StateSpec
    rows: DataFrame
    rows_max: int
    gone: DataFrame | None = None
    removed: Digest = field(default_factory=Digest)

    @property
    def upserts(self) -> DataFrame:
        """The rows to add."""
        return self.rows.where(F.col(OP) == UPSERT).select(*self.spec.columns)

    def written(self, version: NextVersion) -> tuple[dict[str, Any], Digest]:
        """Write the files of a version. Returns the arguments of its commit, and the digest of the added
        rows, counted while they are written."""
        files = max(1, -(-self.rows_max // ROWS_PER_FILE))
        new: list[NewFile] = []
        found = counted(
            self.upserts.select("*", *self.spec.beside),
            partials(F.col(DIGEST), prefix=_ADDED),
            lambda rows: new.extend(version.write(rows.coalesce(files))),
        )
        added = digest_of(found, prefix=_ADDED)
        if self.gone is None or not self.removed.count:
            return {"added": new}, added
        places = rows_by_file(self.gone)
        paths = {name: _path_of(version.head, name) for name in places}
        if is_on(version.head.configuration, VECTORS):
            return {"added": new, "hidden": {paths[name]: rows for name, rows in places.items()}}, added
        return self._rewritten(version, new, paths), added

    def _rewritten(
        self, version: NextVersion, new: Sequence[NewFile], paths: Mapping[str, str]
    ) -> dict[str, Any]:
        """The touched files, rewritten without the removed rows, for a table without deletion vectors."""
        columns, gone = self.spec.columns, F.broadcast(cast("DataFrame", self.gone))
        state = _placed(self.rows, self.spec, version.head)
        touched = state.where(F.col(FILE).isin(list(paths)))
        copies = version.write(
            touched.join(gone, [FILE, ROW], "left_anti").select(*columns, *self.spec.beside)
        )
        found: dict[str, Any] = {
            "added": [*copies, *new],
            "removed": list(paths.values()),
            "carried": sum(file.rows for file in copies),
        }
        if is_on(version.head.configuration, FEED):
            away = touched.join(gone, [FILE, ROW], "left_semi").select(
                *columns, F.lit("delete").alias(_CHANGE)
            )
            come = self.upserts.select("*", F.lit("insert").alias(_CHANGE))
            found["feed"] = version.write(away.unionByName(come), within=_FEED_FOLDER)
        return found


@contextmanager
def changes_in_state(
    folded: DataFrame, tail: Tail, spec: StateSpec, base: Published | None, head: TableHead
) -> Iterator[Changes]:
    """The changes of a folded tail in a state at this head; `base` is None if there is no state yet."""
    files = log_files(spec, lower=tail.lower, upper=tail.upper, version=tail.log_version)
    rows = sum(file.part.rows for file in files)
    if base is None or not spec.rule.keys or not head.files:
        yield Changes(spec, folded, rows)
        return
    state = within_key_bounds(_placed(folded, spec, head), files, spec, version=head.version)
    with persisted(matching_rows(folded, state, spec, rows=rows)) as pairs:
        goes = F.col(REMOVED)
        gone = partials(F.when(goes, F.col(OLD_HASH)), prefix=_REMOVED)
        found = pairs.agg(*gone, F.count_if(~goes).alias("stays")).first().asDict()  # type: ignore[union-attr]
        stays = pairs.where(~goes) if found["stays"] else None
        changed = changes(folded, stays, spec, rows=rows)
        away = pairs.where(goes).select(FILE, ROW)
        yield Changes(spec, changed, rows, away, digest_of(found, prefix=_REMOVED))


def _placed(folded: DataFrame, spec: StateSpec, head: TableHead) -> DataFrame:
    """The state's declared columns at a head, with each row's file and row number."""
    spark = folded.sparkSession
    if "deletionVectors" in (head.protocol.get("readerFeatures") or ()):
        state = at_version(spark, spec.state, head.version)
    else:
        # Delta provides row numbers only for tables that may have deletion vectors; without them, all rows
        # in the files are live.
        schema = StructType.fromJson(json.loads(head.metadata["schemaString"]))
        state = parquet_rows(spark, schema, [f"{spec.state}/{file.location}" for file in head.files.values()])
    return with_declared_columns(with_file_positions(state), spec).select(*spec.columns, FILE, ROW)


def rows_by_file(gone: DataFrame) -> dict[str, Rows]:
    """Row numbers by file, as Spark names the files; no values of rows are collected."""
    found = gone.groupBy(FILE).agg(F.collect_list(ROW).alias(ROW)).toArrow()
    return {
        file.as_py(): Rows(rows.values.to_numpy(zero_copy_only=False).astype(np.uint32))
        for file, rows in zip(found[FILE], found[ROW], strict=True)
    }


def _path_of(head: TableHead, file: str) -> str:
    """The path in the Delta log for a file that Spark names. File names are unique because part of them is
    random; if a name is not unique, raise `InvariantViolation` instead of guessing."""
    name = unquote(file).rsplit("/", 1)[-1]
    found = [path for path, one in head.files.items() if one.location.rsplit("/", 1)[-1] == name]
    if len(found) != 1:
        raise InvariantViolation(
            f"version {head.version} has {len(found)} files named {name} with matching rows",
            hint="run `tidemark rebuild PIPELINE SHARD`",
        )
    return found[0]


def digest_of_rows(rows: DataFrame, spec: StateSpec) -> Digest:
    """The digest of a state's rows, over the declared columns."""
    found = rows.select(spec.row_hash.alias(DIGEST)).agg(*partials(F.col(DIGEST), prefix=_ADDED))
    return digest_of(found.first().asDict(), prefix=_ADDED)  # type: ignore[union-attr]


# Publish by the key index.

TAIL_ROWS_MAX: Final = 1_000_000
TAIL_BYTES_MAX: Final = 64 << 20
"""A longer tail would take too much of this process's memory."""
ALIKE_BYTES_MAX: Final = 256 << 20
"""Above this size of touched files, Spark compares equal rows faster."""

Engine = Callable[[LiveFile], RowKeys]


@dataclass(frozen=True, slots=True)
class IndexedPublish:
    """A tail laid over a state: the arguments of its commit, the digest after it, the tombstones' version,
    and the new file with its keys."""

    change: Mapping[str, Any]
    digest: Digest
    tombstones: int
    new: tuple[NewFile, RowKeys] | None


class ShardIndex:
    """The key indexes of one shard: of its state, and of its tombstones."""

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

    def lay(self, tail: Tail, base: Published | None, version: NextVersion) -> IndexedPublish | Conflict:
        """Compute and write the changes of a tail in a state at this version's head. Raises `Unsuited`,
        before anything is written, if Spark must do it."""
        folded = self._folded(tail, version.head)
        before = base.commit.digest if base is not None else Digest()
        tombstones = VERSION_NONE
        if self._spec.rule.keys and self._spec.rule.sequence_by is not None:
            dead = NextVersion(self._spec.tombstones, self._spec.storage_options, table=self._dead)
            if is_overtaken(dead.head, tail.txn):
                return Conflict()
            folded = folded.taken(~self._is_buried(folded, dead.head, tail.txn))
            hits, same = self._met(folded, version)
            found = self._write_tombstones(folded, dead)
            if isinstance(found, Conflict):
                return found
            tombstones = found
        else:
            hits, same = self._met(folded, version)
        corrected = folded.since > 0
        over = overlay(
            folded.keys, folded.txns, folded.upserts, hits, base=before, same=same, corrected=corrected
        )
        comes = folded.taken(over.comes)
        columns = [*self._columns(comes.rows), *([KEY] if self._spec.rule.keys else []), DIGEST]
        added = version.put(comes.rows.select(columns))
        change = {"added": added, "hidden": over.hidden}
        return IndexedPublish(change, over.digest, tombstones, (added[0], comes.keys) if added else None)

    def keep(self, head: TableHead, laid: IndexedPublish) -> None:
        """Add the new file to the index after the commit, while its keys are in memory."""
        if laid.new is not None and self._spec.rule.keys:
            file, keys = laid.new
            self._state_index.add(head, DataFile(file.path, file.bytes, file.rows), keys)

    def cover(self, state: TableHead) -> None:
        """Add the files of the state and of the tombstones that compaction has written."""
        self._state_index.cover(state)
        self._dead_index.cover(self._dead.known)

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
            # Equal digests make equality likely, not certain.
            at = np.flatnonzero(same & (hits.records["file"] == number))
            file = version.head.files[hits.paths[number]]
            columns = list(self._spec.declared.names)
            theirs = rows_at(version.store, file, hits.records["row"][at].astype(np.int64), columns)
            mine = folded.rows.take(pa.array(hits.query[at]))
            same[at] = are_equal(mine, theirs, columns)
        return hits, same

    def _is_buried(self, folded: FoldedTail, head: TableHead, last: Txn) -> npt.NDArray[np.bool_]:
        """Which records are older than their key's tombstone. Spark removes tombstones that corrections
        void. Those of transactions after the tail are of a publish that was interrupted or is under way."""
        found = np.zeros(len(folded.keys), np.bool_)
        sequence = folded.keys.sequence
        if not head.files or sequence is None:
            return found
        hits = self._dead_index.find(folded.keys, head, lambda _: {}, once=False)
        own, txns = sequence[hits.query], folded.txns[hits.query]
        at = np.ascontiguousarray(hits.records["digest"]).view(np.int64)
        since = folded.since[hits.query]
        if (at < since).any():
            raise Unsuited("corrections void tombstones")
        older = is_older(own, txns, than=hits.records["sequence"], at=at) & (since == 0) & (at <= last)
        found[hits.query[older]] = True
        return found

    def _write_tombstones(self, folded: FoldedTail, dead: NextVersion) -> int | Conflict:
        """Add the tail's deletes to the tombstones. Returns the version to read from now on."""
        spec = self._spec
        deletes = folded.taken(~folded.upserts)
        corrected = Txn(int(folded.since.max(initial=TXN_NONE)))
        if not len(deletes.keys) and not corrected:
            return dead.head.version
        rows = deletes.rows.select([*spec.rule.keys, str(spec.rule.sequence_by), TXN, KEY])
        return tombstoned(dead, spec, dead.put(rows), corrected=corrected)
