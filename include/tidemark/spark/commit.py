"""One Delta commit that takes some keys out of a state and puts some rows in.

Every way to do it makes one version of the table and carries an application transaction and the commit's
own facts (`userMetadata`). Which one is used follows from what there is to do:

==================  ===========================================  ====================================
what changes        how                                          why
==================  ===========================================  ====================================
the first publish   `write`, which makes the table               it fails where there is a table
anything            `spark.transaction`: deletion vectors from   the state is scanned once, by the
                    the places that the comparison has found     comparison
over Spark Connect, or without deletion vectors:
new keys only       `write`, an append                           the state isn't read again
upserts             `replace_keys` by `replaceOn`                     needs nothing but a DataFrame
upserts, deletes    `merge`                                      needs nothing but SQL
==================  ===========================================  ====================================

All of them commit only on the publish that the changes were worked out against, so that a commit which
lands after its publisher died, and one that didn't know of it, never both count. `spark.transaction` asks
the table (`check_base`). The others have one means: Delta skips an application transaction whose version
is not above the table's last, without a word. So they count by their *base* (`Stamp.guarded`): the second
of two commits on one base is skipped, and its publisher finds that by reading back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from tidemark.core.errors import InvariantViolation
from tidemark.spark.fold import DELETE, OP, UPSERT, quoted
from tidemark.spark.spec import StateSpec
from tidemark.spark.standing import columns_of, guard_of
from tidemark.spark.tail import SOURCE, TARGET

LOG_DAYS_MIN: Final = 30
"""For how long Delta keeps a table's log by itself."""
_TXN_APP: Final = "spark.databricks.delta.write.txnAppId"
_TXN_VERSION: Final = "spark.databricks.delta.write.txnVersion"
_USER_METADATA: Final = "spark.databricks.delta.commitInfo.userMetadata"


@dataclass(frozen=True, slots=True)
class Stamp:
    """What a commit carries: an application transaction, above the table's last, and its own facts."""

    app_id: str
    txn: int
    metadata: str
    base: int | None = None
    """The application transaction that the table must still stand at (0 before the first), because the
    changes were worked out against it; None leaves that unchecked."""

    @property
    def guarded(self) -> Stamp:
        """The same facts, counted by the base: a second commit on this base, or on an earlier one, is
        skipped by Delta."""
        if self.base is None:
            raise InvariantViolation(f"a commit of transaction {self.txn} without a base can't be guarded")
        return Stamp(guard_of(self.app_id), self.base + 1, self.metadata)

    @property
    def options(self) -> dict[str, str]:
        return {"txnAppId": self.app_id, "txnVersion": str(self.txn), "userMetadata": self.metadata}


def table_properties(spec: StateSpec) -> dict[str, str]:
    """A new state's properties. Nothing here lets application transactions expire."""
    return {
        "delta.enableDeletionVectors": str(spec.deletion_vectors).lower(),
        "delta.enableChangeDataFeed": str(spec.change_data_feed).lower(),
        **retention_of(spec),
    }


def retention_of(spec: StateSpec) -> dict[str, str]:
    """For how long files stay that the newest version doesn't need, in Delta's words: a VACUUM by anybody
    goes by it. Their versions stay for as long: without its log a file can't be read, and Delta refuses a
    table that would keep files for longer."""
    return {
        "delta.deletedFileRetentionDuration": f"interval {spec.history_days} days",
        "delta.logRetentionDuration": f"interval {max(spec.history_days, LOG_DAYS_MIN)} days",
    }


def write(frame: DataFrame, spec: StateSpec, stamp: Stamp, *, mode: str) -> None:
    """Append, or overwrite everything; makes the table where there is none."""
    writer = frame.write.format("delta").mode(mode)
    for name, value in {**table_properties(spec), **stamp.options}.items():
        writer = writer.option(name, value)
    writer.save(spec.state)


def widened(spark: SparkSession, spec: StateSpec) -> bool:
    """Whether there is a state. It has all declared columns then: those that it lacked come in a commit that
    changes no row."""
    there = columns_of(spec.state, spec.storage_options)
    lacking = [field for field in spec.declared.fields if field.name not in there]
    if there and lacking:
        added = ", ".join(f"{quoted(field.name)} {_ddl(field.dataType)}" for field in lacking)
        table = f"ALTER TABLE delta.{quoted(spec.state)}"
        if "timestamp_ntz" in added:
            # Delta enables it by itself where a table is made with such a column, and not where it gets one.
            spark.sql(f"{table} SET TBLPROPERTIES ('delta.feature.timestampNtz' = 'supported')")
        spark.sql(f"{table} ADD COLUMNS ({added})")
    return bool(there)


def _ddl(kind: DataType) -> str:
    match kind:
        case ArrayType():
            return f"ARRAY<{_ddl(kind.elementType)}>"
        case MapType():
            return f"MAP<{_ddl(kind.keyType)}, {_ddl(kind.valueType)}>"
        case StructType():
            return f"STRUCT<{', '.join(f'{quoted(one.name)}: {_ddl(one.dataType)}' for one in kind.fields)}>"
        case _:
            return kind.simpleString()


def replace_keys(rows: DataFrame, spec: StateSpec, stamp: Stamp) -> None:
    """Put the rows in, each in the place of the row that has its key."""
    condition = spec.same_key(TARGET, SOURCE)
    writer = rows.alias(SOURCE).write.format("delta").mode("overwrite")
    options = {"replaceOn": condition, "targetAlias": TARGET, **stamp.options}
    for name, value in options.items():
        writer = writer.option(name, value)
    writer.save(spec.state)


def merge(spark: SparkSession, changed: DataFrame, spec: StateSpec, stamp: Stamp) -> None:
    """The same by a MERGE, which takes the stamp from the session: set, used, unset."""
    condition = spec.same_key(TARGET, SOURCE)
    names = [quoted(name) for name in spec.declared.names]
    assigned = ", ".join(f"{name} = {SOURCE}.{name}" for name in names)
    values = ", ".join(f"{SOURCE}.{name}" for name in names)
    confs = {_USER_METADATA: stamp.metadata, _TXN_APP: stamp.app_id, _TXN_VERSION: str(stamp.txn)}
    with _view(F.broadcast(changed.select(*spec.columns, OP))) as view, confs_set(spark, confs):
        spark.sql(
            f"MERGE INTO delta.{quoted(spec.state)} AS {TARGET} USING {view} AS {SOURCE} ON {condition}"
            f" WHEN MATCHED AND {SOURCE}.{OP} = '{DELETE}' THEN DELETE"
            f" WHEN MATCHED THEN UPDATE SET {assigned}"
            f" WHEN NOT MATCHED AND {SOURCE}.{OP} = '{UPSERT}'"
            f" THEN INSERT ({', '.join(names)}) VALUES ({values})"
        )


@contextmanager
def _view(frame: DataFrame) -> Iterator[str]:
    """A temporary view for SQL, under a name that nobody else has."""
    name = f"tidemark_{uuid4().hex}"
    frame.createOrReplaceTempView(name)
    try:
        yield name
    finally:
        frame.sparkSession.catalog.dropTempView(name)


@contextmanager
def confs_set(spark: SparkSession, confs: Mapping[str, str]) -> Iterator[None]:
    """Session settings for a while; afterwards they are as they were."""
    before = {name: spark.conf.get(name, None) for name in confs}
    try:
        for name, value in confs.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)
