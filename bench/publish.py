"""What a publish costs beside a MERGE, and a fresh read beside one of the state: `python -m bench.publish`.

One state of `--rows` rows that don't compress, then a transaction of `--batch` upserts (half of them updates
of keys spread over the whole state, the rest new keys), then one with deletes. Every contender starts from
a copy of the same state, in the same session, and must end with the same digest:

- *naive*: `MERGE` as most people write it, with Spark's own 200 shuffle partitions;
- *tuned*: the same with the source broadcast and as many partitions as cores;
- *publish*: the whole step, with losers and rows that change nothing left out, digest and read-back.

The best of `--rounds`, in seconds of wall time; prints Markdown.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from tests.support.sealing import sealed_put
from tidemark.core.checksum import Digest
from tidemark.core.ids import ShardId, Txn, WriterToken
from tidemark.core.log import LogEntry
from tidemark.core.publish import Published
from tidemark.core.seal import Part
from tidemark.delta.control import DeltaControl
from tidemark.delta.log import parts_folder
from tidemark.delta.state_files import DIGEST, KEY
from tidemark.ports.planes import Tail
from tidemark.spark.columns import UPSERT, log_hashed, log_schema
from tidemark.spark.digest import key_hash_sql, row_hash_sql
from tidemark.spark.fold import FoldRule
from tidemark.spark.publish import digest_of_rows
from tidemark.spark.session import build_session
from tidemark.spark.state import SparkStatePlane
from tidemark.spark.state_table import StateSpec, StateSpecs
from tidemark.spark.tail import folded_tail
from tidemark.spark.views import Pins, fresh

SHARD = ShardId("t")
DDL = "k STRING, v BIGINT, a STRING, b STRING, c DOUBLE"
STEP = 37  # Coprime to the sizes, so that updated keys lie all over the state.


def rows_of(spark: SparkSession, lower: int, count: int, key: str, op: str, txn: int) -> DataFrame:
    """Rows in the shape of a log's; `key` is an expression over `id`."""
    living = op == UPSERT
    random = [("v", "id"), ("a", "uuid()"), ("b", "uuid()"), ("c", "rand()")]
    values = [F.expr(text if living else "NULL").alias(name) for name, text in random]
    kinds = StructType.fromDDL(DDL)
    return (
        spark.range(lower, lower + count)
        .select(F.expr(f"concat('k', {key})").alias("k"), *values, F.col("id").alias("_offset"))
        .select(
            *[F.col(field.name).cast(field.dataType) for field in kinds.fields],
            F.lit(txn).cast("bigint").alias("_txn"), F.lit(op).alias("_op"), F.lit("p").alias("_partition"),
            "_offset", F.lit(0).cast("bigint").alias("_ordinal"),
        )
        .selectExpr(
            "*", f"{row_hash_sql(log_hashed(kinds))} AS {DIGEST}",
            f"{key_hash_sql(StructType([kinds['k']]))} AS {KEY}",
        )
    )  # fmt: skip


class Bench:
    """One warehouse below a folder, with a state of so many rows published from its first transaction."""

    def __init__(self, spark: SparkSession, folder: Path, rows: int, batch: int) -> None:
        from deltalake import Schema
        from pyspark.sql.pandas.types import to_arrow_schema

        declared = StructType.fromDDL(DDL)
        self.spark, self.folder, self.rows, self.batch = spark, folder, rows, batch
        first = rows_of(spark, 0, rows, "id", UPSERT, 1)
        self.control = DeltaControl(
            str(folder), "p", {SHARD: Schema.from_arrow(to_arrow_schema(log_schema(declared)))}
        )
        self.spec = StateSpec(SHARD, f"{folder}/p/{SHARD}", declared, FoldRule(("k",)), deletion_vectors=True)
        self.log(1, first.repartition(8))
        version, commit = self.plane(self.spec).publish(
            SHARD, Tail(Txn(1), Txn(2), self.log_version, link=1), base=None, token=WriterToken("first")
        )
        self.base = Published(1, version, commit)

    @property
    def log_version(self) -> int:
        return self.control.log(SHARD).head().version

    def plane(self, spec: StateSpec) -> SparkStatePlane:
        return SparkStatePlane(self.spark, StateSpecs("p", {SHARD: spec}))

    def log(self, txn: int, frame: DataFrame) -> None:
        """Append one transaction to the log."""
        token = WriterToken(f"w{txn}")
        folder = Path(self.spec.log) / parts_folder(Txn(txn), token)
        frame.write.parquet(str(folder), mode="overwrite")
        paths = sorted(folder.glob("*.parquet"))
        counts = {
            row[0].rsplit("/", 1)[1]: row[1]
            for row in self.spark.read.parquet(str(folder)).groupBy(F.input_file_name()).count().collect()
        }
        stats = {"minValues": {"_txn": txn}, "maxValues": {"_txn": txn}, "nullCount": {"_txn": 0}}
        parts = tuple(
            Part(
                f"{parts_folder(Txn(txn), token)}/{path.name}", counts[path.name], path.stat().st_size,
                json.dumps({"numRecords": counts[path.name], **stats}),
            )
            for path in paths if path.name in counts
        )  # fmt: skip
        log = self.control.log(SHARD)
        log.commit(log.head(), sealed_put(self.control, SHARD, LogEntry(Txn(txn), token, parts)))

    def copy(self, name: str) -> StateSpec:
        """A shard of its own with the same log and a copy of the state."""
        uri = self.folder / "copies" / name
        shutil.rmtree(uri, ignore_errors=True)
        uri.mkdir(parents=True)
        (uri / "log").symlink_to(self.spec.log)
        shutil.copytree(self.spec.state, uri / "state")
        return StateSpec(SHARD, str(uri), self.spec.declared, self.spec.rule)


