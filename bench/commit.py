"""What a committed transaction costs, beside a plain Spark job and beside `MERGE`: `python -m bench.commit`.

The table gets `--rows` rows by a first load from JSON files. Then `--batches` batches of 50,000 records each
(80 % updates of random keys, 15 % inserts, 5 % deletes, in five JSON files) go to each contender in turn, in
one warm session; the report has the medians and their ratios:

- *commit*: a whole run of the product, from binding to checkpoint, without a publish;
- *plain*: a Spark job that reads the same files with the same schema and writes them as Parquet;
- *naive MERGE*: as most people write it, with Spark's defaults; *tuned MERGE*: deletion vectors, the source
  broadcast, as many partitions as cores; *delta-rs merge*: without a JVM.

With `--digests`, a replay of the last batch is also run without its hashes and sums, in turn with whole ones:
the difference is what proving costs an ingest.

At the end the fresh read must have the rows of the tuned MERGE's table. Also measured: the first load against
a plain read and write, a replay against the commit, and a run in a new process that finds everything done.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from deltalake import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from tidemark.app.deployment import Deployment, new_token
from tidemark.app.views import View, read
from tidemark.config import load_pipeline
from tidemark.core.binding import Owner
from tidemark.core.ids import Txn
from tidemark.pipeline.context import Attempt
from tidemark.pipeline.run import replay, run
from tidemark.spark import digest
from tidemark.spark.session import build_session

BATCH = 50_000
FILES = 5
SCHEMA = "id BIGINT, name STRING, amount DOUBLE, note STRING, version BIGINT"
PIPELINE = """\
name: bench
source: {type: files, path: in, format: json, settle_seconds: 0}
warehouse: warehouse
shards:
  - name: rows
    schema: id BIGINT NOT NULL, name STRING, amount DOUBLE, note STRING, version BIGINT
    keys: [id]
    apply_as_deletes: op = 'D'
    publish: manual
"""


def records(spark: SparkSession, count: int, *, version: int, rows: int, first: bool) -> DataFrame:
    """Records in the source's shape: a first load of new keys, or a batch over `rows` old ones."""
    kind = F.rand(seed=version)
    if first:
        key, op = F.col("id"), F.lit("U")
    else:
        key = F.when(kind < 0.15, F.lit(rows + version * BATCH) + F.col("id")).otherwise(
            F.pmod(F.xxhash64("id", F.lit(version)), F.lit(rows))
        )
        op = F.when(kind > 0.95, F.lit("D")).otherwise(F.lit("U"))
    return spark.range(count).select(
        key.alias("id"),
        F.concat(F.lit("name "), F.col("id")).alias("name"),
        F.rand(seed=version + 1).alias("amount"),
        F.sha2(F.col("id").cast("string"), 256).alias("note"),
        F.lit(version).cast("bigint").alias("version"),
        op.alias("op"),
    )


