"""A shard's tables at a version: the rows of its log and state, and the files that hold them.

delta-rs lists the files of logs and tombstones, and Spark reads them as plain Parquet: Delta's own reader
would first compute the list of all files, in several jobs, for each new version.

`LogRows` counts log rows as they are on disk, for proofs, and merges log files for compaction. A merge
copies rows unchanged, each with its `_txn`, in the order of `_txn`, so that a read of one transaction opens
few pages. The result is counted again from disk, per transaction, before it is used.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from functools import reduce
from typing import Any, Final

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import (
    BinaryType,
    DateType,
    IntegralType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from tidemark.config import PipelineConfig
from tidemark.core.checksum import Digest
from tidemark.core.errors import Determinate
from tidemark.core.ids import QUARANTINE, TXN_NONE, ShardId, Txn
from tidemark.core.log import LogFile
from tidemark.core.seal import Part
from tidemark.delta.state_files import DIGEST, KEY
from tidemark.delta.state_status import same_rows_version
from tidemark.spark import documents as doc
from tidemark.spark.columns import OFFSET, POSITION, TXN, literal, log_schema, opaque, quoted
from tidemark.spark.decode import SHARD, hashed_columns, shards_of
from tidemark.spark.digest import digest_of, partials, row_hash_sql
from tidemark.spark.failures import JOB_ERRORS, cause_in
from tidemark.spark.fold import QUARANTINE_COLUMNS, WRITE_OPTIONS
from tidemark.spark.parts import PartStore
from tidemark.spark.session import ROWS_FEW, Sessions, in_parallel
from tidemark.spark.state_table import StateSpec

_MILLISECOND: Final = timedelta(milliseconds=1)
_EXACT: Final = (DateType, IntegralType, StringType)


def at_version(spark: SparkSession, uri: str, version: int) -> DataFrame:
    """A Delta table at one version."""
    return spark.read.format("delta").option("versionAsOf", version).load(uri)


def read_version(spark: SparkSession, spec: StateSpec, uri: str, version: int) -> DataFrame:
    """The rows of a shard's Delta table at one version."""
    return at_version(spark, uri, same_rows(spec, uri, version))


def same_rows(spec: StateSpec, uri: str, version: int) -> int:
    """The newest version with the same rows: after a compaction it has fewer files, and VACUUM removes the
    others."""
    return same_rows_version(uri, version, spec.storage_options)


def log_files(spec: StateSpec, *, lower: int, upper: int, version: int) -> list[LogFile]:
    """The log's parts that may have rows with lower <= txn < upper, by their statistics, with the bounds of
    the first key column and of the sequence."""
    found: list[LogFile] = []
    for add in _adds(spec, spec.log, version):
        # A part without statistics may have any transaction.
        first, last = _bounds(add, TXN) or (TXN_NONE, upper)
        if first < upper and last >= lower:
            part = Part(add["path"], int(add["num_records"] or 0), int(add["size_bytes"]))
            known = {name: bounds for name in _bounded(spec) if (bounds := _bounds(add, name))}
            lowest, highest = ({name: known[name][end] for name in known} for end in (0, 1))
            filled = frozenset(name for name in _counted(spec) if add.get(f"null_count.{name}") == 0)
            found.append(LogFile(part, Txn(first), Txn(last), lowest, highest, filled))
    return sorted(found, key=lambda file: file.part.path)


def may_correct(spec: StateSpec, files: Sequence[LogFile]) -> bool:
    """Whether corrections decide between the rows of these files: there are rows without an offset, by the
    statistics, and a sequence that could decide otherwise."""
    if spec.rule.sequence_by is None or not spec.rule.keys:
        return False
    return any(OFFSET not in file.filled for file in files)


def with_filled_keys(spec: StateSpec, files: Sequence[LogFile]) -> StateSpec:
    """The spec for comparisons with the rows of these files: a key part of which they have no NULL, by their
    statistics, is compared as one that can't be NULL (`StateSpec.equal`)."""
    filled = frozenset.intersection(*(file.filled for file in files)) if files else frozenset()
    fields = [
        StructField(field.name, field.dataType, field.nullable and field.name not in filled)
        for field in spec.declared.fields
    ]
    return replace(spec, declared=StructType(fields))


def _bounded(spec: StateSpec) -> list[str]:
    """The columns whose bounds are read."""
    return [*spec.rule.keys[:1], *([spec.rule.sequence_by] if spec.rule.sequence_by is not None else [])]


