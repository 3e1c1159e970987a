"""What ten thousand publishes leave of a state, without Spark: `python -m bench.flat --publishes 10000`.

A state of `--rows` rows takes `--publishes` transactions of `--batch` records, each published by itself: 15 %
new keys, 5 % deletes, else updates of keys all over the state. Files are tidied after each publish, as the
product does it, and once in `--day` publishes there is maintenance, as once a day at a publish a minute.
Nothing is older than `state_history_days` meanwhile, so everything is kept that an older version needs: it is
a whole history. The last line is after its end, when only the newest version is needed.

At 0 and at each power of ten, in new processes: the processor time to open the table's head, and the time to
read the whole state by Polars and by delta-rs; medians of five. `--spark` reads it by Spark too, once before
the publishes and once after them: the processor time of a new JVM's first read, most of which is spent on
loading and compiling classes, so that it takes a multiple of it on a loaded machine. The log of changes is
truncated now and then, since it is not what is measured. Prints Markdown.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.report import RESULTS, write_report
from bench.state import SHARD, Bench
from tidemark.core.ids import Txn
from tidemark.delta.head import open_head
from tidemark.delta.state import StateTable
from tidemark.delta.state_maintenance import DeltaStateKeeper, MaintainedState
from tidemark.delta.vacuum import table_stats, vacuum
from tidemark.pipeline.maintain import maintain_state, truncate

DAY_MS = 86_400_000
HISTORY_DAYS = 7
LOG_KEPT = 100
OPEN = """
from time import process_time as clock
import pyarrow.parquet
from tidemark.delta.head import read_head
from tidemark.delta.store import Store
store = Store(uri, {})
work = lambda: read_head(store).rows
"""
POLARS = """
import polars
work = lambda: polars.read_delta(uri).height
"""
DELTA_RS = """
import pyarrow
from deltalake import DeltaTable, QueryBuilder
query = "select count(id), count(name), count(amount), count(note) from t"
def work():
    table = QueryBuilder().register("t", DeltaTable(uri)).execute(query).read_all()
    return pyarrow.table(table).column(0)[0].as_py()
"""
SPARK = """
from tidemark.spark.session import build_session
spark = build_session("bench flat", master="local[2]")
work = lambda: spark.read.format("delta").load(uri).selectExpr("count(id)", "count(note)").first()[0]
process = spark._jvm.java.lang.ProcessHandle.current()
clock = lambda: process.info().totalCpuDuration().get().toMillis() / 1000
"""
HEADER = (
    "publishes", "live files", "hidden rows", "data MB", "vectors MB", "log MB", "entries to open",
    "publish s", "open, processor s", "Polars s", "delta-rs s",
)  # fmt: skip


def in_new_process(setup: str, uri: str, rows: int) -> float:
    """Seconds of one look at the table, imports left out."""
    code = f"from time import perf_counter as clock\nuri = {uri!r}\n{setup}\nat = clock()\nfound = work()\n"
    code += f"print(clock() - at)\nassert found == {rows}, found"
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True, text=True)
    return float(done.stdout.split()[-1])


def bytes_below(folder: Path, pattern: str = "*") -> float:
    return sum(file.stat().st_size for file in folder.glob(pattern) if file.is_file()) / 1e6


def line(bench: Bench, publishes: str, seconds: list[float]) -> tuple[str, ...]:
    table = StateTable(bench.spec.state)
    head, folder = table.head(), Path(bench.spec.state)
    assert head.rows == bench.live
    looks = [
        statistics.median(in_new_process(how, bench.spec.state, head.rows) for _ in range(5))
        for how in (OPEN, POLARS, DELTA_RS)
    ]
    return (
        publishes,
        f"{len(head.files)}",
        f"{sum(file.hidden for file in head.files.values()):,}",
        f"{bytes_below(folder, '*.parquet'):.1f}",
        f"{bytes_below(folder / '_vectors'):.1f}",
        f"{bytes_below(folder / '_delta_log'):.1f}",
        f"{head.version - open_head(table.store).version}",
        f"{statistics.median(seconds):.3f}" if seconds else "",
        *(f"{look:.3f}" for look in looks),
    )


def maintain(bench: Bench, keeper: DeltaStateKeeper) -> None:
    """As `tidemark maintain` does it."""
    now_ms = time.time_ns() // 1_000_000
    facts = table_stats(bench.spec.state, now_ms=now_ms, kept_ms=HISTORY_DAYS * DAY_MS)
    assert facts is not None
    maintain_state(
        bench.control,
        keeper,
        SHARD,
        merge=facts.merge_due,
        purge=facts.purge_due,
        vacuum=facts.old > 0,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--batch", type=int, default=300)
    parser.add_argument("--publishes", type=int, default=10_000)
    parser.add_argument("--day", type=int, default=1_440)
    parser.add_argument("--spark", action="store_true")
    parser.add_argument("--report", action="store_true", help="into docs/benchmarks.md")
    given = parser.parse_args()
    load = os.getloadavg()[1]
    with tempfile.TemporaryDirectory() as folder:
        lines, words = measured(Path(folder), given)
    load = max(load, os.getloadavg()[1])
    at = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    found = {"words": f"{words} Measured {at}, load average up to {load:.1f}.", "lines": [HEADER, *lines]}
    print(f"\n{found['words']}")
    if given.report:
        results = json.loads(RESULTS.read_text(encoding="utf-8")) | {"flat": found}
        RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        write_report(results)


def measured(folder: Path, given: argparse.Namespace) -> tuple[list[tuple[str, ...]], str]:
    """The lines of the table, and what else there is to say."""
    bench = Bench(folder, given.rows)
    keeper = DeltaStateKeeper("p", {SHARD: MaintainedState(bench.spec.uri, HISTORY_DAYS)})
    print("| " + " | ".join(HEADER) + " |\n|" + " ---: |" * len(HEADER))
    lines: list[tuple[str, ...]] = []

    def look(publishes: str, seconds: list[float]) -> None:
        lines.append(line(bench, publishes, seconds))
        print("| " + " | ".join(lines[-1]) + " |", flush=True)

    look("0", [])
    before = in_new_process(SPARK, bench.spec.state, bench.live) if given.spark else 0.0
    seconds: list[float] = []
    for number in range(1, given.publishes + 1):
        bench.round(given.batch)
        at = time.perf_counter()
        bench.publish()
        seconds.append(time.perf_counter() - at)
        if number % given.day == 0:
            maintain(bench, keeper)
        if number % LOG_KEPT == 0:
            truncate(bench.control.log(SHARD), SHARD, Txn(max(bench.txn - LOG_KEPT, 1)))
        if number in {100, 1_000, given.publishes}:
            look(f"{number:,}", seconds[-100:])
    words = f"{given.rows:,} rows at first, {bench.live:,} at the end, batches of {given.batch}."
    words += f" All publishes: mean {statistics.mean(seconds):.3f} s, longest {max(seconds):.2f} s."
    if given.spark:
        found = in_new_process(SPARK, bench.spec.state, bench.live)
        words += f" First read by Spark in a new session: {before:.1f} processor seconds before the"
        words += f" publishes, {found:.1f} after them."
    maintain(bench, keeper)
    later_ms = time.time_ns() // 1_000_000 + (HISTORY_DAYS + 1) * DAY_MS
    vacuum(StateTable(bench.spec.state).store, now_ms=later_ms, kept_ms=HISTORY_DAYS * DAY_MS)
    look("after its history", [])
    return lines, words


if __name__ == "__main__":
    main()
