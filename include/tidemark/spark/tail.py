"""What a log's tail changes in a state: DataFrames in, a DataFrame of changes out.

The tail is folded by the one rule, then rows that lose (older than the state's row or than a tombstone)
and rows that change nothing are left out, so that a publish writes changes and nothing else, and a
change feed shows changes and nothing else (scenario U6). Keys are compared null-safe everywhere (U13).

The state is read once, joined to the tail, which is small: the tail is sent to the state's rows, not the
other way round. The same pass says where each row that has to go lies (`with_places`), so that nobody needs
to look for it again. Files of the state that can't have a key of the tail are not opened.

A log's parts are listed by delta-rs and read as the Parquet files that they are: through Delta's own reader
Spark would first work out the log's whole snapshot, in several jobs, for each new version.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Final

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import (
    ArrayType,
    DataType,
    LongType,
    MapType,
    StructType,
)

from tidemark.core.errors import Determinate
from tidemark.spark.digest import row_hash
from tidemark.spark.fold import DELETE, OP, TXN, UPSERT, FoldRule, fold, log_schema, quoted
from tidemark.spark.standing import same_rows_version

FILE: Final = "_tidemark_file"
ROW: Final = "_tidemark_row_index"
BEFORE: Final = "_tidemark_before"
AFTER: Final = "_tidemark_after"
_OLDER: Final = "_tidemark_older"
_SAME: Final = "_tidemark_same"
_PREFIX: Final = "_tidemark_s_"

# A short alias would be taken for a column of that name, if the shard has one.
TARGET: Final = "_tidemark_target"
SOURCE: Final = "_tidemark_source"
_PAIRS: Final = "_tidemark_pairs"
_DEAD: Final = "_tidemark_dead"

BROADCAST_ROWS_MAX: Final = 1_000_000
"""A longer tail is left to Spark's own choice of join."""


@dataclass(frozen=True, slots=True)
class StateSpec:
    """A shard, as far as its state goes. `uri` is the shard's folder; `lateness` is in the unit of
    `fold.sequence_number`. A shard without keys is append-only: its state is its log's rows."""

    name: str
    uri: str
    declared: StructType
    rule: FoldRule
    lateness: int | None = None
    change_data_feed: bool = False
    deletion_vectors: bool = True
    history_days: int = 7
    storage_options: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def log(self) -> str:
        return f"{self.uri}/log"

    @property
    def state(self) -> str:
        return f"{self.uri}/state"

    @property
    def tombstones(self) -> str:
        return f"{self.uri}/tombstones"

    @property
    def columns(self) -> list[Column]:
        return [F.col(quoted(name)) for name in self.declared.names]


def at_version(spark: SparkSession, uri: str, version: int) -> DataFrame:
    """A Delta table at one version."""
    return spark.read.format("delta").option("versionAsOf", version).load(uri)


def read_version(spark: SparkSession, spec: StateSpec, uri: str, version: int) -> DataFrame:
    """The rows that a Delta table of a shard has at one version.

    They are read at the newest version that has the same rows: Delta refuses a version that is older than
    its retention and not the newest one, and after a compaction the newest one has fewer files."""
    return at_version(spark, uri, same_rows_version(uri, version, spec.storage_options))


@dataclass(frozen=True, slots=True)
class LogFile:
    """One of a log's parts, as far as it was asked for."""

    path: str
    rows: int
    whole: bool
    """Whether its statistics say that all of its rows were asked for."""
    bounds: tuple[Any, Any] | None
    """The lowest and the highest of its keys' first parts; None where it does not say."""


def log_files(spec: StateSpec, *, lower: int, upper: int, version: int) -> list[LogFile]:
    """The log's parts that may have rows with lower <= txn < upper, by their statistics."""
    found = []
    for add in _adds(spec, spec.log, version):
        # A part that doesn't say is looked into.
        least, most = _bounds(add, TXN) or (lower, lower)
        if least < upper and most >= lower:
            whole = _bounds(add, TXN) is not None and least >= lower and most < upper
            path, rows = f"{spec.log}/{add['path']}", int(add.get("num_records") or 0)
            found.append(LogFile(path, rows, whole, _bounds(add, *spec.rule.keys[:1])))
    return sorted(found, key=lambda file: file.path)


