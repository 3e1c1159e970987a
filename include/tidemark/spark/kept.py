"""The rows of log files as they are on disk: counted for a proof, and merged by compaction.

Merging copies rows as they are, each with its `_txn`, ordered by it, so that who wants one transaction of a
merged file reads few of its pages. What was written is counted again from the disk, per transaction, before
anybody relies on it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

from tidemark.config import PipelineConfig
from tidemark.core.checksum import Digest
from tidemark.core.errors import Determinate
from tidemark.core.ids import QUARANTINE, ShardId, Txn
from tidemark.core.seal import Part
from tidemark.delta.state_files import DIGEST, KEY
from tidemark.spark import documents as doc
from tidemark.spark.abreast import abreast
from tidemark.spark.decode import hashed_columns
from tidemark.spark.digest import digest_of, partials, row_hash_sql
from tidemark.spark.failures import JOB_ERRORS, cause_in
from tidemark.spark.flaws import SHARD
from tidemark.spark.fold import POSITION, TXN, log_schema
from tidemark.spark.parts import PartStore
from tidemark.spark.route import shards_of
from tidemark.spark.session import ROWS_FEW, Sessions
from tidemark.spark.sql import literal, opaque
from tidemark.spark.work import QUARANTINE_COLUMNS, WRITE_OPTIONS

_HASH: Final = "_hash"
BESIDE: Final = (StructField(DIGEST, LongType()), StructField(KEY, BinaryType()))
"""What stands beside a log's rows, outside of its schema."""
_UNREADABLE: Final[tuple[type[Exception], ...]] = (*JOB_ERRORS, OSError)


