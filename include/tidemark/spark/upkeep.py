"""Keeping a state's table in shape, with Delta's own commands: OPTIMIZE, REORG … APPLY (PURGE), VACUUM.

They change no row and are no publish: `spark.standing` knows them by their names, and `read_version` reads a
publish at the newest version that has its rows, so that readers get the merged files at once. The VACUUM
makes no commit of its own.

The table keeps its retention at what the pipeline file says (`commit.retention_of`), so that a VACUUM by
other hands, which goes by it, removes nothing that a version within `state_history_days` needs. With RETAIN 0
it does; then who reads such a version is told which file is gone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql import SparkSession

from tidemark.core.ids import ShardId
from tidemark.core.publish import VERSION_NONE
from tidemark.spark.commit import confs_set, retention_of
from tidemark.spark.spec import StateSpec, StateSpecs
from tidemark.spark.standing import configuration_of, version_of
from tidemark.spark.tables import same_rows

_OPTIMIZE: Final = {
    # Above this a file is left alone, so that a row is not rewritten for ever.
    "spark.databricks.delta.optimize.minFileSize": str(128 * 1024 * 1024),
    "spark.databricks.delta.optimize.maxFileSize": str(256 * 1024 * 1024),
}
_VACUUM: Final = {
    "spark.databricks.delta.vacuum.logging.enabled": "false",
    # A listing of ten thousand tasks, which is the default, takes minutes on a small machine.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "8",
}


class SparkStateKeeper:
    """The `StateKeeper` port; the caller holds the publisher's lock."""

    def __init__(self, spark: SparkSession, specs: StateSpecs) -> None:
        self._spark = spark
        self._specs = specs

    def merge(self, shard: ShardId, *, tombstones: int) -> None:
        """Merge small files, those of the tombstones too."""
        self._run(shard, "OPTIMIZE {}", _OPTIMIZE, tombstones)

    def purge(self, shard: ShardId) -> None:
        """Write the state's files anew that deletion vectors have taken rows out of."""
        self._run(shard, "REORG TABLE {} APPLY (PURGE)", _OPTIMIZE, VERSION_NONE)

    def vacuum(self, shard: ShardId, *, tombstones: int) -> None:
        """Delete what no version within the retention needs."""
        self._run(shard, "VACUUM {}", _VACUUM, tombstones)

    def _run(self, shard: ShardId, command: str, confs: Mapping[str, str], tombstones: int) -> None:
        spec = self._specs.of(shard)
        for uri, pinned in {spec.state: None, spec.tombstones: tombstones}.items():
            newest = version_of(uri, spec.storage_options)
            # Tombstones of a publish that died may have replaced those that the state still needs.
            if newest == VERSION_NONE or (pinned is not None and not _is_newest(spec, uri, pinned, newest)):
                continue
            table = "delta.`" + uri.replace("`", "``") + "`"
            self._keep_retention(uri, table, spec)
            with confs_set(self._spark, confs):
                self._spark.sql(command.format(table))

    def _keep_retention(self, uri: str, table: str, spec: StateSpec) -> None:
        """Set the properties where one is missing or another."""
        wanted = retention_of(spec)
        if not wanted.items() <= configuration_of(uri, spec.storage_options).items():
            given = ", ".join(f"'{name}' = '{value}'" for name, value in wanted.items())
            self._spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ({given})")


def _is_newest(spec: StateSpec, uri: str, pinned: int, newest: int) -> bool:
    """Whether a table has the rows of a version still."""
    return pinned != VERSION_NONE and same_rows(spec, uri, pinned) == newest
