"""Tombstones: the deleted keys of a shard with `sequence_by`, so that a late, older record does not bring
them back.

A row is a key, its sequence and its transaction. Tombstones are written before the state's commit, and
extra ones are harmless, because the log has the same deletions. So a publish that died is repeated. Each
publish records the version of the tombstone table that belongs to it; readers pin that version.

Publishes append tombstones, and the last one of a key counts. With a lateness, a tombstone expires when no
record can lose to it any more: its sequence is more than the lateness below the watermark of the *previous*
publish. Whole files expire, once all tombstones in them have; nothing is rewritten.

A correction removes the earlier tombstones of its key; only then a table is rewritten. From that commit on,
the table says the correction's transaction (`CORRECTED`), and takes no tombstones of a publish that ends
below it: a publisher that has slept through a correction would bring tombstones back.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import LongType, StructField, StructType

from tidemark.core.ids import TXN_NONE, Txn
from tidemark.core.ledger import Conflict
from tidemark.core.publish import VERSION_NONE
from tidemark.delta.head import TableHead
from tidemark.delta.state import NewFile
from tidemark.spark.fold import DELETE, OP, SINCE, TXN
from tidemark.spark.sql import quoted
from tidemark.spark.state_table import NextVersion, StateSpec, description, retention_of
from tidemark.spark.tables import table_rows

CORRECTED: Final = "tidemark.corrected"
"""The application transaction of a tombstone table: the last correction that it has."""
ROWS_PER_FILE: Final = 250_000
_DEAD: Final = "_tidemark_dead"
_TAIL: Final = "_tidemark_tail"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def read_tombstones(spark: SparkSession, spec: StateSpec, version: int) -> DataFrame | None:
    """The last tombstone of each key at a version; None if the shard has none."""
    if spec.rule.sequence_by is None or version == VERSION_NONE:
        return None
    return last_tombstones(_rows(spark, spec, version), spec)


def _rows(spark: SparkSession, spec: StateSpec, version: int) -> DataFrame:
    return table_rows(spark, spec, spec.tombstones, _schema(spec), version)


def _schema(spec: StateSpec) -> StructType:
    names = [*spec.rule.keys, str(spec.rule.sequence_by)]
    schema = StructType([StructField(name, spec.declared[name].dataType) for name in names])
    return schema.add(TXN, LongType())


def last_tombstones(rows: DataFrame, spec: StateSpec) -> DataFrame:
    """The last tombstone of each key."""
    sequence = F.col(quoted(str(spec.rule.sequence_by)))
    last = F.max(F.struct(sequence.alias("sequence"), F.col(TXN).alias("txn"))).alias("last")
    keys = [F.col(quoted(key)) for key in spec.rule.keys]
    return (
        rows.groupBy(*keys)
        .agg(last)
        .select(*keys, F.col("last.sequence").alias(str(spec.rule.sequence_by)), F.col("last.txn").alias(TXN))
    )


def write_tombstones(
    tail: DataFrame,
    spec: StateSpec,
    *,
    base: int,
    txn: Txn,
    watermark: int | None,
    corrects: bool,
    afresh: bool = False,
) -> int | Conflict:
    """Append the deletes of a folded tail that ends at `txn`, remove expired files and what corrections void,
    and return the version to read from now on; `Conflict` if another publisher has committed meanwhile.

    `corrects` is whether the tail may have corrections. `afresh` removes all earlier tombstones, for a
    rebuild from the first transaction.
    """
    sequence = spec.rule.sequence_by
    if sequence is None or not spec.rule.keys:
        return VERSION_NONE
    rows = tombstones_in(tail, spec)
    corrected = Txn((tail.agg(F.max(SINCE)).first() or [None])[0] or TXN_NONE) if corrects else TXN_NONE
    version = NextVersion(spec.tombstones, spec.storage_options)
    if is_overtaken(version.head, txn):
        return Conflict()
    if not afresh and not corrected and rows.isEmpty():
        return base
    kept = None
    if corrected and not afresh and version.head.files:
        old = _rows(tail.sparkSession, spec, version.head.version)
        kept = _if_fewer(without_corrected(old, tail, spec), old, spec)
    added = version.write((rows if kept is None else rows.unionAll(kept)).select("*", *spec.key_hash))
    return tombstoned(
        version,
        spec,
        added,
        watermark=watermark,
        afresh=afresh or kept is not None,
        corrected=corrected,
    )


def tombstones_in(tail: DataFrame, spec: StateSpec) -> DataFrame:
    """The tombstones that a folded tail leaves. A correction deletes without a sequence where the key needs
    none."""
    columns = [F.col(quoted(name)) for name in (*spec.rule.keys, str(spec.rule.sequence_by))]
    needed = (F.col(OP) == DELETE) & (F.col(SINCE).isNull() | columns[-1].isNotNull())
    return tail.where(needed).select(*columns, F.col(TXN))


def without_corrected(tombstones: DataFrame, tail: DataFrame, spec: StateSpec) -> DataFrame:
    """The tombstones that no correction in the tail voids."""
    void = F.expr(spec.same_key(_DEAD, _TAIL)) & (F.col(f"{_DEAD}.{TXN}") < F.col(f"{_TAIL}.{SINCE}"))
    corrected = tail.where(F.col(SINCE).isNotNull())
    return tombstones.alias(_DEAD).join(corrected.alias(_TAIL), void, "left_anti")


def _if_fewer(kept: DataFrame, rows: DataFrame, spec: StateSpec) -> DataFrame | None:
    """The rows that are kept, in files by their sequence, because files expire by it; None if all are."""
    count = rows.count()
    if kept.count() == count:
        return None
    sequence = F.col(quoted(str(spec.rule.sequence_by)))
    return kept.repartitionByRange(-(-count // ROWS_PER_FILE), sequence)


def is_overtaken(head: TableHead, txn: Txn) -> bool:
    """Whether tombstones have been written for a correction that a publish up to `txn` doesn't have."""
    return head.txns.get(CORRECTED, TXN_NONE) > txn