def _counted(spec: StateSpec) -> list[str]:
    """The columns whose NULLs are counted."""
    sequence = [spec.rule.sequence_by] if spec.rule.sequence_by is not None else []
    return list(dict.fromkeys([OFFSET, *spec.rule.keys, *sequence]))


def _adds(spec: StateSpec, uri: str, version: int) -> list[dict[str, Any]]:
    """The files of a Delta table at a version, with their statistics."""
    try:
        table = DeltaTable(uri, version=version, storage_options=dict(spec.storage_options))
        adds = pa.RecordBatchReader.from_stream(table.get_add_actions(flatten=True)).read_all()
    except (DeltaError, OSError) as error:
        raise Determinate(
            f"version {version} of {uri} can't be read: {error}", hint="check the store, then retry"
        ) from error
    bounded = [f"{end}.{name}" for name in (TXN, *_bounded(spec)) for end in ("min", "max")]
    counted = [f"null_count.{name}" for name in _counted(spec)]
    known = [name for name in dict.fromkeys((*bounded, *counted)) if name in adds.column_names]
    wanted = ["path", "num_records", "size_bytes", *known]
    rows: list[dict[str, Any]] = adds.select(wanted).to_pylist()
    return rows


def _bounds(add: Mapping[str, Any], column: str) -> tuple[Any, Any] | None:
    """The lowest and highest value of a column in a file; None if its statistics have none."""
    least, most = add.get(f"min.{column}"), add.get(f"max.{column}")
    return None if least is None or most is None else (least, most)


def log_rows(
    spark: SparkSession, spec: StateSpec, files: Sequence[LogFile], *, lower: int, upper: int
) -> DataFrame:
    """The rows with lower <= txn < upper of a log's files (`log_files`).

    If all parts are within the bounds, there is no filter: the bounds would be literals in Spark's
    generated code, and every read would compile new code.
    """
    rows = parquet_rows(spark, log_schema(spec.declared), log_paths(spec, files))
    if all(lower <= file.txn_first and file.txn_last < upper for file in files):
        return rows
    return rows.where(f"{TXN} >= {lower}L AND {TXN} < {upper}L")


def table_rows(
    spark: SparkSession,
    spec: StateSpec,
    uri: str,
    schema: StructType,
    version: int,
    *,
    txn: Txn | None = None,
) -> DataFrame:
    """The rows of a table at a version, up to a transaction; only for tables without deletion vectors."""
    adds = _adds(spec, uri, version)
    rows = parquet_rows(spark, schema, [f"{uri}/{add['path']}" for add in adds])
    if txn is None or all((_bounds(add, TXN) or (0, txn + 1))[1] <= txn for add in adds):
        return rows
    return rows.where(f"{TXN} <= {literal(int(txn))}")


def parquet_rows(spark: SparkSession, schema: StructType, paths: Sequence[str]) -> DataFrame:
    """The rows of these files."""
    return spark.read.schema(schema).parquet(*paths) if paths else no_rows(spark, schema)


def no_rows(spark: SparkSession, schema: StructType) -> DataFrame:
    """An empty frame. One made of a Python list would ask every executor for Python."""
    columns = [F.lit(None).cast(one.dataType).alias(one.name) for one in schema.fields]
    return spark.range(1).where("false").select(*columns)


def log_paths(spec: StateSpec, files: Sequence[LogFile]) -> list[str]:
    """The paths of these log files."""
    return [f"{spec.log}/{file.part.path}" for file in files]


def within_key_bounds(
    state: DataFrame, tail: Sequence[LogFile], spec: StateSpec, *, version: int
) -> DataFrame:
    """The state's rows that may have a key of the tail; Delta skips files by this condition.

    There is no condition if it would skip no file, since its bounds become literals in the generated code;
    nor for types whose statistics may be rounded.
    """
    name = spec.rule.keys[0]
    exact = isinstance(spec.declared[name].dataType, _EXACT)
    if not exact or not tail or any(name not in file.lowest for file in tail):
        return state
    least, most = min(file.lowest[name] for file in tail), max(file.highest[name] for file in tail)
    files = [_bounds(add, name) for add in _adds(spec, spec.state, version)]
    if not any(file[0] > most or file[1] < least for file in files if file is not None):
        return state
    key = F.col(quoted(name))
    return state.where(key.isNull() | key.between(F.lit(least), F.lit(most)))


