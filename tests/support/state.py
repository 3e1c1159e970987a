"""A shard with a real log, published by a real Spark: append transactions, publish, look."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import Schema
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from tests.support import tables
from tests.support.sealing import sealed_put
from tidemark.core.ids import ShardId, Txn, WriterToken
from tidemark.core.ledger import Committed
from tidemark.core.log import LogEntry
from tidemark.core.publish import Published
from tidemark.core.seal import Part
from tidemark.delta.control import DeltaControl
from tidemark.delta.log import parts_folder
from tidemark.delta.state_files import DIGEST, KEY
from tidemark.pipeline import publish as step
from tidemark.spark.columns import log_hashed
from tidemark.spark.digest import key_hash_sql, row_hash_sql
from tidemark.spark.fold import FoldRule
from tidemark.spark.parts import stats_of
from tidemark.spark.state import SparkStatePlane
from tidemark.spark.state_table import StateSpec, StateSpecs
from tidemark.spark.views import Pins, fresh

SHARD = ShardId("t")
PIPELINE = "p"
ARROW = {
    "string": pa.string(), "bigint": pa.int64(), "int": pa.int32(), "double": pa.float64(),
    "timestamp": pa.timestamp("us", tz="UTC"), "timestamp_ntz": pa.timestamp("us"), "date": pa.date32(),
    "decimal(38,2)": pa.decimal128(38, 2),
    "array<struct<a-b:int>>": pa.list_(pa.struct([("a-b", pa.int32())])),
}  # fmt: skip
LOG_FIELDS = [("_txn", pa.int64()), ("_op", pa.string()), ("_partition", pa.string()),
              ("_offset", pa.int64()), ("_ordinal", pa.int64())]  # fmt: skip

Row = tuple[Any, ...]


class Gone(tuple[Any, ...]):
    """A delete: the key's parts, then its sequence where there is one."""


def gone(*known: Any) -> Gone:
    return Gone(known)