class KeptRows:
    """The rows in one pipeline's log files."""

    def __init__(self, sessions: Sessions, config: PipelineConfig, store: PartStore) -> None:
        self._sessions = sessions
        self._config = config
        self._store = store
        self._columns = {ShardId(shard.name): hashed_columns(shard) for shard in shards_of(config)}
        self._columns[QUARANTINE] = QUARANTINE_COLUMNS

    def digests(
        self, txn: Txn, shards: Mapping[ShardId, Sequence[Part]], *, merged: Collection[ShardId] = ()
    ) -> dict[ShardId, Digest]:
        """The digests of a transaction's rows that these files have now, in one job. A lost file has no rows,
        and a shard with a damaged file has none at all; a job that fails otherwise is `Determinate`. Those of
        the `merged` shards have other transactions' rows too."""
        try:
            return self._counted(txn, shards, merged)
        except JOB_ERRORS:
            found = {shard: self._counted_or_none(txn, shard, shards[shard], merged) for shard in shards}
            return {shard: digest or Digest() for shard, digest in found.items()}

    def _counted_or_none(
        self, txn: Txn, shard: ShardId, parts: Sequence[Part], merged: Collection[ShardId]
    ) -> Digest | None:
        try:
            return self._counted(txn, {shard: parts}, merged).get(shard)
        except JOB_ERRORS as error:
            try:
                damaged = not self._store.are_whole(shard, parts)
            except OSError:
                damaged = False
            if damaged:
                return None
            # Nothing is wrong with the files, so nothing is known of their rows (Invariant 5).
            raise Determinate(
                f"the rows of {shard} can't be read back: {cause_in(str(error))}", hint="retry"
            ) from error

    def _counted(
        self, txn: Txn, shards: Mapping[ShardId, Sequence[Part]], merged: Collection[ShardId]
    ) -> dict[ShardId, Digest]:
        few = sum(part.rows for parts in shards.values() for part in parts) <= ROWS_FEW
        spark = self._sessions.few if few else self._sessions.many

        def framed(shard: ShardId) -> DataFrame | None:
            paths = self._store.existing(shard, shards[shard])
            # A literal lets Parquet pass by the other transactions of a merged file, at the cost of code that
            # is compiled for this transaction alone; a part has nothing to pass by.
            number = literal(int(txn)) if shard in merged else opaque(txn, beside=TXN)
            return self._hashed(spark, shard, paths).where(f"{TXN} = {number}") if paths else None

        found = zip(shards, abreast(framed, list(shards)), strict=True)
        frames = {shard: frame for shard, frame in found if frame is not None}
        if len(frames) == 1:
            # Without groups the sums are plain variables of the generated code.
            ((shard, frame),) = frames.items()
            (row,) = frame.agg(*partials(_HASH, prefix="")).collect()
            return {shard: digest_of(row.asDict(), prefix="")}
        if not frames:
            return {}
        named = (frame.selectExpr(f"{literal(name)} AS {SHARD}", _HASH) for name, frame in frames.items())
        counted = reduce(DataFrame.unionAll, named).groupBy(SHARD).agg(*partials(_HASH, prefix="")).collect()
        return {ShardId(row[SHARD]): digest_of(row.asDict(), prefix="") for row in counted}

    def rows(self, spark: SparkSession, txn: Txn, columns: StructType, paths: Sequence[str]) -> DataFrame:
        """These columns of a transaction's rows in some files, in the session that uses them."""
        schema = StructType([*columns.fields, StructField(TXN, LongType())])
        return spark.read.schema(schema).parquet(*paths).where(f"{TXN} = {int(txn)}L").drop(TXN)

    def _hashed(self, spark: SparkSession, shard: ShardId, paths: Sequence[str]) -> DataFrame:
        columns = self._columns[shard]
        schema = StructType([*columns.fields, StructField(TXN, LongType()), StructField(DIGEST, LongType())])
        rows = spark.read.schema(schema).parquet(*paths)
        # A publish carries forward what stands beside a row. Where that is not the row's own, the row counts
        # as another one.
        own = row_hash_sql(columns)
        return rows.selectExpr(TXN, f"{own} AS {_HASH}", DIGEST).selectExpr(
            TXN, f"CASE WHEN {_HASH} = coalesce({DIGEST}, {_HASH}) THEN {_HASH} ELSE ~{_HASH} END AS {_HASH}"
        )

    def merge(self, shard: ShardId, files: Sequence[Part], *, folder: str) -> tuple[Part, ...]:
        """Write the rows of these files to one in a folder below the log."""
        paths = [f"{self._store.log_root(shard)}/{file.path}" for file in files]
        reader = self._sessions.many.read
        if shard != QUARANTINE:
            schema = log_schema(doc.declared_schema(self._config.shard(shard)))
            reader = reader.schema(StructType([*schema.fields, *BESIDE]))
        with self._merging(shard):
            rows = reader.parquet(*paths).coalesce(1).sortWithinPartitions(TXN, *POSITION)
            rows.write.options(**WRITE_OPTIONS).mode("error").parquet(
                f"{self._store.log_root(shard)}/{folder}"
            )
            return self._store.described(shard, folder)

    def digests_by_txn(self, shard: ShardId, parts: Sequence[Part]) -> dict[Txn, Digest]:
        """The digest of each transaction's rows in these files, as they are on disk."""
        paths = [f"{self._store.log_root(shard)}/{part.path}" for part in parts]
        with self._merging(shard):
            hashed = self._hashed(self._sessions.many, shard, paths)
            counted = hashed.groupBy(TXN).agg(*partials(_HASH, prefix="")).collect()
        return {Txn(row[TXN]): digest_of(row.asDict(), prefix="") for row in counted}

    @contextmanager
    def _merging(self, shard: ShardId) -> Iterator[None]:
        """Files that can't be read are a reason to leave them alone: what was merged may be gone too, where
        another maintenance has shut this one out."""
        try:
            yield
        except _UNREADABLE as error:
            raise Determinate(
                f"files of the log of {shard} can't be merged: {str(error)[:300]}",
                hint=f"look for damage: tidemark replay {self._config.name}",
            ) from error
