"""What maintenance gives and costs: `python -m bench.maintain`.

A log gets `--transactions` small transactions on top of a state of `--rows` rows, none of them published. The
fresh read is timed before and after the log is merged, medians of three in one warm session; beside it, a
plain scan of the log. Also told: bytes written per byte cleaned, for the log and, after a publish of all of
it, for the state (OPTIMIZE and purge).
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tidemark.app import maintenance
from tidemark.app.deployment import Deployment, new_token
from tidemark.app.views import View, read
from tidemark.config import load_pipeline
from tidemark.core.binding import Owner
from tidemark.core.ids import ShardId, Txn
from tidemark.core.publish import VERSION_NONE
from tidemark.pipeline.context import Attempt
from tidemark.pipeline.maintain import compact
from tidemark.pipeline.publish import publish
from tidemark.pipeline.run import run
from tidemark.spark.session import build_session

SHARD = ShardId("rows")
CHANGES = 200
PIPELINE = """\
name: upkeep
source: {type: files, path: in, format: json, settle_seconds: 0}
warehouse: warehouse
transaction: {max_files: 1}
shards:
  - name: rows
    schema: id BIGINT NOT NULL, note STRING, version BIGINT
    keys: [id]
    publish: manual
"""


def land(folder: Path, version: int, keys: range) -> None:
    lines = (json.dumps({"id": key, "note": f"note {key} {version}", "version": version}) for key in keys)
    (folder / "in" / f"{version:05}.json").write_text("".join(f"{line}\n" for line in lines))


def seconds(work: Callable[[], object], times: int = 3) -> float:
    found = []
    for _ in range(times):
        begun = time.monotonic()
        work()
        found.append(time.monotonic() - begun)
    return statistics.median(found)


def bytes_of(table: str) -> int:
    adds = pa.table(DeltaTable(table).get_add_actions(flatten=True))
    return sum(adds["size_bytes"].to_pylist())


def measure(spark: SparkSession, folder: Path, *, rows: int, transactions: int) -> dict[str, float]:
    (folder / "in").mkdir()
    (folder / "upkeep.yaml").write_text(PIPELINE)
    deployment = Deployment(load_pipeline(folder / "upkeep.yaml"), lambda: spark)
    uri = deployment.shard_uri(SHARD)

    def publish_all() -> None:
        publish(deployment.control, deployment.state(), SHARD, token=new_token())

    def fresh() -> int:
        return read(deployment, SHARD, view=View.FRESH).selectExpr("count(note)").first()[0]  # type: ignore[index]

    def log() -> int:
        return read(deployment, SHARD, view=View.LOG).selectExpr("count(note)").first()[0]  # type: ignore[index]

    land(folder, 1, range(rows))
    run(deployment.pipeline, Attempt(Owner("load"), new_token()))
    publish_all()
    for version in range(2, transactions + 2):
        land(folder, version, range(version % 50, rows, max(1, rows // CHANGES)))
    run(deployment.pipeline, Attempt(Owner("tail"), new_token()))
    found: dict[str, float] = {}
    count = fresh()
    found["fresh read before, seconds"] = seconds(fresh)
    found["log scan before, seconds"] = seconds(log)
    before = time.monotonic()
    done = compact(
        deployment.control,
        deployment.control.log(SHARD),
        deployment.plane().log_rows,
        SHARD,
        token=new_token(),
    )
    found["compaction, seconds"] = time.monotonic() - before
    found["files before"], found["files after"] = done.files_before, done.files_after
    found["bytes written per byte cleaned, log"] = done.bytes_after / done.bytes_before
    if fresh() != count:
        raise SystemExit("the fresh read has changed")
    found["fresh read after, seconds"] = seconds(fresh)
    found["log scan after, seconds"] = seconds(log)
    publish_all()
    terms = maintenance.Terms(time.time_ns() // 1_000_000, Txn(1), Txn(1), 10**15)
    facts = maintenance.state_facts(deployment, SHARD, terms)
    deployment.keeper().merge(SHARD, tombstones=VERSION_NONE)
    deployment.keeper().purge(SHARD)
    after = maintenance.state_facts(deployment, SHARD, terms)
    if facts is None or after is None or fresh() != count:
        raise SystemExit("the state has changed")
    found["hidden rows before"], found["hidden rows after"] = facts.hidden, after.hidden
    cleaned = after.waiting_bytes - facts.waiting_bytes
    found["bytes written per byte cleaned, state"] = bytes_of(f"{uri}/state") / cleaned if cleaned else 0.0
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--transactions", type=int, default=60)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="tidemark-bench-"))
    spark = build_session("tidemark bench", master="local[2]")
    try:
        found = measure(spark, folder, rows=options.rows, transactions=options.transactions)
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)
    print(f"\n## Maintenance: {options.rows} rows, {options.transactions} transactions of {CHANGES}\n")
    print("| what | value |\n| --- | ---: |")
    for name, value in found.items():
        print(f"| {name} | {value:.2f} |" if value % 1 else f"| {name} | {value:.0f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
