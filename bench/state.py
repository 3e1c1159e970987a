"""What a publish costs by the size of its state, without Spark: `python -m bench.state --rows 2000000`.

For each size, a state of so many rows is published from a log, a million rows at a time. Then there are
`--rounds` transactions of `--batch` records: 15 % new keys, 5 % deletes, else updates of keys all over the
state. The whole step is measured, as a run calls it, with the record of the publish and everything synced;
first with a process's caches warm, then (*cold*) as a new process does it, then with vectors that hide a
fifth of the first rows (*dense*), and once with the index lost and made again. What the state holds is
counted at the end. Wall and processor seconds, medians; the last line is the largest size against the
smallest.

`--small` measures a whole transaction of a small table instead: 10,000 rows and 100 changes from a file,
read, committed and published over a warm Spark. Prints Markdown.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import Schema
from pyspark.sql import SparkSession
from pyspark.sql.types import DoubleType, LongType, StringType, StructField, StructType

from tests.support.sealing import sealed_put
from tidemark.core.ids import ShardId, Txn, WriterToken
from tidemark.core.ledger import Committed
from tidemark.core.log import LogEntry
from tidemark.core.publish import Published
from tidemark.core.seal import Part
from tidemark.delta.control import DeltaControl
from tidemark.delta.log import parts_folder
from tidemark.delta.state import StateTable
from tidemark.delta.state_files import DIGEST, KEY
from tidemark.pipeline.publish import publish
from tidemark.spark.fold import FoldRule
from tidemark.spark.parts import stats_of
from tidemark.spark.state import SparkStatePlane
from tidemark.spark.state_table import StateSpec, StateSpecs

SHARD = ShardId("t")
PART_ROWS = 250_000
TXN_ROWS = 1_000_000
COLUMNS = [("id", pa.int64()), ("name", pa.string()), ("amount", pa.float64()), ("note", pa.string())]
SPARK = {pa.int64(): LongType(), pa.string(): StringType(), pa.float64(): DoubleType()}
POSITION = [("_partition", pa.string()), ("_offset", pa.int64()), ("_ordinal", pa.int64())]
SMALL = """\
name: small
source: {type: files, path: in, format: json, settle_seconds: 0}
warehouse: warehouse
shards: [{name: rows, schema: "id BIGINT NOT NULL, note STRING", keys: [id]}]
"""
SMALL_WARM = 5
LOG = pa.schema([*COLUMNS, ("_txn", pa.int64()), ("_op", pa.string()), *POSITION])


def rows_of(ids: np.ndarray, txn: int, deletes: np.ndarray) -> pa.Table:
    """Records that don't compress, with what stands beside them; any number will do for a digest."""
    random = np.random.default_rng(txn)
    count = len(ids)
    table = pa.table(
        {
            "id": ids, "name": [f"name {one}" for one in ids.tolist()], "amount": random.random(count),
            "note": [os.urandom(20).hex() for _ in range(count)],
            "_txn": np.full(count, txn), "_op": np.where(deletes, "D", "U"), "_partition": ["p"] * count,
            "_offset": np.arange(count), "_ordinal": np.zeros(count, np.int64),
        },
        schema=LOG,
    )  # fmt: skip
    hashes = [hashlib.sha256(b"%d" % one).digest()[:16] for one in ids.tolist()]
    digests = random.integers(-(1 << 63), (1 << 63) - 1, count, dtype=np.int64)
    return table.append_column(KEY, pa.array(hashes, pa.binary())).append_column(DIGEST, pa.array(digests))


def no_spark() -> SparkSession:
    raise AssertionError("Spark was started")


