"""A shard's tables at a version: its log's rows, its state's rows, and which files need opening for them.

The files of a log and of tombstones are listed by delta-rs and read as the Parquet files that they are:
through Delta's own reader Spark would first work out the table's whole snapshot, in several jobs, for each
new version.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import DateType, IntegralType, StringType, StructType

from tidemark.core.errors import Determinate
from tidemark.core.ids import TXN_NONE, Txn
from tidemark.core.listing import LogFile
from tidemark.core.seal import Part
from tidemark.delta.standing import same_rows_version
from tidemark.spark.fold import TXN, log_schema, quoted
from tidemark.spark.spec import StateSpec

_EXACT: Final = (DateType, IntegralType, StringType)


def at_version(spark: SparkSession, uri: str, version: int) -> DataFrame:
    """A Delta table at one version."""
    return spark.read.format("delta").option("versionAsOf", version).load(uri)


def read_version(spark: SparkSession, spec: StateSpec, uri: str, version: int) -> DataFrame:
    """The rows that a Delta table of a shard has at one version."""
    return at_version(spark, uri, same_rows(spec, uri, version))


def same_rows(spec: StateSpec, uri: str, version: int) -> int:
    """The newest version that has the same rows: after a compaction it has fewer files, and VACUUM takes the
    others away."""
    return same_rows_version(uri, version, spec.storage_options)


def log_files(spec: StateSpec, *, lower: int, upper: int, version: int) -> list[LogFile]:
    """The log's parts that may have rows with lower <= txn < upper, by their statistics; with the bounds of
    the key's first column."""
    found: list[LogFile] = []
    for add in _adds(spec, spec.log, version):
        # A part that doesn't say is looked into.
        first, last = _bounds(add, TXN) or (TXN_NONE, upper)
        if first < upper and last >= lower:
            part = Part(add["path"], int(add["num_records"] or 0), int(add["size_bytes"]))
            known = {key: bounds for key in spec.rule.keys[:1] if (bounds := _bounds(add, key))}
            lowest, highest = ({key: known[key][end] for key in known} for end in (0, 1))
            found.append(LogFile(part, Txn(first), Txn(last), lowest, highest))
    return sorted(found, key=lambda file: file.part.path)


def _adds(spec: StateSpec, uri: str, version: int) -> list[dict[str, Any]]:
    """The files of a Delta table at a version, with their statistics."""
    try:
        table = DeltaTable(uri, version=version, storage_options=dict(spec.storage_options))
        adds = pa.RecordBatchReader.from_stream(table.get_add_actions(flatten=True)).read_all()
    except (DeltaError, OSError) as error:
        raise Determinate(
            f"version {version} of {uri} can't be read: {error}", hint="check the store, retry"
        ) from error
    bounded = [f"{end}.{name}" for name in (TXN, *spec.rule.keys[:1]) for end in ("min", "max")]
    wanted = ["path", "num_records", "size_bytes", *(name for name in bounded if name in adds.column_names)]
    rows: list[dict[str, Any]] = adds.select(wanted).to_pylist()
    return rows


def _bounds(add: Mapping[str, Any], column: str) -> tuple[Any, Any] | None:
    """The lowest and the highest value of a column in a file; None where its statistics don't say."""
    least, most = add.get(f"min.{column}"), add.get(f"max.{column}")
    return None if least is None or most is None else (least, most)


def log_rows(spark: SparkSession, spec: StateSpec, *, lower: int, upper: int, version: int) -> DataFrame:
    """The log's rows with lower <= txn < upper, at a version of its table.

    A part that has no others is read as it is: the bounds would stand in the code that Spark generates, and
    every read would wait for new code to be compiled."""
    files = log_files(spec, lower=lower, upper=upper, version=version)
    rows = parquet_rows(spark, log_schema(spec.declared), log_paths(spec, files))
    if all(lower <= file.txn_first and file.txn_last < upper for file in files):
        return rows
    return rows.where(f"{TXN} >= {lower}L AND {TXN} < {upper}L")


def table_rows(spark: SparkSession, spec: StateSpec, uri: str, schema: StructType, version: int) -> DataFrame:
    """The rows that a table of ours has at a version, where no row is ever deleted in its place."""
    adds = _adds(spec, uri, same_rows(spec, uri, version))
    return parquet_rows(spark, schema, [f"{uri}/{add['path']}" for add in adds])


def parquet_rows(spark: SparkSession, schema: StructType, paths: Sequence[str]) -> DataFrame:
    """The rows of these files."""
    return spark.read.schema(schema).parquet(*paths) if paths else spark.createDataFrame([], schema)


def log_paths(spec: StateSpec, files: Sequence[LogFile]) -> list[str]:
    """Where the files of a log lie."""
    return [f"{spec.log}/{file.part.path}" for file in files]


def in_extent(state: DataFrame, tail: Sequence[LogFile], spec: StateSpec, *, version: int) -> DataFrame:
    """The state's rows that may have a key of the tail; Delta leaves out files by this condition.

    Where it would leave out none there is no condition, since the bounds stand in the generated code; nor
    for types whose statistics may be rounded."""
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
