"""What a transaction costs here and elsewhere, by the size of the table: `python -m bench.peers`.

For each of `--sizes` (millions of rows) a table is loaded, then batches of 50,000 records (85 % updates of
random keys, 15 % new ones; then, on tables of their own, 5 % deletes among them) go to every contender in
turn, in one session that a smaller table has warmed up, from the same JSON files:

- *commit*: a whole run of the product, from binding to checkpoint, without a publish;
- *publish, every transaction*: the state follows each of them; *publish, every ten*: one publish of ten
  batches, a tenth of its time. What the product costs in all is commit and publish together. The first
  publish after the load makes the index: it is a row of its own, and in no median;
- *naive MERGE*: as most people write it, with Spark's defaults and without deletion vectors;
- *tuned MERGE*: deletion vectors, the source broadcast, as many partitions as cores;
- *delta-rs merge*: without a JVM;
- *Iceberg merge-on-read*: format 3 (deletion vectors), the source broadcast;
- *Parquet*: the batch read and written as plain Parquet, which nobody can be much faster than.

Medians over `--batches` (five at least) and three publishes of ten. After a hundred publishes the state is
scanned, and a new table with the same rows. The tables of all peers but the naive one, which gets one batch
of each kind, must end with the rows of the state. Writes `docs/benchmarks.json`, and from that the report
(`bench.report`); with `--add`, sizes that are there already and were measured in this way stay.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from deltalake import __version__ as delta_rs_version
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from bench.commit import BATCH, FILES, Bench, records, timed
from bench.report import RESULTS, TEN, medians, write_report
from tidemark.app.deployment import new_token
from tidemark.app.views import View, read
from tidemark.core.ids import ShardId
from tidemark.pipeline.publish import publish, verify_state
from tidemark.runtime import jars as ivy
from tidemark.runtime.jars import fetch, jar_paths, read_lock
from tidemark.runtime.machine import home
from tidemark.spark.session import build_session

LOCK = Path(__file__).with_name("jars.lock")
ROWS = ShardId("rows")
TOGETHER = 10
TENS = 3
BATCHES_MIN = 5
PUBLISHES_BEFORE_SCAN = 100
ICEBERG = "ice.bench.rows"
VALUES = ("id", "name", "amount", "note", "version")
WARM_ROWS = 200_000
"""All contenders work on a small table first, which is not counted: the first few dozen jobs of a JVM measure
its compiler."""


def bench_session(folder: Path, memory: str) -> SparkSession:
    """A session with the product's jars and the peers', and a catalog for Iceberg in the folder."""
    peers, jars = home() / "bench-jars", read_lock(LOCK)
    fetch(peers, jars, ivy.download_jars)
    paths = [*jar_paths(), *(peers / jar.coordinate.filename for jar in jars)]
    confs = {
        "spark.jars": ",".join(map(str, paths)),
        "spark.driver.memory": memory,
        "spark.sql.catalog.ice": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.ice.type": "hadoop",
        "spark.sql.catalog.ice.warehouse": str(folder / "iceberg"),
    }
    return build_session("bench", master="local[2]", scratch_folder=folder / "scratch", confs=confs)


class Peers(Bench):
    """One pipeline, and the tables of its peers, with batches of either kind."""

    publishes = 0

    def land_kind(self, *, deletes: bool) -> list[str]:
        """A batch as `land` makes it, where deletes may be upserts instead."""
        frame = records(self.spark, BATCH, version=self.batches, rows=self.rows, first=False)
        if not deletes:
            frame = frame.withColumn("op", F.lit("U"))
        made = self.folder / f"made-{self.batches}"
        frame.repartition(FILES).write.json(str(made))
        landed = []
        for number, path in enumerate(sorted(made.glob("part-*.json"))):
            target = self.folder / "in" / f"{self.batches:04}-{number:03}.json"
            path.rename(target)
            landed.append(str(target))
        self.batches += 1
        return landed

    def publish(self) -> None:
        work = self.deployment
        publish(work.control, work.state(), ROWS, token=new_token())
        self.publishes += 1

    def make_peers(self) -> None:
        super().make_peers()
        loaded = self.spark.read.format("delta").load(str(self.folder / "tuned"))
        modes = {f"write.{verb}.mode": "merge-on-read" for verb in ("merge", "update", "delete")}
        writer = loaded.writeTo(ICEBERG).using("iceberg").tableProperty("format-version", "3")
        for name, value in (modes | {"write.merge.distribution-mode": "none"}).items():
            writer = writer.tableProperty(name, value)
        writer.create()

    def merge_iceberg(self, files: list[str]) -> None:
        F.broadcast(self.source(files)).createOrReplaceTempView("batch")
        assigned = ", ".join(f"{name} = s.{name}" for name in VALUES[1:])
        self.spark.sql(
            f"MERGE INTO {ICEBERG} t USING batch s ON t.id = s.id"
            f" WHEN MATCHED AND s.op = 'D' THEN DELETE WHEN MATCHED THEN UPDATE SET {assigned}"
            f" WHEN NOT MATCHED AND s.op = 'U' THEN INSERT ({', '.join(VALUES)})"
            f" VALUES ({', '.join(f's.{name}' for name in VALUES)})"
        )

    def tables(self) -> dict[str, DataFrame]:
        delta = self.spark.read.format("delta")
        return {
            "tuned MERGE": delta.load(str(self.folder / "tuned")),
            "delta-rs merge": delta.load(str(self.folder / "delta_rs")),
            "Iceberg merge-on-read": self.spark.table(ICEBERG),
        }


def scan(frame: DataFrame) -> None:
    """Read every row and column. Delta can't hand a table with deletion vectors to the sink `noop`."""
    frame.agg(F.bit_xor(F.xxhash64(*frame.columns))).first()