class Bench:
    """One pipeline in a folder, and the tables of its peers."""

    def __init__(self, spark: SparkSession, folder: Path, rows: int) -> None:
        self.spark, self.folder, self.rows = spark, folder, rows
        (folder / "in").mkdir()
        (folder / "bench.yaml").write_text(PIPELINE)
        self.deployment = Deployment(load_pipeline(folder / "bench.yaml"), lambda: spark)
        self.batches = 0

    def land(self, count: int, files: int, *, first: bool = False) -> list[str]:
        """Write one batch beside the source, then move it in; returns the files."""
        version = self.batches
        frame = records(self.spark, count, version=version, rows=self.rows, first=first)
        made = self.folder / f"made-{version}"
        frame.repartition(files).write.json(str(made))
        landed = []
        for number, path in enumerate(sorted(made.glob("part-*.json"))):
            target = self.folder / "in" / f"{version:04}-{number:03}.json"
            shutil.move(path, target)
            landed.append(str(target))
        self.batches += 1
        return landed

    def commit(self) -> None:
        run(self.deployment.pipeline, Attempt(Owner(f"run{self.batches}"), new_token()))

    def plain(self, files: list[str]) -> None:
        out = str(self.folder / "plain")
        frame = self.spark.read.schema(f"{SCHEMA}, op STRING").json(files)
        frame.write.mode("overwrite").parquet(out)

    def source(self, files: list[str]) -> DataFrame:
        """The batch as a MERGE needs it: one record per key, the last in the files' order."""
        lines = self.spark.read.schema(f"{SCHEMA}, op STRING").json(files)
        placed = lines.select("*", "_metadata.file_path", F.monotonically_increasing_id().alias("line"))
        names = ["name", "amount", "note", "version", "op"]
        last = placed.groupBy("id").agg(F.max_by(F.struct(*names), F.struct("file_path", "line")).alias("r"))
        return last.select("id", *[f"r.{name}" for name in names])

    def merge(self, table: str, files: list[str], *, tuned: bool) -> None:
        confs = {"spark.sql.shuffle.partitions": "2" if tuned else "200"}
        for name, value in confs.items():
            self.spark.conf.set(name, value)
        frame = self.source(files)
        (F.broadcast(frame) if tuned else frame).createOrReplaceTempView("batch")
        self.spark.sql(
            f"MERGE INTO delta.`{self.folder / table}` t USING batch s ON t.id = s.id"
            " WHEN MATCHED AND s.op = 'D' THEN DELETE"
            " WHEN MATCHED THEN UPDATE SET"
            " name = s.name, amount = s.amount, note = s.note, version = s.version"
            " WHEN NOT MATCHED AND s.op = 'U' THEN INSERT (id, name, amount, note, version)"
            " VALUES (s.id, s.name, s.amount, s.note, s.version)"
        )
        self.spark.conf.set("spark.sql.shuffle.partitions", "2")

    def merge_delta_rs(self, files: list[str]) -> None:
        table = DeltaTable(str(self.folder / "delta_rs"))
        values = {name: f"s.{name}" for name in ("id", "name", "amount", "note", "version")}
        (
            table.merge(self.source(files).toArrow(), "t.id = s.id", source_alias="s", target_alias="t")
            .when_matched_delete("s.op = 'D'")
            .when_matched_update(values)
            .when_not_matched_insert(values, "s.op = 'U'")
            .execute()
        )

    def make_peers(self) -> None:
        """The same rows as plain Delta tables, as each peer likes them."""
        loaded = read(self.deployment, "rows", view=View.FRESH)
        for name in ("naive", "tuned", "delta_rs"):
            vectors = str(name == "tuned").lower()
            writer = loaded.write.format("delta").option("delta.enableDeletionVectors", vectors)
            writer.save(str(self.folder / name))


def timed(work: Callable[[], object]) -> float:
    begun = time.monotonic()
    work()
    return time.monotonic() - begun


def report(rows: list[tuple[str, float, float]], base: str) -> None:
    print(f"\n| what | seconds | against {base} |\n| --- | ---: | ---: |")
    for name, seconds, ratio in rows:
        print(f"| {name} | {seconds:.2f} | {ratio:.2f} |", flush=True)