def _adds(spec: StateSpec, uri: str, version: int) -> list[dict[str, Any]]:
    """The files of a Delta table at a version, with their statistics."""
    try:
        table = DeltaTable(uri, version=version, storage_options=dict(spec.storage_options))
        adds = pa.RecordBatchReader.from_stream(table.get_add_actions(flatten=True)).read_all()
    except (DeltaError, OSError) as error:
        raise Determinate(
            f"version {version} of {uri} can't be read: {error}", hint="check the store, retry"
        ) from error
    first = spec.rule.keys[:1]
    wanted = ["path", "num_records", *(f"{end}.{name}" for name in (TXN, *first) for end in ("min", "max"))]
    rows: list[dict[str, Any]] = adds.select([w for w in wanted if w in adds.column_names]).to_pylist()
    return rows


def _bounds(add: Mapping[str, Any], *column: str) -> tuple[Any, Any] | None:
    """What a file's statistics say of a column."""
    least, most = (add.get(".".join([end, *column])) for end in ("min", "max"))
    return None if least is None or most is None else (least, most)


def log_rows(spark: SparkSession, spec: StateSpec, *, lower: int, upper: int, version: int) -> DataFrame:
    """The log's rows with lower <= txn < upper, at a version of its table.

    A part that has no others is read as it is: the bounds would stand in the code that Spark generates, and
    every read would wait for new code to be compiled."""
    files = log_files(spec, lower=lower, upper=upper, version=version)
    schema = log_schema(spec.declared)
    if not files:
        return spark.createDataFrame([], schema)
    rows = spark.read.schema(schema).parquet(*[file.path for file in files])
    if all(file.whole for file in files):
        return rows
    return rows.where(f"{TXN} >= {lower}L AND {TXN} < {upper}L")


def folded(rows: DataFrame, spec: StateSpec, *, lower: int, upper: int) -> DataFrame:
    """One row per key of a log's rows with lower <= txn < upper, deletes included: the declared columns,
    `_txn` and `_op`. Those of one transaction are folded as they are."""
    last = fold(rows, spec.rule) if spec.rule.keys and upper - lower > 1 else rows
    return last.select(*spec.columns, TXN, OP)


def folded_tail(spark: SparkSession, spec: StateSpec, *, lower: int, upper: int, version: int) -> DataFrame:
    """`folded` of the log's rows with lower <= txn < upper."""
    rows = log_rows(spark, spec, lower=lower, upper=upper, version=version)
    return folded(rows, spec, lower=lower, upper=upper)


def in_extent(state: DataFrame, tail: Sequence[LogFile], spec: StateSpec, *, version: int) -> DataFrame:
    """The state's rows that may have a key of the tail; Delta leaves out files by this condition.

    Where it would leave out none there is no condition, since the bounds stand in the generated code."""
    known = [file.bounds for file in tail if file.bounds is not None]
    if len(known) < len(tail) or not known:
        return state
    name = spec.rule.keys[0]
    least, most = min(low for low, _ in known), max(high for _, high in known)
    files = [_bounds(add, name) for add in _adds(spec, spec.state, version)]
    if not any(file[0] > most or file[1] < least for file in files if file is not None):
        return state
    key = F.col(quoted(name))
    return state.where(key.isNull() | key.between(F.lit(least), F.lit(most)))


def with_places(state: DataFrame, spec: StateSpec) -> DataFrame:
    """A state's declared columns, and where each row lies: its file, and its number in it."""
    return state.select(
        *spec.columns, F.col("_metadata.file_path").alias(FILE), F.col("_metadata.row_index").alias(ROW)
    )


def same_key(left: str, right: str, spec: StateSpec) -> Column:
    """Whether two rows have one key."""
    return equal_keys(
        {key: (f"{left}.{quoted(key)}", f"{right}.{quoted(key)}") for key in spec.rule.keys}, spec
    )


def equal_keys(pairs: Mapping[str, tuple[str, str]], spec: StateSpec) -> Column:
    """Whether two keys are equal, part by part, a NULL to a NULL. What can't be NULL is compared as it is:
    plain numbers are looked up much faster."""
    parts = {key: (F.col(one), F.col(other)) for key, (one, other) in pairs.items()}
    return reduce(
        Column.__and__,
        [
            one.eqNullSafe(other) if spec.declared[key].nullable else one == other
            for key, (one, other) in parts.items()
        ],
    )


def order(frame: str, rule: FoldRule, *, txn: Column | None = None) -> Column:
    """What `last` means between transactions: (sequence, txn). A state's rows stand before all of them."""
    at = F.col(f"{frame}.{TXN}") if txn is None else txn
    sequence = [F.col(f"{frame}.{quoted(rule.sequence_by)}")] if rule.sequence_by is not None else []
    return F.struct(*[column.alias(f"o{index}") for index, column in enumerate([*sequence, at])])


