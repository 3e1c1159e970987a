"""What a folded tail comes to in a state: the rows that go, the rows that come, and the digests of both.

The state's rows that have a key of the tail (`tail.met`) are found in one scan and kept, a few numbers each.
Most of them go. Those that stay, because they are newer or the same, are usually none, and then the tail's
own rows are what comes, as they are: nothing else is joined, and no row is kept twice.

The rows that go are told to the commit by their places: of each file, the numbers of its rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, cast
from urllib.parse import unquote

import numpy as np
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from tidemark.core.checksum import Digest
from tidemark.core.errors import InvariantViolation
from tidemark.core.publish import Published
from tidemark.delta.entry import NewFile
from tidemark.delta.head import TableHead
from tidemark.delta.protocol import FEED, VECTORS, is_on
from tidemark.delta.state_files import DIGEST
from tidemark.delta.vectors import Rows
from tidemark.ports.state import Tail
from tidemark.spark.digest import digest_of, partials
from tidemark.spark.fold import OP, UPSERT
from tidemark.spark.fresh import filled
from tidemark.spark.shared_server import counted, persisted
from tidemark.spark.spec import StateSpec
from tidemark.spark.state_write import NextVersion
from tidemark.spark.tables import at_version, in_extent, log_files, parquet_rows
from tidemark.spark.tail import BEFORE, FILE, GOES, ROW, changes, met, with_places

_REMOVED: Final = "removed_"
_ADDED: Final = "added_"
_CHANGE: Final = "_change_type"
_FEED_FOLDER: Final = "_change_data/"
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

    @property
    def upserts(self) -> DataFrame:
        """The rows that come."""
        return self.rows.where(F.col(OP) == UPSERT).select(*self.spec.columns)

    def written(self, version: NextVersion) -> tuple[dict[str, Any], Digest]:
        """Write all of it for a version: what its commit has to do, and the digest of the rows that come,
        counted as they are written."""
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
        places = places_of(self.gone)
        paths = {name: _path_of(version.head, name) for name in places}
        if is_on(version.head.configuration, VECTORS):
            return {"added": new, "hidden": {paths[name]: rows for name, rows in places.items()}}, added
        return self._rewritten(version, new, paths), added

    def _rewritten(
        self, version: NextVersion, new: Sequence[NewFile], paths: Mapping[str, str]
    ) -> dict[str, Any]:
        """The touched files written anew, without the rows that go, for a table that has no vectors."""
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
def changes_of(
    folded: DataFrame, tail: Tail, spec: StateSpec, base: Published | None, head: TableHead
) -> Iterator[Changes]:
    """What a folded tail changes in a state that stands at this head, or in none."""
    files = log_files(spec, lower=tail.lower, upper=tail.upper, version=tail.log_version)
    rows = sum(file.part.rows for file in files)
    if base is None or not spec.rule.keys or not head.files:
        yield Changes(spec, folded, rows)
        return
    state = in_extent(_placed(folded, spec, head), files, spec, version=head.version)
    with persisted(met(folded, state, spec, rows=rows)) as pairs:
        goes = F.col(GOES)
        gone = partials(F.when(goes, F.col(BEFORE)), prefix=_REMOVED)
        found = pairs.agg(*gone, F.count_if(~goes).alias("stays")).first().asDict()  # type: ignore[union-attr]
        stays = pairs.where(~goes) if found["stays"] else None
        changed = changes(folded, stays, spec, rows=rows)
        away = pairs.where(goes).select(FILE, ROW)
        yield Changes(spec, changed, rows, away, digest_of(found, prefix=_REMOVED))


def _placed(folded: DataFrame, spec: StateSpec, head: TableHead) -> DataFrame:
    """The state's declared columns at a head, and where each row lies."""
    spark = folded.sparkSession
    if "deletionVectors" in (head.protocol.get("readerFeatures") or ()):
        state = at_version(spark, spec.state, head.version)
    else:
        # Delta tells the numbers of rows only where a table may have vectors; else its files are its rows.
        schema = StructType.fromJson(json.loads(head.metadata["schemaString"]))
        state = parquet_rows(spark, schema, [f"{spec.state}/{file.location}" for file in head.files.values()])
    return filled(with_places(state), spec).select(*spec.columns, FILE, ROW)


def places_of(gone: DataFrame) -> dict[str, Rows]:
    """The places of rows, by files as Spark names them: numbers, and no value of a row."""
    found = gone.groupBy(FILE).agg(F.collect_list(ROW).alias(ROW)).toArrow()
    return {
        file.as_py(): Rows(rows.values.to_numpy(zero_copy_only=False).astype(np.uint32))
        for file, rows in zip(found[FILE], found[ROW], strict=True)
    }


def _path_of(head: TableHead, file: str) -> str:
    """A file of Spark's by the log's spelling of its path. Names are unique by what is random in them; a
    table in which they are not is refused rather than guessed at."""
    name = unquote(file).rsplit("/", 1)[-1]
    found = [path for path, one in head.files.items() if one.location.rsplit("/", 1)[-1] == name]
    if len(found) != 1:
        raise InvariantViolation(
            f"version {head.version} has {len(found)} files of the name {name}, in which rows were found",
            hint="rebuild the state",
        )
    return found[0]


def digest_of_rows(rows: DataFrame, spec: StateSpec) -> Digest:
    """The digest of a state's rows, over the declared columns."""
    found = rows.select(spec.row_hash.alias(DIGEST)).agg(*partials(F.col(DIGEST), prefix=_ADDED))
    return digest_of(found.first().asDict(), prefix=_ADDED)  # type: ignore[union-attr]
