"""One Delta commit that takes some keys out of a state and puts some rows in.

Every way to do it makes one version of the table and carries the application transaction and the
commit's own facts (`userMetadata`). Which one is used follows from what there is to do:

==================  ===========================================  ====================================
what changes        how                                          why
==================  ===========================================  ====================================
the first publish   `write`, which makes the table               it fails where there is a table
new keys only       `insert`                                     the state isn't read at all
upserts, deletes    `delete_and_insert`: Delta's own DELETE      a MERGE scans the state twice and
                    and write inside one transaction             joins full rows
without a JVM at hand, or without deletion vectors:
new keys only       `write`, an append                           needs nothing but a DataFrame
upserts             `replace` by `replaceOn`                     the same
upserts, deletes    `merge`                                      needs nothing but SQL
==================  ===========================================  ====================================

`delete_and_insert` is what Delta 4.4 does for `replaceOn` (a DELETE with an EXISTS subquery, then a
write, in one `OptimisticTransaction`), with the difference that the keys to take out are not only
those of the rows to put in. It uses classes of Delta that are not a public interface, so the version
of Delta is pinned, and a test compares it with `merge`.

`insert` and `delete_and_insert` commit only on the publish that the changes were worked out against
(`check_base`). The others can't ask that; there a second publish on one base is noticed afterwards, by
`read_standing`. Delta's own check of application transactions is never relied on to refuse a second
commit: it skips a version that it has seen without a word, and lets any higher one pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from tidemark.core.errors import Determinate
from tidemark.spark.fold import DELETE, OP, UPSERT, quoted
from tidemark.spark.tail import EXISTS, SOURCE, TARGET, StateSpec

_ALLOW_EXISTS: Final = "spark.databricks.delta.delete.allowExistsSubquery"
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
    def options(self) -> dict[str, str]:
        return {"txnAppId": self.app_id, "txnVersion": str(self.txn), "userMetadata": self.metadata}


def table_properties(spec: StateSpec) -> dict[str, str]:
    """A new state's properties. Nothing here lets application transactions expire."""
    return {
        "delta.enableDeletionVectors": str(spec.deletion_vectors).lower(),
        "delta.enableChangeDataFeed": str(spec.change_data_feed).lower(),
    }


def key_condition(spec: StateSpec) -> str:
    """The same key, as SQL: NULL equals NULL."""
    parts = (f"{TARGET}.{quoted(key)} <=> {SOURCE}.{quoted(key)}" for key in spec.rule.keys)
    return " AND ".join(parts)


def write(frame: DataFrame, spec: StateSpec, stamp: Stamp, *, mode: str) -> None:
    """Append, or overwrite everything; makes the table where there is none."""
    writer = frame.write.format("delta").mode(mode)
    for name, value in {**table_properties(spec), **stamp.options}.items():
        writer = writer.option(name, value)
    writer.save(spec.state)


def replace(rows: DataFrame, spec: StateSpec, stamp: Stamp) -> None:
    """Put the rows in, each in the place of the row that has its key."""
    condition = key_condition(spec)
    writer = rows.alias(SOURCE).write.format("delta").mode("overwrite")
    options = {"replaceOn": condition, "targetAlias": TARGET, **stamp.options}
    for name, value in options.items():
        writer = writer.option(name, value)
    writer.save(spec.state)


def check_base(transaction: Any, stamp: Stamp) -> None:
    """Refuse a table that was published to since the changes were worked out.

    A publisher's lock goes with its process, but a commit that the process had asked for may still land:
    its JVM or its Connect server goes on. Asking the transaction also makes Delta refuse the commit when
    another publish lands after this look."""
    found = max(transaction.txnVersion(stamp.app_id), 0)
    if stamp.base is not None and found != stamp.base:
        raise Determinate(
            f"the state stands at transaction {found}, and the changes were worked out against {stamp.base}",
            hint="publish again: a commit of a publisher that died has landed meanwhile",
        )


def classic_jvm(spark: SparkSession) -> Any | None:
    """The JVM of a classic session; None over Spark Connect, which has none on this side."""
    return getattr(spark, "_jvm", None) if hasattr(spark, "_jsparkSession") else None


