"""Tombstones: the deleted keys of a shard with `sequence_by`, so that a late older record stays out.

A row is a key, its sequence and its transaction. They are written before the state's commit, and more of
them than needed do no harm: a tombstone only ever says what the log says too. So a publish that died is
simply done again. Each publish records the table's version that belongs to it; readers pin that one.

Without a lateness they are only ever added to, and a key's last one counts. With one, a tombstone goes
when no record that could lose to it can come any more: its sequence is further than the lateness below
the watermark of what the *previous* publish had.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import LongType, StructField, StructType

from tidemark.core.ledger import Conflict
from tidemark.core.publish import VERSION_NONE
from tidemark.spark.fold import DELETE, OP, TXN, is_too_late, quoted, sequence_number
from tidemark.spark.spec import StateSpec
from tidemark.spark.state_write import NextVersion
from tidemark.spark.table_metadata import description, retention_of
from tidemark.spark.tables import table_rows


def read_tombstones(spark: SparkSession, spec: StateSpec, version: int) -> DataFrame | None:
    """The last tombstone of each key, at a version; None where the shard has none."""
    if spec.rule.sequence_by is None or version == VERSION_NONE:
        return None
    return _last(_rows(spark, spec, version), spec)


def _rows(spark: SparkSession, spec: StateSpec, version: int) -> DataFrame:
    names = [*spec.rule.keys, str(spec.rule.sequence_by)]
    schema = StructType([StructField(name, spec.declared[name].dataType) for name in names])
    return table_rows(spark, spec, spec.tombstones, schema.add(TXN, LongType()), version)


def _last(rows: DataFrame, spec: StateSpec) -> DataFrame:
    sequence = F.col(quoted(str(spec.rule.sequence_by)))
    last = F.max(F.struct(sequence.alias("sequence"), F.col(TXN).alias("txn"))).alias("last")
    keys = [F.col(quoted(key)) for key in spec.rule.keys]
    return (
        rows.groupBy(*keys)
        .agg(last)
        .select(*keys, F.col("last.sequence").alias(str(spec.rule.sequence_by)), F.col("last.txn").alias(TXN))
    )


def bury(
    tail: DataFrame,
    spec: StateSpec,
    *,
    base: int,
    watermark: int | None,
    afresh: bool = False,
) -> int | Conflict:
    """Add the tail's deletes, let go what is too late, and return the version to read from now on; `Conflict`
    where another publisher has added some meanwhile.

    `afresh` forgets what was there, for a rebuild from the first transaction."""
    sequence = spec.rule.sequence_by
    if sequence is None or not spec.rule.keys:
        return VERSION_NONE
    spark = tail.sparkSession
    columns = [F.col(quoted(name)) for name in (*spec.rule.keys, sequence)]
    rows = tail.where(F.col(OP) == DELETE).select(*columns, F.col(TXN))
    if not afresh and rows.isEmpty():
        return base
    line = None if afresh or watermark is None or spec.lateness is None else watermark - spec.lateness
    whole = afresh
    if line is not None and base != VERSION_NONE:
        number = sequence_number(F.col(quoted(sequence)), spec.declared[sequence].dataType)
        too_late = is_too_late(number, watermark=watermark, lateness=spec.lateness)
        rows, whole = _last(rows.unionByName(_rows(spark, spec, base)), spec).where(~too_late), True
    version = NextVersion(spec.tombstones, spec.storage_options)
    added = version.write(rows)
    gone = list(version.head.files) if whole else []
    after = sum(file.rows for file in added) + (0 if whole else version.head.rows)
    said = description(version.head, rows.schema, retention_of(spec))
    outcome = version.commit("WRITE", after, added=added, removed=gone, **said)
    return outcome if isinstance(outcome, Conflict) else outcome.version
