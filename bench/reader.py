"""What reading a shard transaction by transaction costs beside a plain scan: `python -m bench.reader`.

- *throughput*: a log of `--txns` transactions of `--rows` rows each. A plain Delta scan of the whole log and
  a new consumer that listens to all of it take turns, `--rounds` times, in one warm session; both hash every
  column of every row, and must come to the same count and hash. Aimed at: 0.7 times the scan's speed.
- *catch-up*: a consumer that is `--behind` transactions of a hundred rows behind, with a thousand
  transactions per batch: seconds, batches, and the most memory that the driver's Python had.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from tidemark.app.consume import Consumer
from tidemark.app.deployment import Deployment
from tidemark.config import load_pipeline
from tidemark.core.checkpoint import Checkpoint
from tidemark.core.checksum import Digest
from tidemark.core.ids import ShardId, Txn, WriterToken
from tidemark.core.ledger import UPPER, Put
from tidemark.core.log import Limits, entry_of
from tidemark.core.seal import Decision, Part, Seal, ShardParts
from tidemark.delta.log import parts_folder
from tidemark.spark.parts import stats_of
from tidemark.spark.session import build_session

ROWS = ShardId("rows")
WANTED = 0.7
TOGETHER = 1_000
PIPELINE = """\
name: bench
source: {type: files, path: in, format: json}
warehouse: warehouse
shards:
  - name: rows
    schema: id BIGINT NOT NULL, name STRING, amount DOUBLE, note STRING, version BIGINT
    keys: [id]
"""

Sums = tuple[int, int]


def part_of(log: Path, txn: Txn, rows: int, rng: np.random.Generator) -> Part:
    """One transaction's file, with page checksums as Spark writes them."""
    ids = np.arange(rows) + rows * int(txn)
    notes = rng.bytes(8 * rows).hex()
    table = pa.table(
        {
            "id": ids,
            "name": pa.array([f"name {number}" for number in ids]),
            "amount": rng.random(rows),
            "note": pa.array(notes[16 * at : 16 * at + 16] for at in range(rows)),
            "version": pa.array([int(txn)] * rows, pa.int64()),
            "_txn": pa.array([int(txn)] * rows, pa.int64()),
            "_op": pa.array(["U"] * rows),
            "_partition": pa.array(["p"] * rows),
            "_offset": np.arange(rows),
            "_ordinal": pa.array([0] * rows, pa.int64()),
        }
    )
    path = f"{parts_folder(txn, WriterToken('bench'))}/part-00000.parquet"
    file = log / path
    file.parent.mkdir(parents=True)
    pq.write_table(table, file, compression="zstd", write_page_checksum=True)
    return Part(path, rows, file.stat().st_size, stats_of(pq.read_metadata(file)))


def fill(folder: Path, spark: SparkSession, *, txns: int, rows: int) -> Deployment:
    """A pipeline whose log has this many sealed transactions."""
    folder.mkdir()
    (folder / "bench.yaml").write_text(PIPELINE, encoding="utf-8")
    works = Deployment(load_pipeline(folder / "bench.yaml"), lambda: spark)
    control, log = works.control, Path(works.shard_uri(ROWS)) / "log"
    rng = np.random.default_rng(7)
    for first in range(1, txns + 1, TOGETHER):
        seals = []
        for number in range(first, min(first + TOGETHER, txns + 1)):
            part = part_of(log, Txn(number), rows, rng)
            digest = Digest(count=rows)
            shards = {ROWS: ShardParts((part,), digest)}
            seals.append(Seal(Txn(number), WriterToken("bench"), 0, Decision.COMMITTED, digest, shards))
        upper = {UPPER: seals[-1].txn + 1}
        control.seals.commit(control.seals.head(), Put(upper, seals, None))
        entries = [entry_of(seal, ROWS) for seal in seals]
        control.log(ROWS).commit(control.log(ROWS).head(), Put(upper, entries, None))
        done = Checkpoint(seals[-1].txn)
        control.checkpoints.commit(control.checkpoints.head(), Put(upper, [done], None))
    return works


def sums(frame: DataFrame) -> Sums:
    """Read every column of every row."""
    found = frame.agg(F.count(F.lit(1)), F.bit_xor(F.xxhash64(*sorted(frame.columns)))).first()
    return (int(found[0]), int(found[1] or 0)) if found is not None else (0, 0)


def scan(works: Deployment) -> Sums:
    return sums(works.session().read.format("delta").load(f"{works.shard_uri(ROWS)}/log"))


def listen(works: Deployment, name: str, limits: Limits | None = None) -> tuple[Sums, int]:
    """All of the log to a new consumer; the sums over all batches, and how many there were."""
    count = hashed = batches = 0
    with Consumer(works, ROWS, name, limits=limits) as reader:
        for batch in reader.listen():
            more, bits = sums(batch.frame)
            count, hashed, batches = count + more, hashed ^ bits, batches + 1
    return (count, hashed), batches


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    result = work()
    return time.perf_counter() - began, result


def throughput(works: Deployment, rounds: int) -> None:
    plain: list[float] = []
    ours: list[float] = []
    for number in range(rounds + 1):
        takes: list[tuple[float, Any]] = [(0.0, None)] * 2
        works_of: list[Callable[[], Any]] = [
            lambda: scan(works),
            lambda number=number: listen(works, f"round{number}"),  # type: ignore[misc]
        ]
        # Who begins is in turn too: other people's load is then nobody's advantage.
        for which in (0, 1) if number % 2 else (1, 0):
            takes[which] = timed(works_of[which])
        (seconds, expected), (mine, (found, batches)) = takes
        if found != expected:
            raise SystemExit(f"the consumer has {found}, the scan {expected}")
        if number > 0:  # The first of each warms up.
            plain.append(seconds)
            ours.append(mine)
    ratio = statistics.median(plain) / statistics.median(ours)
    reached = "yes" if ratio >= WANTED else "no"
    print("| what | seconds | million rows per second |\n| --- | ---: | ---: |")
    for name, times in (("plain Delta scan", plain), (f"consumer, {batches} batches", ours)):
        median = statistics.median(times)
        print(f"| {name} | {median:.2f} | {expected[0] / median / 1e6:.2f} |")
    print(f"\nconsumer against scan: {ratio:.2f} times its speed, aimed at {WANTED}, reached: {reached}\n")


def catch_up(works: Deployment, behind: int) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    limits = Limits(txns_max=TOGETHER)
    seconds, (found, batches) = timed(lambda: listen(works, "late", limits))
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    plain, expected = timed(lambda: scan(works))
    if found != expected:
        raise SystemExit(f"the consumer has {found}, the scan {expected}")
    print(
        f"{behind:,} transactions behind: caught up in {seconds:.1f} s, {batches} batches, {found[0]:,} rows;"
        f" the driver's Python had {before} MB before and {after} MB at most; a plain scan took {plain:.1f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--txns", type=int, default=40)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--behind", type=int, default=10_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tidemark-bench-") as scratch:
        root = Path(scratch)
        spark = build_session("bench reader", master="local[2]", scratch_folder=root / "spark")
        print("## Reader\n")
        throughput(fill(root / "large", spark, txns=options.txns, rows=options.rows), options.rounds)
        catch_up(fill(root / "small", spark, txns=options.behind, rows=100), options.behind)
        spark.stop()


if __name__ == "__main__":
    main()
