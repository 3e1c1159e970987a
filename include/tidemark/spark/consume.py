"""A batch of a shard's transactions as a DataFrame: one Spark read of exactly the files that were looked at.

Pages carry checksums, and every read of a batch checks them: without that a flipped bit inside a page can
come out of Parquet as another value, in silence.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from tidemark.core.ids import Txn
from tidemark.core.listing import Condition
from tidemark.core.seal import Part
from tidemark.spark.confs import confs_set
from tidemark.spark.fold import DELETE, LOG_COLUMNS, OP, TXN, UPSERT, log_schema, quoted
from tidemark.spark.spec import StateSpec

CHECK_PAGES: Final = "parquet.page.verify-checksum.enabled"
LISTING: Final = {"spark.sql.sources.parallelPartitionDiscovery.parallelism": "16"}
"""Spark asks for the sizes of many files in a job; by default with a task for each of them."""


def changes_of(
    spark: SparkSession,
    spec: StateSpec,
    parts: Sequence[Part],
    *,
    lower: Txn,
    upper: Txn,
    conditions: Sequence[Condition] = (),
) -> DataFrame:
    """The log's rows with lower <= txn < upper: the declared columns, `_txn`, `_op` and the position."""
    schema = log_schema(spec.declared)
    if not parts:
        return spark.createDataFrame([], schema)
    files = [f"{spec.log}/{part.path}" for part in parts]
    with confs_set(spark, LISTING):
        rows = spark.read.schema(schema).option(CHECK_PAGES, "true").parquet(*files)
    return _met(rows.where(f"{TXN} >= {lower}L AND {TXN} < {upper}L"), spec, conditions)


def snapshot_rows(
    rows: DataFrame, spec: StateSpec, *, as_of: Txn, conditions: Sequence[Condition] = ()
) -> DataFrame:
    """A shard's current rows in the shape of changes: upserts at the snapshot's transaction, without a
    position, because what they were made of may be long gone."""
    made = {TXN: F.lit(as_of), OP: F.lit(UPSERT)}
    added = [made.get(one.name, F.lit(None)).cast(one.dataType).alias(one.name) for one in LOG_COLUMNS]
    return _met(rows.select(*spec.columns, *added), spec, conditions)


def _met(rows: DataFrame, spec: StateSpec, conditions: Sequence[Condition]) -> DataFrame:
    """The rows that meet every condition. A delete has no values but its key's, so it meets the others."""
    met = [_condition(one) if one.column in spec.rule.keys else _or_delete(one) for one in conditions]
    return rows.where(reduce(Column.__and__, met)) if met else rows


def _or_delete(condition: Condition) -> Column:
    return _condition(condition) | (F.col(OP) == DELETE)


def _condition(condition: Condition) -> Column:
    column, value = F.col(quoted(condition.column)), F.lit(condition.value)
    match condition.comparison:
        case "=":
            return column == value
        case "<":
            return column < value
        case "<=":
            return column <= value
        case ">":
            return column > value
        case _:
            return column >= value
