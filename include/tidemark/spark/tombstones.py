"""Tombstones: the deleted keys of a shard with `sequence_by`, so that a late, older record does not bring
them back.

A row is a key, its sequence and its transaction. Tombstones are written before the state's commit, and
extra ones are harmless, because the log has the same deletions. So a publish that died is repeated. Each
publish records the version of the tombstone table that belongs to it; readers pin that version.

Publishes append tombstones, and the last one of a key counts. With a lateness, maintenance removes those
that no later record can lose to (`delta.state_maintenance.too_late`).

A correction removes the earlier tombstones of its key; only then a table is rewritten. From that commit on,
the table says the correction's transaction (`CORRECTED`), and takes no tombstones of a publish that ends
below it: a publisher that has slept through a correction would bring tombstones back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import LongType, StructField, StructType

from tidemark.core.ids import TXN_NONE, Txn
from tidemark.core.ledger import Conflict
from tidemark.core.publish import VERSION_NONE, Published
from tidemark.delta.head import TableHead
from tidemark.delta.state import NewFile
from tidemark.delta.state_status import same_rows_version
from tidemark.spark.columns import DELETE, OP, SINCE, TXN, quoted
from tidemark.spark.state_table import NextVersion, StateSpec, description, retention_of
from tidemark.spark.tables import table_rows

CORRECTED: Final = "tidemark.corrected"
"""The application transaction of a tombstone table: the last correction that it has."""
ROWS_PER_FILE: Final = 250_000
_DEAD: Final = "_tidemark_dead"
_TAIL: Final = "_tidemark_tail"


def read_tombstones(spark: SparkSession, spec: StateSpec, base: Published | None) -> DataFrame | None:
    """The tombstones of a publish, of a key perhaps several; None if the shard has none."""
    if spec.rule.sequence_by is None or base is None or base.commit.tombstones == VERSION_NONE:
        return None
    version = same_rows_version(
        spec.tombstones, base.commit.tombstones, spec.storage_options, published=base.txn
    )
    return table_rows(spark, spec, spec.tombstones, _schema(spec), version, txn=base.txn)


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
    txn: Txn,
    corrects: bool,
    afresh: bool = False,
) -> int | Conflict:
    """Append the deletes of a folded tail that ends at `txn`, remove what corrections void, and return the
    version to read from now on; `Conflict` if another publisher has committed meanwhile.

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
        return version.head.version
    kept = None
    if corrected and not afresh and version.head.files:
        old = table_rows(tail.sparkSession, spec, spec.tombstones, _schema(spec), version.head.version)
        kept = _if_fewer(without_corrected(old, tail, spec), old, spec)
    added = version.write((rows if kept is None else rows.unionAll(kept)).select("*", *spec.key_hash))
    return tombstoned(
        version,
        spec,
        added,
        afresh=afresh or kept is not None,
        kept=kept is not None,
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
    afresh: bool = False,
    kept: bool = False,
    corrected: Txn = TXN_NONE,
) -> int | Conflict:
    """Commit new tombstones, `afresh` in place of all earlier ones, of which some may be `kept`; `corrected`
    is the tail's last correction."""
    head = version.head
    gone = list(head.files) if afresh else []
    after = sum(file.rows for file in added) + head.rows - sum(head.files[path].live for path in gone)
    described: dict[str, Any] = dict(
        description(head, _schema(spec), retention_of(spec), afresh=afresh and not kept)
    )
    if corrected > head.txns.get(CORRECTED, TXN_NONE):
        described["txns"] = {CORRECTED: int(corrected)}
    outcome = version.commit("WRITE", after, added=added, removed=gone, **described)
    return outcome if isinstance(outcome, Conflict) else outcome.version