@dataclass
class StateRig:
    """One shard below `root`. A change is a row of the declared columns, or `gone(…)`.

    Its log says the keys and digests of its rows, as ingest writes it, so a publish goes by the key index;
    one whose log does not is left to Spark's scan."""

    spark: SparkSession
    root: Path
    ddl: str = "k STRING, v STRING"
    keys: tuple[str, ...] = ("k",)
    sequence_by: str | None = None
    lateness: int | None = None
    change_data_feed: bool = False
    deletion_vectors: bool = True
    txn: int = 0
    says_keys: bool = True
    control: DeltaControl = field(init=False)
    spec: StateSpec = field(init=False)
    plane: SparkStatePlane = field(init=False)

    def __post_init__(self) -> None:
        declared = StructType.fromDDL(self.ddl)
        self.arrow = pa.schema(
            [(f.name, ARROW[f.dataType.simpleString()]) for f in declared.fields] + LOG_FIELDS
        )
        warehouse = str(self.root)
        self.control = DeltaControl(warehouse, PIPELINE, {SHARD: Schema.from_arrow(self.arrow)})
        self.spec = StateSpec(
            SHARD, f"{warehouse}/{PIPELINE}/{SHARD}", declared, FoldRule(self.keys, self.sequence_by),
            self.lateness, self.change_data_feed, self.deletion_vectors,
        )  # fmt: skip
        self.plane = SparkStatePlane(self.spark, StateSpecs(PIPELINE, {SHARD: self.spec}))

    def append(self, *changes: Row, corrects: bool = False) -> int:
        """One transaction: rows as declared, and deletes."""
        self.txn += 1
        names = self.spec.declared.names
        rows = []
        for index, change in enumerate(changes):
            if isinstance(change, Gone):
                known = [*self.keys, *([self.sequence_by] if self.sequence_by else [])]
                row, op = dict(zip(known, change, strict=True)), "D"
            else:
                row, op = dict(zip(names, change, strict=True)), "U"
            position = {"_txn": self.txn, "_op": op}
            if not corrects:
                position |= {"_partition": "p", "_offset": index, "_ordinal": 0}
            rows.append(dict.fromkeys(names) | row | position)
        self.append_table(pa.Table.from_pylist(rows, schema=self.arrow))
        return self.txn

    def append_table(self, table: pa.Table) -> None:
        log_folder = Path(self.spec.log)
        token = WriterToken(f"w{self.txn}")
        folder = parts_folder(Txn(self.txn), token)
        (log_folder / folder).mkdir(parents=True, exist_ok=True)
        path = f"{folder}/part-00000.parquet"
        pq.write_table(self._hashed(table) if self.says_keys else table, log_folder / path)
        stats = stats_of(pq.read_metadata(log_folder / path))
        part = Part(path, table.num_rows, (log_folder / path).stat().st_size, stats)
        log = self.control.log(SHARD)
        entry = LogEntry(Txn(self.txn), token, (part,))
        # A log that gets a column has moved on when it has it.
        outcomes = (log.commit(log.head(), sealed_put(self.control, SHARD, entry)) for _ in range(2))
        assert any(isinstance(outcome, Committed) for outcome in outcomes)

    def _hashed(self, table: pa.Table) -> pa.Table:
        """With the digest of each row and the hash of its key, which Spark computes as it plans."""
        hashed = {DIGEST: row_hash_sql(log_hashed(self.spec.declared))}
        hashed |= {KEY: key_hash_sql(self.spec.keys)} if self.keys else {}
        rows = self.spark.createDataFrame(table).selectExpr(*hashed.values()).collect()
        for place, name in enumerate(hashed):
            kind = {DIGEST: pa.int64(), KEY: pa.binary()}[name]
            table = table.append_column(name, pa.array([row[place] for row in rows], kind))
        return table

    def publish(self, token: str = "") -> Any:
        token = token or f"publisher{self.txn}"
        return step.publish(self.control, self.plane, SHARD, token=WriterToken(token))

    def rebuild(self, token: str = "rebuilder", base: Published | None = None) -> Published:
        return step.rebuild(self.control, self.plane, SHARD, token=WriterToken(token), base=base)

    @property
    def last(self) -> Published | None:
        return step.last_published(self.control, SHARD)

    def state_frame(self) -> DataFrame:
        return self.spark.read.format("delta").load(self.spec.state)

    def state(self) -> list[Row]:
        """By delta-rs: Spark would need several jobs to list the files of each new version."""
        found = tables.rows_of(Path(self.spec.state), self.spec.declared.names)
        return ordered([tuple(map(as_collected, row)) for row in found])

    def fresh(self, *, base: Published | None = None) -> list[Row]:
        return rows_of(self.fresh_frame(base=base))

    def fresh_frame(self, *, base: Published | None = None) -> DataFrame:
        head = self.control.log(SHARD).head()
        return fresh(self.spark, self.spec, Pins(base or self.last, head.version, head.upper))

    def changes(self, version: int) -> list[Row]:
        """The change feed of one version: (+ or -, *row)."""
        feed = (
            self.spark.read.format("delta").option("readChangeFeed", "true")
            .option("startingVersion", version).option("endingVersion", version).load(self.spec.state)
        )  # fmt: skip
        names = self.spec.declared.names
        signs = {"insert": "+", "update_postimage": "+", "delete": "-", "update_preimage": "-"}
        found = feed.select("_change_type", *names).collect()
        return ordered([(signs[row[0]], *row[1:]) for row in found])

    def widened(self, ddl: str) -> StateRig:
        """The same shard, declared with more columns."""
        return replace(self, ddl=ddl)

    def again(self, name: str, **changed: Any) -> StateRig:
        """The same settings in another folder."""
        return replace(self, root=self.root / name, txn=0, **changed)


def as_collected(value: Any) -> Any:
    """A value of delta-rs as PySpark collects it: a time without its zone, by the clock of this machine."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone().replace(tzinfo=None)
    return value


def rows_of(frame: DataFrame) -> list[Row]:
    return ordered([tuple(row) for row in frame.collect()])


def ordered(rows: Sequence[Row]) -> list[Row]:
    return sorted(rows, key=repr)