def tombstoned(
    version: NextVersion,
    spec: StateSpec,
    added: Sequence[NewFile],
    *,
    watermark: int | None,
    afresh: bool = False,
    corrected: Txn = TXN_NONE,
) -> int | Conflict:
    """Commit new tombstones and the removal of expired files; `corrected` is the tail's last correction."""
    head = version.head
    gone = list(head.files) if afresh else _too_late(head, spec, watermark)
    after = sum(file.rows for file in added) + head.rows - sum(head.files[path].live for path in gone)
    described: dict[str, Any] = dict(description(head, _schema(spec), retention_of(spec)))
    if corrected > head.txns.get(CORRECTED, TXN_NONE):
        described["txns"] = {CORRECTED: int(corrected)}
    outcome = version.commit("WRITE", after, added=added, removed=gone, **described)
    return outcome if isinstance(outcome, Conflict) else outcome.version


def _too_late(head: TableHead, spec: StateSpec, watermark: int | None) -> list[str]:
    """The files whose tombstones have all expired, by their statistics. A file without statistics stays."""
    if watermark is None or spec.lateness is None:
        return []
    name, line = str(spec.rule.sequence_by), watermark - spec.lateness
    found = []
    for path, file in head.files.items():
        stats = json.loads(file.add.get("stats") or "{}")
        highest = _number(stats.get("maxValues", {}).get(name))
        if highest is not None and highest < line and not stats.get("nullCount", {}).get(name):
            found.append(path)
    return found


def _number(bound: object) -> int | None:
    """A bound in statistics in the unit of `fold.sequence_number_sql`: itself, days or microseconds."""
    if isinstance(bound, int):
        return bound
    if not isinstance(bound, str):
        return None
    try:
        if "T" not in bound:
            return (date.fromisoformat(bound) - _EPOCH.date()).days
        at = datetime.fromisoformat(bound)
    except ValueError:
        return None
    return (at.replace(tzinfo=at.tzinfo or UTC) - _EPOCH) // timedelta(microseconds=1)
