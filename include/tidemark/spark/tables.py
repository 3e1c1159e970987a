"""A shard's tables at a version: its log's rows, its state's rows, and which files need opening for them.

A log's parts are listed by delta-rs and read as the Parquet files that they are: through Delta's own reader
Spark would first work out the log's whole snapshot, in several jobs, for each new version.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from tidemark.core.errors import Determinate
from tidemark.spark.fold import TXN, log_schema, quoted
from tidemark.spark.spec import StateSpec
from tidemark.spark.standing import same_rows_version


def at_version(spark: SparkSession, uri: str, version: int) -> DataFrame:
    """A Delta table at one version."""
    return spark.read.format("delta").option("versionAsOf", version).load(uri)


def read_version(spark: SparkSession, spec: StateSpec, uri: str, version: int) -> DataFrame:
    """The rows that a Delta table of a shard has at one version.

    They are read at the newest version that has the same rows: Delta refuses a version that is older than
    its retention and not the newest one, and after a compaction the newest one has fewer files."""
    return at_version(spark, uri, same_rows_version(uri, version, spec.storage_options))


@dataclass(frozen=True, slots=True)
class LogPart:
    """One of a log's parts, as far as it was asked for."""

    path: str
    rows: int
    whole: bool
    """Whether its statistics say that all of its rows were asked for."""
    bounds: tuple[Any, Any] | None
    """The lowest and the highest of its keys' first parts; None where it does not say."""


def log_files(spec: StateSpec, *, lower: int, upper: int, version: int) -> list[LogPart]:
    """The log's parts that may have rows with lower <= txn < upper, by their statistics."""
    found = []
    for add in _adds(spec, spec.log, version):
        # A part that doesn't say is looked into.
        least, most = _bounds(add, TXN) or (lower, lower)
        if least < upper and most >= lower:
            whole = _bounds(add, TXN) is not None and least >= lower and most < upper
            path, rows = f"{spec.log}/{add['path']}", int(add.get("num_records") or 0)
            found.append(LogPart(path, rows, whole, _bounds(add, *spec.rule.keys[:1])))
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


def in_extent(state: DataFrame, tail: Sequence[LogPart], spec: StateSpec, *, version: int) -> DataFrame:
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