class Bench:
    """One shard below a folder, and how many rows its state has."""

    def __init__(self, root: Path, rows: int) -> None:
        declared = StructType([StructField(name, SPARK[kind]) for name, kind in COLUMNS])
        self.spec = StateSpec(SHARD, f"{root}/p/{SHARD}", declared, FoldRule(("id",)))
        self.control = DeltaControl(str(root), "p", {SHARD: Schema.from_arrow(LOG)})
        self.txn, self.first, self.live = 0, rows, 0
        self.reopen()
        for lower in range(0, rows, TXN_ROWS):
            self.append(np.arange(lower, min(lower + TXN_ROWS, rows)))
            self.publish()

    def reopen(self) -> None:
        """As a new process would."""
        self.plane = SparkStatePlane(no_spark, StateSpecs("p", {SHARD: self.spec}))

    def append(self, ids: np.ndarray, deletes: np.ndarray | None = None) -> None:
        self.txn += 1
        token = WriterToken(f"w{self.txn}")
        folder = parts_folder(Txn(self.txn), token)
        (Path(self.spec.log) / folder).mkdir(parents=True)
        gone = np.zeros(len(ids), np.bool_) if deletes is None else deletes
        parts = []
        for lower in range(0, len(ids), PART_ROWS):
            path = f"{folder}/part-{lower}.parquet"
            file = Path(self.spec.log) / path
            rows = rows_of(ids[lower : lower + PART_ROWS], self.txn, gone[lower : lower + PART_ROWS])
            pq.write_table(rows, file, compression="zstd")
            parts.append(Part(path, rows.num_rows, file.stat().st_size, stats_of(pq.read_metadata(file))))
        log = self.control.log(SHARD)
        entry = LogEntry(Txn(self.txn), token, tuple(parts))
        assert isinstance(log.commit(log.head(), sealed_put(self.control, SHARD, entry)), Committed)

    def publish(self) -> None:
        done = publish(self.control, self.plane, SHARD, token=WriterToken(f"p{self.txn}"))
        assert isinstance(done, Published)
        self.live = done.commit.digest.count

    def round(self, batch: int) -> None:
        """One transaction of records, not published yet."""
        random = np.random.default_rng(1000 + self.txn)
        new = self.first + self.txn * batch + np.arange(batch * 15 // 100)
        old = random.choice(self.first, batch - len(new), replace=False)
        self.append(np.concatenate([new, old]), random.random(batch) < 0.05)

    def hide(self, every: int) -> None:
        """Publish updates of one in so many of the first rows."""
        ids = np.arange(0, self.first, every)
        for lower in range(0, len(ids), TXN_ROWS // 2):
            self.append(ids[lower : lower + TXN_ROWS // 2])
            self.publish()


def timed(work: Callable[[], object]) -> tuple[float, float]:
    wall, processor = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - processor


def measured(rows: int, *, batch: int, rounds: int) -> dict[str, tuple[float, float]]:
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), rows)
        times: dict[str, list[tuple[float, float]]] = {}
        for _ in range(rounds):
            bench.round(batch)
            times.setdefault("warm", []).append(timed(bench.publish))
        for _ in range(rounds):
            bench.round(batch)
            bench.reopen()
            times.setdefault("cold", []).append(timed(bench.publish))
        bench.hide(5)
        for _ in range(rounds):
            bench.round(batch)
            times.setdefault("dense", []).append(timed(bench.publish))
        index = Path(bench.spec.uri) / "_index"
        size = sum(file.stat().st_size for file in index.rglob("*.run"))
        shutil.rmtree(index)
        bench.round(batch)
        bench.reopen()
        times["index lost"] = [timed(bench.publish)]
        table = StateTable(bench.spec.state)
        head = table.head()
        assert head.rows == bench.live
        print(
            f"{rows:,} rows: {head.rows:,} live in {len(head.files)} files, "
            f"{sum(file.hidden for file in head.files.values()):,} hidden; "
            f"index {size / head.rows:.0f} bytes a row; "
            f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10} MB of memory at most\n"
        )
    return {
        what: (statistics.median(w for w, _ in found), statistics.median(p for _, p in found))
        for what, found in times.items()
    }


def small(rounds: int) -> None:
    """Read, commit and publish 100 changes of 10,000 rows."""
    from tidemark.app.deployment import Deployment, new_token
    from tidemark.config import load_pipeline
    from tidemark.core.binding import Owner
    from tidemark.pipeline.context import Attempt
    from tidemark.pipeline.run import run
    from tidemark.spark.session import build_session

    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "in").mkdir()
        (folder / "small.yaml").write_text(SMALL)
        spark = build_session("bench state", master="local[2]", scratch_folder=folder / "scratch")
        deployment = Deployment(load_pipeline(folder / "small.yaml"), lambda: spark)

        def land(number: int, ids: range) -> None:
            rows = "".join(f'{{"id": {one}, "note": "note {number} of {one}"}}\n' for one in ids)
            (folder / "in" / f"{number:04}.json").write_text(rows)

        def transaction(number: int) -> None:
            run(deployment.pipeline, Attempt(Owner(f"run-{number}"), new_token()))
            publish(deployment.control, deployment.state(), ShardId("rows"), token=new_token())

        land(0, range(10_000))
        transaction(0)
        times = []
        for number in range(1, SMALL_WARM + rounds + 1):
            land(number, range(number % 100, 10_000, 100))
            times.append(timed(lambda number=number: transaction(number))[0])  # type: ignore[misc]
        spark.stop()
    found = statistics.median(times[SMALL_WARM:])
    print(f"10,000 rows and 100 changes, read, committed and published over a warm Spark: {found:.2f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[2_000_000, 8_000_000, 20_000_000])
    parser.add_argument("--batch", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--small", action="store_true")
    given = parser.parse_args()
    if given.small:
        small(given.rounds)
        return
    found = {rows: measured(rows, batch=given.batch, rounds=given.rounds) for rows in given.rows}
    print("| rows | publish | wall s | processor s |\n| --- | --- | --- | --- |")
    for rows, times in found.items():
        for what, (wall, processor) in times.items():
            print(f"| {rows:,} | {what} | {wall:.2f} | {processor:.2f} |")
    smallest, largest = found[min(found)], found[max(found)]
    ratios = ", ".join(
        f"{what} {largest[what][0] / smallest[what][0]:.2f}" for what in ("warm", "cold", "dense")
    )
    print(f"\nlargest ÷ smallest: {ratios}")


if __name__ == "__main__":
    main()