def measure_kind(bench: Peers, batches: int, tens: int, *, deletes: bool) -> dict[str, Any]:
    """Seconds of every contender for one kind of batch, reads among them."""
    times: dict[str, list[float]] = {}
    reads: dict[str, list[float]] = {}

    def take(into: dict[str, list[float]], name: str, work: Callable[[], object]) -> None:
        seconds = timed(work)
        into.setdefault(name, []).append(seconds)
        print(f"{bench.rows:,} rows, batch {bench.batches}: {name} {seconds:.2f} s", flush=True)

    for number in range(batches):
        files = bench.land_kind(deletes=deletes)
        take(times, "Parquet", lambda files=files: bench.plain(files))  # type: ignore[misc]
        take(times, "commit", bench.commit)
        # Whoever reads a version first waits for Delta to work out its files, whatever is read.
        read(bench.deployment, ROWS, view=View.STATE).first()
        take(reads, "fresh", lambda: scan(read(bench.deployment, ROWS, view=View.FRESH)))
        take(reads, "state", lambda: scan(read(bench.deployment, ROWS, view=View.STATE)))
        take(times, "publish, every transaction", bench.publish)
        take(times, "tuned MERGE", lambda files=files: bench.merge("tuned", files, tuned=True))  # type: ignore[misc]
        take(times, "Iceberg merge-on-read", lambda files=files: bench.merge_iceberg(files))  # type: ignore[misc]
        take(times, "delta-rs merge", lambda files=files: bench.merge_delta_rs(files))  # type: ignore[misc]
        if number == 0:
            take(times, "naive MERGE", lambda files=files: bench.merge("naive", files, tuned=False))  # type: ignore[misc]
    same = same_rows(bench)
    for _ in range(tens):
        for _ in range(TOGETHER):
            bench.land_kind(deletes=deletes)
            take(times, "commit", bench.commit)
        take(times, TEN, bench.publish)
    times[TEN] = [seconds / TOGETHER for seconds in times[TEN]]
    verify_state(bench.deployment.control, bench.deployment.state(), ROWS)
    return {
        "seconds": medians(times),
        "reads": medians(reads),
        "same_rows": same,
        "all": times,
    }


def same_rows(bench: Peers) -> dict[str, bool]:
    """Whether each peer's table has the state's rows, duplicates counted."""
    state = read(bench.deployment, ROWS, view=View.STATE)
    return {name: not differs(state, table) for name, table in bench.tables().items()}


