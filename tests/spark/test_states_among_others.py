"""A state after many publishes, with Spark and delta-rs at work on it in between: every engine reads
the same rows, of the newest version and of the published ones, and publishing goes on.

DuckDB is left out: its Delta extension comes from a server of its own, not from a package index. The same
without Spark, with more clean-ups, is in `tests/delta/test_long_states.py`.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from pyspark.sql import SparkSession

from tests.support.state import SHARD, Row, StateRig, ordered, rows_of
from tidemark.core.publish import HistoryGone, Published
from tidemark.delta import head
from tidemark.delta.state import StateTable
from tidemark.delta.state_files import DIGEST, KEY
from tidemark.delta.state_maintenance import DeltaStateKeeper, MaintainedState
from tidemark.delta.state_status import same_rows_version
from tidemark.delta.vacuum import vacuum
from tidemark.pipeline import publish as step
from tidemark.spark.columns import log_hashed
from tidemark.spark.digest import key_hash_sql, row_hash_sql
from tidemark.spark.session import confs_set
from tidemark.spark.views import read_state

pytestmark = pytest.mark.spark
NARROW, WIDE = "k STRING, v STRING", "k STRING, v STRING, n BIGINT"
Rows = dict[str | None, tuple[Any, ...]]


def transactions(rig: StateRig, numbers: range, dice: random.Random) -> dict[int, pa.Table]:
    """The log's rows of these transactions, with their hashes, which Spark makes for all at once."""
    rows = []
    for txn in numbers:
        keys = dice.sample([None, *map(str, range(60))], dice.randint(1, 8))
        for at, key in enumerate(keys):
            op = "D" if dice.random() < 0.2 else "U"
            values = {"v": f"{key}/{txn}", "n": txn if dice.random() < 0.5 else None} if op == "U" else {}
            known = {name: value for name, value in values.items() if name in rig.spec.declared.names}
            position = {"_partition": "p", "_offset": at, "_ordinal": 0}
            rows.append({"k": key, "v": None, "_txn": txn, "_op": op} | position | known)
    table = pa.Table.from_pylist(rows, schema=rig.arrow)
    hashes = [f"{row_hash_sql(log_hashed(rig.spec.declared))} AS {DIGEST}"]
    hashes += [f"{key_hash_sql(rig.spec.keys)} AS {KEY}"]
    found = rig.spark.createDataFrame(table).selectExpr("*", *hashes).toArrow()
    fields = {field.name: field for field in found.schema}
    found = found.cast(pa.schema([rig.arrow.field(n) if n in rig.arrow.names else fields[n] for n in fields]))
    return {txn: found.filter(pa.compute.equal(found["_txn"], txn)) for txn in numbers}


def applied(rows: Rows, table: pa.Table, names: list[str]) -> Rows:
    changed = dict(rows)
    for row in table.to_pylist():
        changed.pop(row["k"], None)
        if row["_op"] == "U":
            changed[row["k"]] = tuple(row[name] for name in names)
    return changed


def by_engines(rig: StateRig, version: int | None = None) -> Mapping[str, list[Row]]:
    """The rows of a version, by each engine; without one, of the newest."""
    uri, reader = rig.spec.state, rig.spark.read.format("delta")
    reader = reader if version is None else reader.option("versionAsOf", version)
    query = QueryBuilder().register("t", DeltaTable(uri, version=version)).execute("SELECT * FROM t")
    return {
        "Spark": rows_of(reader.load(uri)),
        "delta-rs": ordered([tuple(row.values()) for row in pa.table(query.read_all()).to_pylist()]),
        "Polars": ordered(pl.read_delta(uri, version=version).rows()),
    }


def interfere(rig: StateRig, percent: float) -> None:
    """Now and then somebody else works on the table, or maintenance does."""
    keeper = DeltaStateKeeper("p", {SHARD: MaintainedState(rig.spec.uri)})
    spark, table = rig.spark, f"delta.`{rig.spec.state}`"
    match percent:
        case 20 | 70:
            spark.sql(f"OPTIMIZE {table}")
        case 30:
            DeltaTable(rig.spec.state).create_checkpoint()
        case 40:
            spark._jvm.org.apache.spark.sql.delta.DeltaLog.forTable(  # type: ignore[union-attr]
                spark._jsparkSession, rig.spec.state
            ).checkpoint()
        case 60:
            spark.sql(f"REORG TABLE {table} APPLY (PURGE)")
        case 80:
            keeper.merge(SHARD, tombstones=-1)
            keeper.purge(SHARD)
        case 90:
            keeper.vacuum(SHARD, tombstones=-1)
            DeltaTable(rig.spec.state).vacuum(dry_run=False, full=True)


@pytest.mark.parametrize("publishes", [50, pytest.param(200, marks=pytest.mark.sweep)])
def test_publishes_among_others_work_read_the_same_in_spark_too(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, publishes: int
) -> None:
    widened = publishes // 2
    monkeypatch.setattr(head, "CHECKPOINT_BYTES_MIN", 16 * head.ENTRY_BYTES_MIN)
    dice = random.Random(11)
    rig = StateRig(spark, tmp_path, ddl=NARROW, says_keys=False)
    waiting = transactions(rig, range(1, widened), dice)
    rows: Rows = {}
    published: dict[int, tuple[Published, list[Row]]] = {}
    for number in range(1, publishes + 1):
        if number == widened:
            rig = rig.widened(WIDE)
            waiting = transactions(rig, range(widened, publishes + 1), dice)
            rows = {key: (*row, None) for key, row in rows.items()}
        rig.txn = number
        rig.append_table(waiting[number])
        rows = applied(rows, waiting[number], rig.spec.declared.names)
        published[number] = rig.publish(), ordered(list(rows.values()))
        interfere(rig, 100 * number / publishes)
    last, newest = published[publishes]
    assert by_engines(rig) == dict.fromkeys(("Spark", "delta-rs", "Polars"), newest)
    assert step.verify_state(rig.control, rig.plane, SHARD) == last
    for number in (
        1,
        publishes // 5 - 1,
        widened - 1,
        publishes * 3 // 5 + 1,
        *dice.sample(sorted(published), 2),
    ):
        record, expected = published[number]
        found = by_engines(rig, record.version)
        assert found == dict.fromkeys(found, expected), f"as of transaction {number}"
        lacking = () if number >= widened else (None,)
        assert rows_of(read_state(spark, rig.spec, record)) == ordered([(*row, *lacking) for row in expected])
    check_after_vacuum(rig, published)


def check_after_vacuum(rig: StateRig, published: dict[int, tuple[Published, list[Row]]]) -> None:
    """Past the retention only the newest version is needed, and no vacuum takes anything of it."""
    last, newest = published[max(published)]
    assert vacuum(StateTable(rig.spec.state).store, now_ms=10**15, kept_ms=0)
    confs = {
        "spark.databricks.delta.retentionDurationCheck.enabled": "false",
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
    }
    with confs_set(rig.spark, confs):
        rig.spark.sql(f"VACUUM delta.`{rig.spec.state}` RETAIN 0 HOURS")
    assert by_engines(rig) == dict.fromkeys(("Spark", "delta-rs", "Polars"), newest)
    assert same_rows_version(rig.spec.state, last.version) >= last.version
    with pytest.raises(HistoryGone):
        read_state(rig.spark, rig.spec, published[2][0])
    rig.append((None, "after", 7))
    rig.publish()
    assert (None, "after", 7) in rig.state()
    assert step.verify_state(rig.control, rig.plane, SHARD) is not None
