"""A transaction of Delta on a state, driven from Python: what DELETE and write do, in one commit.

Delta's own commands look for the rows to remove by a scan of their own. A publish has read the state already
and knows where those rows lie, so it hands the places over: Delta makes deletion vectors of them, and the
rows that come are written in the same transaction. The state is scanned once.

Nothing here is a public interface of Delta, so its version is pinned, and a test compares the outcome with
a MERGE's. It needs a JVM on this side; over Spark Connect the ways of `spark.commit` are used.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame, SparkSession

from tidemark.core.errors import Determinate
from tidemark.spark.commit import Stamp
from tidemark.spark.spec import StateSpec
from tidemark.spark.standing import guard_of
from tidemark.spark.tail import FILE, ROW, SOURCE, TARGET


def classic_jvm(spark: SparkSession) -> Any | None:
    """The JVM of a classic session; None over Spark Connect, which has none on this side."""
    return getattr(spark, "_jvm", None) if hasattr(spark, "_jsparkSession") else None


class StateTransaction:
    """One open transaction: its version is what the changes are worked out against."""

    def __init__(self, spark: SparkSession, spec: StateSpec) -> None:
        self._spark, self._spec = spark, spec
        jvm: Any = spark._jvm
        self._jvm = jvm
        self._none = self._jvm.scala.Option.empty()
        self._log = self._jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, spec.state)
        self._transaction = self._log.startTransaction(self._none, self._none)
        self._actions = self._seq()
        self._replaces = False

    @property
    def version(self) -> int:
        return int(self._transaction.snapshot().version())

    def check_base(self, stamp: Stamp) -> None:
        """Refuse a table that was published to since the record that the changes start from.

        A publisher's lock goes with its process, but a commit that the process had asked for may still
        land: its JVM or its Connect server goes on. Asking the transaction also makes Delta refuse the
        commit when another publish lands after this look."""
        found = max(int(self._transaction.txnVersion(stamp.app_id)), 0)
        # A publish over Connect counts by its base alone: one on ours has moved that count past it.
        based = int(self._transaction.txnVersion(guard_of(stamp.app_id)))
        if stamp.base is not None and max(found, based) > stamp.base:
            raise Determinate(
                f"the state stands at transaction {max(found, based)} or later, and the changes were worked"
                f" out against {stamp.base}",
                hint="publish again: a commit of a publisher that died has landed meanwhile",
            )

    def put(self, rows: DataFrame, *, files: int) -> None:
        """Write rows that come with the commit; without rows no file is made."""
        self._actions = self._transaction.writeFiles(rows.coalesce(files)._jdf).appendedAll(self._actions)

    def take_out(self, places: DataFrame) -> None:
        """Take out the rows that lie there (`with_places`)."""
        self._actions = self._removed(places).appendedAll(self._actions)
        self._replaces = True

    def _removed(self, places: DataFrame) -> Any:
        """The actions that take rows out by deletion vectors, each joined to what its file had."""
        jvm, session, transaction = self._jvm, self._spark._jsparkSession, self._transaction
        delta, functions = jvm.org.apache.spark.sql.delta, jvm.org.apache.spark.sql.functions
        kinds = jvm.org.apache.spark.sql.types.DataTypes
        always = jvm.org.apache.spark.sql.catalyst.expressions.Literal(True, kinds.BooleanType)
        candidates = transaction.filterFiles(self._seq(always), True)
        vectors = delta.commands.DeletionVectorBitmapGenerator.buildRowIndexSetsForFilesMatchingCondition(
            session, transaction, True, places._jdf, candidates, always,
            self._some(functions.col(FILE)), self._some(functions.col(ROW)),
        )  # fmt: skip
        helper = delta.commands.DMLWithDeletionVectorsHelper
        by_name = helper.generateCandidateFileMap(self._log.dataPath(), candidates)
        touched = helper.findFilesWithMatchingRows(transaction, by_name, vectors)
        prefix = delta.stats.StatsCollectionUtils.getDataSkippingStringPrefixLength(
            session, transaction.metadata()
        )
        return helper.processUnmodifiedData(session, touched, transaction.snapshot(), prefix)._1()

    def commit(self, stamp: Stamp) -> None:
        """Commit all of it with our stamp on it."""
        jvm, actions = self._jvm, self._actions
        delta, modes = jvm.org.apache.spark.sql.delta, jvm.org.apache.spark.sql.SaveMode
        now = self._some(jvm.java.lang.System.currentTimeMillis())
        actions = actions.appended(delta.actions.SetTransaction(stamp.app_id, stamp.txn, now))
        if stamp.base is not None:
            guard = delta.actions.SetTransaction(guard_of(stamp.app_id), stamp.base + 1, now)
            actions = actions.appended(guard)
        write = getattr(delta, "DeltaOperations$Write")
        condition = self._some(self._spec.same_key(TARGET, SOURCE)) if self._replaces else self._none
        none = self._none
        operation = write(
            modes.Overwrite if self._replaces else modes.Append,
            none, none, self._some(stamp.metadata), none, none, none, condition, none,
        )  # fmt: skip
        self._transaction.commit(actions, operation)

    def _some(self, value: Any) -> Any:
        return self._jvm.scala.Option.apply(value)

    def _seq(self, *values: Any) -> Any:
        made = self._jvm.java.util.ArrayList()
        for value in values:
            made.add(value)
        return self._jvm.org.apache.spark.api.python.PythonUtils.toSeq(made)
