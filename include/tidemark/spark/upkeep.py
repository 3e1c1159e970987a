"""Keeping a state's table in shape: small files merged, hidden rows purged, old files deleted.

Spark rewrites files and Python commits them (`spark.state_write`): no row changes, and each commit is made on
the version that its files were read at. Where a publish came first, the work is dropped and left for the next
time. Publishers and readers know such a commit by what it is called (`spark.standing`), and `read_version`
reads a publish at the newest version that has its rows, so that readers get the merged files at once.

The table keeps its retention at what the pipeline file says (`retention_of`), so that a VACUUM by other
hands, which goes by it, removes nothing that a version within `state_history_days` needs. With RETAIN 0 it
does; then who reads such a version is told which file is gone.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from tidemark.core.ids import ShardId
from tidemark.core.ledger import Conflict
from tidemark.core.publish import VERSION_NONE, BeingPublished
from tidemark.delta.facts import SMALL_BYTES
from tidemark.delta.head import LiveFile
from tidemark.delta.state_vacuum import vacuum
from tidemark.spark.confs import confs_set
from tidemark.spark.failures import rows_of
from tidemark.spark.fold import quoted
from tidemark.spark.spec import StateSpec, StateSpecs
from tidemark.spark.state_write import WRITE_CONFS, NextVersion
from tidemark.spark.table_metadata import retention_of
from tidemark.spark.tables import parquet_rows, same_rows
from tidemark.spark.tail import FILE, ROW

FILE_BYTES: Final = 2 * SMALL_BYTES
_DAY_MS: Final = 86_400_000
_ROWS: Final = "_tidemark_rows"


class SparkStateKeeper:
    """The `StateKeeper` port."""

    def __init__(self, spark: SparkSession, specs: StateSpecs) -> None:
        self._spark = spark
        self._specs = specs

    def merge(self, shard: ShardId, *, tombstones: int) -> None:
        """Merge small files, those of the tombstones too."""
        for version in self._tables(shard, tombstones):
            # Above this a file is left alone, so that a row is not rewritten for ever.
            small = [file for file in version.head.files.values() if file.bytes < SMALL_BYTES]
            if len(small) > 1:
                self._rewrite(shard, version, small, operation="OPTIMIZE")

    def purge(self, shard: ShardId) -> None:
        """Write the state's files anew that deletion vectors have taken rows out of."""
        for version in self._tables(shard, VERSION_NONE):
            hiding = [file for file in version.head.files.values() if file.hidden]
            if hiding:
                self._rewrite(shard, version, hiding, operation="REORG")

    def vacuum(self, shard: ShardId, *, tombstones: int) -> None:
        """Delete what no version within the retention needs."""
        kept_ms = self._specs.of(shard).history_days * _DAY_MS
        for version in self._tables(shard, tombstones):
            vacuum(version.store, now_ms=time.time_ns() // 1_000_000, kept_ms=kept_ms)

    def _tables(self, shard: ShardId, tombstones: int) -> list[NextVersion]:
        """The state, and its tombstones if they are those that belong to it: those of a publish that died may
        have replaced the ones that the state still needs."""
        spec = self._specs.of(shard)
        state, dead = (NextVersion(uri, spec.storage_options) for uri in (spec.state, spec.tombstones))
        found = [state] if state.head.version != VERSION_NONE else []
        if tombstones != VERSION_NONE and same_rows(spec, spec.tombstones, tombstones) == dead.head.version:
            found.append(dead)
        return [self._keeping(version, spec) for version in found]

    def _keeping(self, version: NextVersion, spec: StateSpec) -> NextVersion:
        """A table with the retention of the pipeline file, set where one is missing or another."""
        wanted = retention_of(spec)
        if wanted.items() <= version.head.configuration.items():
            return version
        metadata = {**version.head.metadata, "configuration": {**version.head.configuration, **wanted}}
        outcome = version.commit("SET TBLPROPERTIES", version.head.rows, metadata=metadata, of_rows=False)
        _check_made(outcome, spec.name)
        return NextVersion(version.store.uri, spec.storage_options)

    def _rewrite(
        self, shard: ShardId, version: NextVersion, files: Sequence[LiveFile], *, operation: str
    ) -> None:
        count = max(1, -(-sum(file.bytes for file in files) // FILE_BYTES))
        with rows_of(shard), confs_set(self._spark, WRITE_CONFS):
            added = version.write(self._live(version, files).coalesce(count))
        outcome = version.commit(
            operation, version.head.rows, added=added, removed=[file.path for file in files], of_rows=False
        )
        _check_made(outcome, shard)

    def _live(self, version: NextVersion, files: Sequence[LiveFile]) -> DataFrame:
        """The rows of these files that no vector hides, in the table's columns."""
        schema = StructType.fromJson(json.loads(version.head.metadata["schemaString"]))
        rows = parquet_rows(self._spark, schema, [f"{version.store.uri}/{file.location}" for file in files])
        columns = [F.col(quoted(name)) for name in schema.names]
        hidden = version.hidden([file.path for file in files])
        if not hidden:
            return rows.select(*columns)
        gone = self._spark.createDataFrame(
            [(_name(version.head.files[path]), list(numbers)) for path, numbers in hidden.items()],
            f"{FILE} STRING, {_ROWS} ARRAY<BIGINT>",
        ).select(FILE, F.explode(_ROWS).alias(ROW))
        placed = rows.select(
            *columns, F.col("_metadata.file_name").alias(FILE), F.col("_metadata.row_index").alias(ROW)
        )
        return placed.join(gone, [FILE, ROW], "left_anti").select(*columns)


def _name(file: LiveFile) -> str:
    return file.location.rsplit("/", 1)[-1]


def _check_made(outcome: object, shard: str) -> None:
    if isinstance(outcome, Conflict):
        raise BeingPublished(
            f"the state of {shard} was published while it was maintained", hint="it is left for the next time"
        )