def without_buried(tail: DataFrame, tombstones: DataFrame | None, spec: StateSpec) -> DataFrame:
    """The tail without records that are older than their key's tombstone."""
    rule = spec.rule
    if tombstones is None or rule.sequence_by is None:
        return tail
    buried = same_key(SOURCE, _DEAD, spec) & (order(SOURCE, rule) < order(_DEAD, rule))
    return tail.alias(SOURCE).join(tombstones.alias(_DEAD), buried, "left_anti")


def equal_values(left: Column, right: Column, kind: DataType) -> Column:
    """Null-safe equality of a value of any type; a map that can't be compared counts as changed."""
    if isinstance(kind, MapType):
        if _has_map(kind.valueType) or _has_map(kind.keyType):
            return left.isNull() & right.isNull()
        return F.array_sort(F.map_entries(left)).eqNullSafe(F.array_sort(F.map_entries(right)))
    if _has_map(kind):
        return left.isNull() & right.isNull()
    return left.eqNullSafe(right)


def _has_map(kind: DataType) -> bool:
    if isinstance(kind, MapType):
        return True
    if isinstance(kind, ArrayType):
        return _has_map(kind.elementType)
    return isinstance(kind, StructType) and any(_has_map(field.dataType) for field in kind.fields)


def sent(tail: DataFrame, rows: int) -> DataFrame:
    """The tail as a join's small side."""
    return F.broadcast(tail) if rows <= BROADCAST_ROWS_MAX else tail


def compared(tail: DataFrame, state: DataFrame, spec: StateSpec, *, rows: int) -> DataFrame:
    """For each tail row whose key the state has: the key, whether it is older, whether it is the same,
    the hash of the state's row, and its place where the state has places."""
    renamed = tail.select([F.col(quoted(name)).alias(_PREFIX + name) for name in tail.columns])
    keys = equal_keys({key: (quoted(key), quoted(_PREFIX + key)) for key in spec.rule.keys}, spec)
    sequence = spec.rule.sequence_by
    older = F.lit(False)
    if sequence is not None:
        # Equal sequences fall back to the transaction, and the tail's is the later one.
        mine, theirs = F.col(quoted(_PREFIX + sequence)), F.col(quoted(sequence))
        older = F.coalesce(mine < theirs, mine.isNull() & theirs.isNotNull())
    same = [
        equal_values(F.col(quoted(_PREFIX + f.name)), F.col(quoted(f.name)), f.dataType)
        for f in spec.declared.fields
        if f.name not in spec.rule.keys
    ]
    pairs = state.join(sent(renamed, rows), keys, "inner")
    return pairs.select(
        *[F.col(quoted(key)) for key in spec.rule.keys],
        older.alias(_OLDER),
        reduce(Column.__and__, same, F.lit(True)).alias(_SAME),
        row_hash(spec.declared).alias(BEFORE),
        *_places(state),
    )


def _places(frame: DataFrame) -> list[Column]:
    return [F.col(name) for name in (FILE, ROW) if name in frame.columns]


def changes(tail: DataFrame, state: DataFrame, spec: StateSpec, *, rows: int) -> DataFrame:
    """The tail's rows that change the state: the declared columns, `_op`, the hashes of the row before
    (NULL where the key is new) and after (NULL where it goes), and the places that `state` has."""
    pairs = compared(tail, state, spec, rows=rows)
    joined = tail.alias(SOURCE).join(sent(pairs, rows).alias(_PAIRS), same_key(SOURCE, _PAIRS, spec), "left")
    exists = F.col(BEFORE).isNotNull()
    upserts = (F.col(OP) == UPSERT) & (~exists | ~(F.col(_OLDER) | F.col(_SAME)))
    deletes = (F.col(OP) == DELETE) & exists & ~F.col(_OLDER)
    chosen = joined.where(upserts | deletes).select(
        *[F.col(SOURCE + "." + quoted(name)).alias(name) for name in spec.declared.names],
        OP,
        BEFORE,
        *_places(pairs),
    )
    return chosen.withColumn(AFTER, F.when(F.col(OP) == UPSERT, row_hash(spec.declared)))


def first_changes(tail: DataFrame, spec: StateSpec) -> DataFrame:
    """What a tail changes in a state that has nothing."""
    living = tail.where(F.col(OP) == UPSERT)
    return living.select(
        *spec.columns,
        OP,
        F.lit(None).cast(LongType()).alias(BEFORE),
        row_hash(spec.declared).alias(AFTER),
    )