def delete_and_insert(spark: SparkSession, changed: DataFrame, spec: StateSpec, stamp: Stamp) -> None:
    """Take out every changed key that is there, put in every upsert, in one transaction of Delta."""
    jvm: Any = spark._jvm
    session = spark._jsparkSession
    delta, option = jvm.org.apache.spark.sql.delta, jvm.scala.Option
    keys = changed.where(F.col(EXISTS)).select([F.col(quoted(key)) for key in spec.rule.keys])
    condition = key_condition(spec)
    with _view(keys) as view:
        # A session of its own: the subquery is allowed to this one DELETE, and to nothing else.
        own = session.cloneSession()
        own.conf().set(_ALLOW_EXISTS, "true")
        log = delta.DeltaLog.forTable(session, spec.state)
        transaction = log.startTransaction(option.empty(), option.empty())
        check_base(transaction, stamp)
        table = spec.state.replace("`", "``")
        exists = f"EXISTS (SELECT 1 FROM {view} AS {SOURCE} WHERE {condition})"
        parsed = own.sessionState().sqlParser().parsePlan(
            f"DELETE FROM delta.`{table}` AS {TARGET} WHERE {exists}"
        )  # fmt: skip
        command = own.sessionState().analyzer().execute(parsed)
        try:
            removed = command.performDelete(own, log, transaction)._1()
        finally:
            # Delta made the clone the thread's active session; plans made later must not see it.
            jvm.SparkSession.setActiveSession(session)
        added = transaction.writeFiles(changed.where(F.col(OP) == UPSERT).select(*spec.columns)._jdf)
    _finish(jvm, transaction, removed.appendedAll(added), stamp, replaced=condition)


def insert(spark: SparkSession, rows: DataFrame, spec: StateSpec, stamp: Stamp) -> None:
    """Put rows with new keys in; unlike an append by `write`, only on the base that they were new to."""
    jvm: Any = spark._jvm
    option = jvm.scala.Option
    log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, spec.state)
    transaction = log.startTransaction(option.empty(), option.empty())
    check_base(transaction, stamp)
    _finish(jvm, transaction, transaction.writeFiles(rows._jdf), stamp)


def _finish(jvm: Any, transaction: Any, actions: Any, stamp: Stamp, *, replaced: str | None = None) -> None:
    """Commit a transaction of Delta with our stamp on it."""
    delta, option = jvm.org.apache.spark.sql.delta, jvm.scala.Option
    now = option.apply(jvm.java.lang.System.currentTimeMillis())
    moved = delta.actions.SetTransaction(stamp.app_id, stamp.txn, now)
    none = option.empty()
    modes = jvm.org.apache.spark.sql.SaveMode
    operation = getattr(delta, "DeltaOperations$Write")(
        modes.Append if replaced is None else modes.Overwrite,
        none, none, option.apply(stamp.metadata), none, none, none, option.apply(replaced), none,
    )  # fmt: skip
    transaction.commit(actions.appended(moved), operation)


def merge(spark: SparkSession, changed: DataFrame, spec: StateSpec, stamp: Stamp) -> None:
    """The same by a MERGE, which takes the stamp from the session: set, used, unset."""
    condition = key_condition(spec)
    names = [quoted(name) for name in spec.declared.names]
    assigned = ", ".join(f"{name} = {SOURCE}.{name}" for name in names)
    values = ", ".join(f"{SOURCE}.{name}" for name in names)
    table = spec.state.replace("`", "``")
    confs = {_USER_METADATA: stamp.metadata, _TXN_APP: stamp.app_id, _TXN_VERSION: str(stamp.txn)}
    with _view(F.broadcast(changed.select(*spec.columns, OP))) as view, _confs(spark, confs):
        spark.sql(
            f"MERGE INTO delta.`{table}` AS {TARGET} USING {view} AS {SOURCE} ON {condition}"
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
def _confs(spark: SparkSession, confs: Mapping[str, str]) -> Iterator[None]:
    """Session settings for one statement."""
    try:
        for name, value in confs.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name in confs:
            spark.conf.unset(name)