def measure(bench: Bench, batches: int, *, peers: bool) -> None:
    for _ in range(2):  # The first jobs of a JVM measure its compiler.
        warm = bench.land(1_000, 2, first=True)
        bench.commit()
        bench.plain(warm)
    load = bench.land(bench.rows, max(FILES, bench.rows // 500_000), first=True)
    first, plain = timed(bench.commit), timed(lambda: bench.plain(load))
    report([("first load", first, first / plain), ("plain read and write", plain, 1.0)], "plain")
    if peers:
        bench.make_peers()
    times: dict[str, list[float]] = {}
    for _ in range(batches):
        files = bench.land(BATCH, FILES)
        works: dict[str, Callable[[], object]] = {"commit": bench.commit}
        works["plain read and write"] = lambda files=files: bench.plain(files)  # type: ignore[misc]
        if peers:
            works["naive MERGE"] = lambda files=files: bench.merge("naive", files, tuned=False)  # type: ignore[misc]
            works["tuned MERGE"] = lambda files=files: bench.merge("tuned", files, tuned=True)  # type: ignore[misc]
            works["delta-rs merge"] = lambda files=files: bench.merge_delta_rs(files)  # type: ignore[misc]
        for name, work_of in works.items():
            times.setdefault(name, []).append(timed(work_of))
    last = Txn(bench.deployment.control.seals.head().upper - 1)
    attempt = Attempt(Owner("prover"), new_token())
    proof = timed(lambda: replay(bench.deployment.pipeline, attempt, txn_from=last, txn_to=last))
    medians = {name: statistics.median(found) for name, found in times.items()} | {"replay": proof}
    rows = [(name, value, value / medians["commit"]) for name, value in medians.items()]
    report(rows, "commit")
    if peers:
        fresh = read(bench.deployment, "rows", view=View.FRESH)
        peer = bench.spark.read.format("delta").load(str(bench.folder / "tuned")).select(*fresh.columns)
        same = fresh.exceptAll(peer).isEmpty() and peer.exceptAll(fresh).isEmpty()
        print(f"\nthe same rows as the tuned MERGE's table: {'yes' if same else 'NO'}", flush=True)


@contextmanager
def without_digests() -> Iterator[None]:
    """Count rows, and nothing else: no hash is computed, and no sum of hashes."""

    def counts(value: Column | str, *, prefix: str) -> list[Column]:
        rest = [F.expr(f"max(0L) AS {prefix}{part}") for part in digest.DIGEST_PARTS[1:]]
        return [F.expr(f"count({value}) AS {prefix}{digest.COUNT}"), *rest]

    with (
        mock.patch("tidemark.spark.fold.partials", counts),
        mock.patch("tidemark.spark.fold.row_hash_sql", return_value="1L"),
        mock.patch("tidemark.spark.read.row_hash_sql", return_value="1L"),
    ):
        yield


def digests(bench: Bench, rounds: int) -> None:
    """The cost of digests: the same transaction read, decoded and folded with and without them."""
    last = bench.deployment.control.bindings.head().upper - 1
    (binding,) = bench.deployment.control.bindings.read(last, last + 1)
    plane = bench.deployment.pipeline.plane
    found: dict[str, list[float]] = {"with digests": [], "without": []}
    for _ in range(rounds):
        found["with digests"].append(timed(lambda: plane.replay(binding)))  # type: ignore[arg-type]
        with without_digests():
            found["without"].append(timed(lambda: plane.replay(binding)))  # type: ignore[arg-type]
    base = statistics.median(found["without"])
    medians = [(name, statistics.median(times)) for name, times in found.items()]
    report([(name, value, value / base) for name, value in medians], "without")


def nothing_to_do(folder: Path) -> None:
    """A run in a new process that finds everything committed, against an empty Python."""
    command = [sys.executable, "-m", "tidemark.cli", "run", str(folder / "bench.yaml")]
    words = {"a run with nothing to do": command, "an empty Python": [sys.executable, "-c", "pass"]}
    found = {
        name: statistics.median(
            timed(lambda line=line: subprocess.run(line, check=True, capture_output=True))  # type: ignore[misc]
            for _ in range(5)
        )
        for name, line in words.items()
    }
    base = found["an empty Python"]
    report([(name, value, value / base) for name, value in found.items()], "an empty Python")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--batches", type=int, default=5)
    parser.add_argument("--memory", default="2g", help="the heap that Spark gets")
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--digests", type=int, default=0, metavar="ROUNDS", help="measure digests apart")
    options = parser.parse_args()
    spark = build_session("bench", master="local[2]", confs={"spark.driver.memory": options.memory})
    with tempfile.TemporaryDirectory(prefix="tidemark-bench-") as made:
        print(f"## Commit: {options.rows:,} rows, batches of {BATCH:,}, heap {options.memory}")
        bench = Bench(spark, Path(made), options.rows)
        measure(bench, options.batches, peers=not options.no_peers)
        if options.digests:
            digests(bench, options.digests)
        nothing_to_do(Path(made))
    spark.stop()


if __name__ == "__main__":
    main()