def newer_rows(
    state: DataFrame, tail: Sequence[LogFile], spec: StateSpec, *, version: int
) -> DataFrame | None:
    """The state's rows that may have a higher sequence than a record of the tail, by statistics, of which
    Delta skips files; None if no row can have one."""
    name = str(spec.rule.sequence_by)
    kind = spec.declared[name].dataType
    if not isinstance(kind, (*_EXACT, TimestampType, TimestampNTZType)):
        return state
    lowest = [file.lowest[name] for file in tail if name in file.filled and name in file.lowest]
    if len(lowest) < len(tail) or not lowest:
        return state  # A NULL is lower than every sequence.
    least = min(lowest)
    if isinstance(least, datetime):
        least -= _MILLISECOND  # Spark cuts the upper bounds of its files to whole milliseconds.
    files = [_bounds(add, name) for add in _adds(spec, spec.state, version)]
    newer = [file is None or file[1] > least for file in files]
    if all(newer):
        return state
    return state.where(F.col(quoted(name)) > F.lit(str(least)).cast(kind)) if any(newer) else None


_HASH: Final = "_hash"
BESIDE: Final = (StructField(DIGEST, LongType()), StructField(KEY, BinaryType()))
"""The hash columns beside a log's rows, which are not in the table's schema."""
_UNREADABLE: Final[tuple[type[Exception], ...]] = (*JOB_ERRORS, OSError)


class LogRows:
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
        """The digests of a transaction's rows in these files as they are now, in one job. A lost file has
        no rows; a shard with a damaged file has none at all; any other failed job raises `Determinate`. The
        files of `merged` shards also have rows of other transactions."""
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
            # The files are whole, so the failure does not show that rows are lost (Invariant 5).
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
            # In a merged file, a literal makes Parquet skip other transactions, but Spark compiles code for
            # this transaction alone; a part has nothing to skip.
            number = literal(int(txn)) if shard in merged else opaque(txn, beside=TXN)
            return self._hashed(spark, shard, paths).where(f"{TXN} = {number}") if paths else None

        found = zip(shards, in_parallel(framed, list(shards)), strict=True)
        frames = {shard: frame for shard, frame in found if frame is not None}
        if len(frames) == 1:
            # Without groups, the sums are plain variables in the generated code.
            ((shard, frame),) = frames.items()
            (row,) = frame.agg(*partials(_HASH, prefix="")).collect()
            return {shard: digest_of(row.asDict(), prefix="")}
        if not frames:
            return {}
        named = (frame.selectExpr(f"{literal(name)} AS {SHARD}", _HASH) for name, frame in frames.items())
        counted = reduce(DataFrame.unionAll, named).groupBy(SHARD).agg(*partials(_HASH, prefix="")).collect()
        return {ShardId(row[SHARD]): digest_of(row.asDict(), prefix="") for row in counted}

    def rows(self, spark: SparkSession, txn: Txn, columns: StructType, paths: Sequence[str]) -> DataFrame:
        """These columns of a transaction's rows in some files, read in the given session."""
        schema = StructType([*columns.fields, StructField(TXN, LongType())])
        return spark.read.schema(schema).parquet(*paths).where(f"{TXN} = {int(txn)}L").drop(TXN)

    def _hashed(self, spark: SparkSession, shard: ShardId, paths: Sequence[str]) -> DataFrame:
        columns = self._columns[shard]
        schema = StructType([*columns.fields, StructField(TXN, LongType()), StructField(DIGEST, LongType())])
        rows = spark.read.schema(schema).parquet(*paths)
        # A publish carries forward the stored hash of a row. If it is not the row's own hash, the row
        # counts as another one.
        own = row_hash_sql(columns)
        return rows.selectExpr(TXN, f"{own} AS {_HASH}", DIGEST).selectExpr(
            TXN, f"CASE WHEN {_HASH} = coalesce({DIGEST}, {_HASH}) THEN {_HASH} ELSE ~{_HASH} END AS {_HASH}"
        )

    def merge(self, shard: ShardId, files: Sequence[Part], *, folder: str) -> tuple[Part, ...]:
        """Write the rows of these files to one file in a folder below the log."""
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
        """Turn unreadable files into `Determinate`. They may be gone because another maintenance has fenced
        this one out."""
        try:
            yield
        except _UNREADABLE as error:
            raise Determinate(
                f"files of the log of {shard} can't be merged: {str(error)[:300]}",
                hint=f"check the files: tidemark replay {self._config.name}",
            ) from error
