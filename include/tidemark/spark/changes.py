"""What a folded tail comes to in a state: the rows that go, the rows that come, and the digests of both.

The state's rows that have a key of the tail (`tail.met`) are found in one scan and kept, a few numbers each.
Most of them go. Those that stay, because they are newer or the same, are usually none, and then the tail's
own rows are what comes, as they are: nothing else is joined, and no row is kept twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from tidemark.core.checksum import Digest
from tidemark.core.publish import Published
from tidemark.ports.state import Tail
from tidemark.spark.digest import digest_of, partials, row_hash
from tidemark.spark.fold import DELETE, OP, UPSERT
from tidemark.spark.fresh import filled
from tidemark.spark.shared_server import counted, persisted
from tidemark.spark.spec import StateSpec
from tidemark.spark.tables import at_version, in_extent, log_files, same_rows
from tidemark.spark.tail import BEFORE, FILE, GOES, ROW, changes, met, with_places
from tidemark.spark.transaction import StateTransaction

_HASH: Final = "_tidemark_hash"
_REMOVED: Final = "removed_"
_ADDED: Final = "added_"
ROWS_PER_FILE: Final = 250_000
"""A publish's rows go into as few files as keep every task busy."""


@dataclass(frozen=True, slots=True)
class Changes:
    """The tail's rows that change something (`rows`, deletions among them), and the state's rows that go."""

    spec: StateSpec
    rows: DataFrame
    rows_max: int
    gone: DataFrame | None = None
    removed: Digest = field(default_factory=Digest)
    deletes: int = 0

    @property
    def upserts(self) -> DataFrame:
        """The rows that come."""
        return self.rows.where(F.col(OP) == UPSERT).select(*self.spec.columns)

    def put(self, opened: StateTransaction) -> Digest:
        """Hand all of it to a transaction; the digest of the rows that come, counted as they are written."""
        files = max(1, -(-self.rows_max // ROWS_PER_FILE))
        found = counted(
            self.upserts.select("*", row_hash(self.spec.declared).alias(_HASH)),
            partials(F.col(_HASH), prefix=_ADDED),
            lambda rows: opened.put(rows.select(*self.spec.columns), files=files),
        )
        if self.gone is not None and self.removed.count:
            opened.take_out(self.gone.where(GOES).select(FILE, ROW))
        return digest_of(found, prefix=_ADDED)


@contextmanager
def changes_of(
    folded: DataFrame, tail: Tail, spec: StateSpec, base: Published | None, opened: StateTransaction | None
) -> Iterator[Changes]:
    """What a folded tail changes in the state that a publish has left, or in none."""
    files = log_files(spec, lower=tail.lower, upper=tail.upper, version=tail.log_version)
    rows = sum(file.part.rows for file in files)
    if base is None or not spec.rule.keys:
        yield Changes(spec, folded, rows)
        return
    # A transaction's own version: the places of its rows are what it knows.
    version = opened.version if opened is not None else same_rows(spec, spec.state, base.version)
    state = filled(at_version(folded.sparkSession, spec.state, version), spec)
    state = in_extent(state, files, spec, version=version)
    state = state.select(*spec.columns) if opened is None else with_places(state, spec)
    with persisted(met(folded, state, spec, rows=rows)) as pairs:
        goes, deletes = F.col(GOES), F.col(OP) == DELETE
        gone = partials(F.when(goes, F.col(BEFORE)), prefix=_REMOVED)
        counts = [F.count_if(goes & deletes).alias("deletes"), F.count_if(~goes).alias("stays")]
        found = pairs.agg(*gone, *counts).first().asDict()  # type: ignore[union-attr]
        stays = pairs.where(~goes) if found["stays"] else None
        changed = changes(folded, stays, spec, rows=rows)
        yield Changes(spec, changed, rows, pairs, digest_of(found, prefix=_REMOVED), int(found["deletes"]))


def digest_of_rows(rows: DataFrame, spec: StateSpec) -> Digest:
    """The digest of a state's rows, over the declared columns."""
    found = rows.select(row_hash(spec.declared).alias(_HASH)).agg(*partials(F.col(_HASH), prefix=_ADDED))
    return digest_of(found.first().asDict(), prefix=_ADDED)  # type: ignore[union-attr]