def contenders(bench: Bench, txn: int) -> dict[str, Callable[[StateSpec], object]]:
    spark = bench.spark

    def tail(spec: StateSpec) -> DataFrame:
        frame = folded_tail(spark, spec, lower=2, upper=txn + 1, version=bench.log_version)
        return frame.drop("_txn")

    def merge(spec: StateSpec, changed: DataFrame) -> None:
        changed.createOrReplaceTempView("changed")
        spark.sql(
            f"MERGE INTO delta.`{spec.state}` t USING changed s ON t.k = s.k"
            f" WHEN MATCHED AND s._op = 'D' THEN DELETE"
            f" WHEN MATCHED THEN UPDATE SET k = s.k, v = s.v, a = s.a, b = s.b, c = s.c"
            f" WHEN NOT MATCHED AND s._op = 'U'"
            f" THEN INSERT (k, v, a, b, c) VALUES (s.k, s.v, s.a, s.b, s.c)"
        )

    def naive(spec: StateSpec) -> None:
        spark.conf.set("spark.sql.shuffle.partitions", "200")
        try:
            merge(spec, tail(spec))
        finally:
            spark.conf.set("spark.sql.shuffle.partitions", "2")

    def whole(spec: StateSpec) -> None:
        bounds = Tail(Txn(2), Txn(txn + 1), bench.log_version, link=txn)
        bench.plane(spec).publish(SHARD, bounds, base=bench.base, token=WriterToken("bench"))

    return {
        "naive MERGE": naive,
        "tuned MERGE": lambda spec: merge(spec, F.broadcast(tail(spec))),
        "publish": whole,
    }


def timed(work: Callable[[], object]) -> float:
    begun = time.monotonic()
    work()
    return time.monotonic() - begun


def measure(bench: Bench, txn: int, rounds: int) -> None:
    """One table: each contender's best time, after checking that all end the same."""
    digests: dict[str, Digest] = {}
    print("| way | seconds |\n| --- | --- |")
    for name, work in contenders(bench, txn).items():
        best = float("inf")
        for turn in range(rounds):
            spec = bench.copy(f"{txn}-{name.replace(' ', '-')}-{turn}")
            best = min(best, timed(lambda spec=spec, work=work: work(spec)))  # type: ignore[misc]
            digests[name] = digest_of_rows(bench.spark.read.format("delta").load(spec.state), spec)
            shutil.rmtree(spec.uri)
        print(f"| {name} | {best:.1f} |", flush=True)
    same = len(set(digests.values())) == 1
    print(f"\nall the same: {'yes' if same else digests}\n", flush=True)


def reading(bench: Bench, txn: int, rounds: int) -> None:
    """A full scan of the state and of the fresh view over it, all columns, rows thrown away."""
    spark, spec = bench.spark, bench.spec
    pins = Pins(bench.base, bench.log_version, Txn(txn + 1))

    def scan(frame: DataFrame) -> None:
        frame.write.format("noop").mode("overwrite").save()

    state = min(timed(lambda: scan(spark.read.format("delta").load(spec.state))) for _ in range(rounds))
    fresh_seconds = min(timed(lambda: scan(fresh(spark, spec, pins))) for _ in range(rounds))
    print("| read | seconds |\n| --- | --- |")
    print(
        f"| state | {state:.2f} |\n| fresh | {fresh_seconds:.2f} ({fresh_seconds / state:.2f}x) |\n",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--batch", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tidemark-bench-") as folder:
        root = Path(folder)
        spark = build_session(
            "bench", master="local[2]", scratch_folder=root / "scratch", confs={"spark.driver.memory": "2g"}
        )
        try:
            bench = Bench(spark, root, given.rows, given.batch)
            half, spread = given.batch // 2, f"(id * {STEP} % {given.rows})"
            updates = rows_of(spark, 0, half, spread, UPSERT, 2)
            bench.log(2, updates.unionByName(rows_of(spark, given.rows, half, "id", UPSERT, 2)))
            print(f"## {given.rows:,} rows, {given.batch:,} upserts\n", flush=True)
            measure(bench, 2, given.rounds)
            reading(bench, 2, given.rounds)
            fifth = given.batch // 5
            deletes = rows_of(spark, half, fifth, spread, "D", 3)
            bench.log(3, deletes.unionByName(rows_of(spark, 0, half, spread, UPSERT, 3)))
            print(f"## {given.rows:,} rows, {given.batch:,} upserts and {fifth:,} deletes\n", flush=True)
            measure(bench, 3, given.rounds)
        finally:
            spark.stop()


if __name__ == "__main__":
    main()