def differs(left: DataFrame, right: DataFrame) -> bool:
    """Whether two tables have other rows: by count and by sums of hashes, in one pass each."""

    def sums(frame: DataFrame) -> object:
        hashed = F.xxhash64(*VALUES)
        low = F.sum(hashed.bitwiseAND(F.lit(0xFFFFFFFF).cast("bigint")))
        return frame.agg(F.count(F.lit(1)), low, F.sum(F.shiftrightunsigned(hashed, 32))).first()

    return sums(left) != sums(right)


def measure(
    spark: SparkSession, folder: Path, rows: int, batches: int, *, tens: int = TENS, publishes: int = 0
) -> Iterator[dict[str, Any]]:
    """Everything for one size of the table, each kind of batch on a table of its own; what there is so far
    after each kind. The scan comes after this many publishes, or after as many as there were."""
    found: dict[str, Any] = {
        "rows": rows,
        "at": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "load": 0.0,
    }
    for deletes in (False, True):
        place = folder / f"{rows}-{deletes}"
        place.mkdir(parents=True)
        bench = Peers(spark, place, rows)
        load = bench.land(rows, max(FILES, rows // 500_000), first=True)
        found["first load"] = timed(bench.commit)
        found["plain load"] = timed(partial(bench.plain, load))
        bench.publish()
        bench.make_peers()
        kind = "with deletes" if deletes else "upserts"
        found[kind] = measure_kind(bench, batches, tens, deletes=deletes)
        if not deletes:
            while bench.publishes < publishes:
                bench.land_kind(deletes=deletes)
                bench.commit()
                bench.publish()
            found["publishes"] = bench.publishes
            spark.read.format("delta").load(f"{bench.deployment.shard_uri(ROWS)}/state").write.format(
                "delta"
            ).save(str(place / "new"))
            worn = read(bench.deployment, ROWS, view=View.STATE)
            new = spark.read.format("delta").load(str(place / "new"))
            for name, frame in {"state": worn, "new": new}.items():
                found[f"scan {name}"] = min(timed(lambda frame=frame: scan(frame)) for _ in range(3))  # type: ignore[misc]
        spark.sql(f"DROP TABLE {ICEBERG} PURGE")
        shutil.rmtree(place)  # Tens of gigabytes, which the next kind or size may need.
        yield found


def machine() -> dict[str, Any]:
    """Where: seconds mean little without that."""
    import pyspark

    return {
        "cores": os.cpu_count(),
        "versions": {"Spark": pyspark.__version__, "Delta": ivy.DELTA.version, "delta-rs": delta_rs_version}
        | {"Iceberg": read_lock(LOCK)[0].coordinate.version},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--sizes", default="0.5,2", help="millions of rows, comma between")
    parser.add_argument("--batches", type=int, default=BATCHES_MIN)
    parser.add_argument("--publishes", type=int, default=PUBLISHES_BEFORE_SCAN, help="before the scan")
    parser.add_argument("--memory", default="2g", help="the heap that Spark gets")
    parser.add_argument("--add", action="store_true", help="to the sizes that the report has")
    options = parser.parse_args()
    if options.batches < BATCHES_MIN:
        parser.error(f"a median needs {BATCHES_MIN} batches at least")
    sizes = [int(float(size) * 1_000_000) for size in options.sizes.split(",")]
    with tempfile.TemporaryDirectory(prefix="tidemark-bench-") as made:
        spark = bench_session(Path(made), options.memory)
        counts = {"batches": options.batches, "tens": TENS}
        results = machine() | counts | {"memory": options.memory, "sizes": []}
        before = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        results |= {"flat": before["flat"]} if "flat" in before else {}
        done: list[dict[str, Any]] = []
        if options.add:
            there = before.get("sizes", ())
            done = [size for size in there if size["rows"] not in sizes and "publishes" in size]
        for _ in measure(spark, Path(made) / "warm", WARM_ROWS, 3, tens=1):
            pass
        for rows in sizes:
            for found in measure(spark, Path(made), rows, options.batches, publishes=options.publishes):
                found["load"] = max(found["load"], round(os.getloadavg()[1], 1))
                results["sizes"] = sorted([*done, found], key=lambda size: size["rows"])
                RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
                write_report(results)
            done = results["sizes"]
        spark.stop()


if __name__ == "__main__":
    main()
