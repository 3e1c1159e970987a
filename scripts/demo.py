"""`make demo`: a small shop's change files through everything that can go wrong, checked by DuckDB.

Everything happens below .tidemark/demo, which is made anew each time: a first load, an incremental with
updates, deletes, late and broken records, a run killed in the middle of its work, two runs at once, a replay
that proves everything, and a damaged part that is found and repaired.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import duckdb
from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

from tidemark.assemble import Deployment, new_token
from tidemark.cli.inspect import status_of
from tidemark.config import load_pipeline
from tidemark.core.binding import Owner
from tidemark.core.ids import Txn
from tidemark.core.seal import Lost, Sealed
from tidemark.pipeline.context import Attempt
from tidemark.pipeline.publish import publish
from tidemark.pipeline.repair import repair
from tidemark.pipeline.run import replay, run
from tidemark.spark.home import home
from tidemark.spark.session import build_session
from tidemark.views import View, read

FOLDER = home() / "demo"
PIPELINE = """\
name: shop
source: {type: files, path: landing, format: json, settle_seconds: 0}
warehouse: warehouse
defaults: {sequence_by: version, apply_as_deletes: op = 'D', publish: manual}
shards:
  - name: customers
    schema: id BIGINT NOT NULL, name STRING, city STRING, version INT
    keys: [id]
    route: {column: shop_table, equals: customers}
  - name: orders
    schema: id BIGINT NOT NULL, customer BIGINT, status STRING, amount DECIMAL(12,2), version INT
    keys: [id]
    route: {column: shop_table, equals: orders}
"""
CITIES = ("London", "Göttingen", "New York", "Kyiv", "Nairobi", "Lima")
STATUSES = ("new", "paid", "sent", "returned")
# What the tables must hold, said once more in SQL that shares nothing with the product.
EXPECTED = """
    SELECT {columns} FROM (
        SELECT *, row_number() OVER (PARTITION BY id ORDER BY version DESC, filename DESC) AS place
        FROM read_json('{folder}/*.json', format='newline_delimited', filename=true, columns={{
            shop_table: 'VARCHAR', id: 'BIGINT', name: 'VARCHAR', city: 'VARCHAR', customer: 'BIGINT',
            status: 'VARCHAR', amount: 'DECIMAL(12,2)', version: 'INTEGER', op: 'VARCHAR'}},
            ignore_errors=true)
        WHERE shop_table = '{table}' AND id IS NOT NULL
    ) WHERE place = 1 AND op IS DISTINCT FROM 'D' ORDER BY id
"""
console = Console()


def say(text: str) -> None:
    console.print(f"  {text}", highlight=False)


def step(title: str) -> None:
    console.rule(f"[bold]{title}", align="left")


class Shop:
    """Writes change files as a shop's export would."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rng = random.Random(7)
        self.versions: dict[tuple[str, int], int] = {}
        self.files = 0

    def record(self, table: str, number: int, *, late: bool = False, gone: bool = False) -> dict[str, object]:
        """The next version of a row, or an old one that comes late."""
        version = self.versions.get((table, number), 0)
        version = max(1, version - 1) if late else version + 1
        self.versions[(table, number)] = max(version, self.versions.get((table, number), 0))
        base: dict[str, object] = {"shop_table": table, "id": number, "version": version}
        if gone:
            return {**base, "op": "D"}
        if table == "customers":
            return {**base, "name": f"customer {number}", "city": self.rng.choice(CITIES)}
        amount = f"{self.rng.randint(1, 99_999) / 100:.2f}"
        values = {"customer": self.rng.randint(0, 999), "status": self.rng.choice(STATUSES)}
        return {**base, **values, "amount": float(amount)}

    def changes(self, count: int) -> Iterator[dict[str, object]]:
        for _ in range(count):
            table = self.rng.choice(("customers", "orders"))
            luck = self.rng.random()
            yield self.record(table, self.rng.randint(0, 1_999), late=luck < 0.05, gone=luck > 0.92)

    def land(self, records: list[dict[str, object]], *, raw: tuple[str, ...] = (), files: int = 2) -> None:
        lines = [json.dumps(record, ensure_ascii=False) for record in records] + list(raw)
        for index in range(files):
            self.files += 1
            made = self.folder / f".{self.files:04}.tmp"
            made.write_text("".join(f"{line}\n" for line in lines[index::files]), encoding="utf-8")
            made.rename(self.folder / f"{self.files:04}.json")


class Demo:
    """One pipeline, one warm Spark, and the questions that one would ask."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self.config = load_pipeline(FOLDER / "shop.yaml")
        self.deployment = self.open()

    def open(self) -> Deployment:
        return Deployment(self.config, lambda: self.spark)

    def run(self, name: str, deployment: Deployment | None = None) -> None:
        begun = time.monotonic()
        report = run((deployment or self.deployment).pipeline, Attempt(Owner(name), new_token()))
        for outcome in report.decided:
            if isinstance(outcome, Sealed | Lost):
                seal = outcome.seal if isinstance(outcome, Sealed) else outcome.winner
                bad = seal.shards["quarantine"].digest.count if "quarantine" in seal.shards else 0  # type: ignore[index]
                read = seal.source.count
                who = "" if isinstance(outcome, Sealed) else ", decided by the other run"
                told = f"{read:,} read = {read - bad:,} applied + {bad} quarantined{who}"
                say(f"{name}: transaction {seal.txn}: {told}")
        say(f"{name}: checkpoint {report.checkpoint}, {time.monotonic() - begun:.1f} s")

    def publish(self) -> None:
        for shard in self.deployment.shards:
            publish(
                self.deployment.control, self.deployment.state(), shard,
                token=new_token(), shard_uri=self.deployment.shard_uri(shard),
            )  # fmt: skip

    def check(self) -> bool:
        """The fresh view and the state, against DuckDB over the files themselves."""
        good = True
        for shard in self.deployment.shards:
            columns = self.config.shard(shard).columns.names
            query = EXPECTED.format(columns=", ".join(columns), folder=FOLDER / "landing", table=shard)
            expected = duckdb.sql(query).fetchall()
            for view in (View.FRESH, View.STATE):
                frame = read(self.deployment, shard, view=view).select(*columns).orderBy("id")
                same = [tuple(row) for row in frame.collect()] == expected
                good = good and same
                mark = "[green]equal[/]" if same else "[red]DIFFERENT[/]"
                say(f"{shard} ({view}): {len(expected):,} rows, {mark} to DuckDB's own answer")
        return good


def killed_run(demo: Demo) -> None:
    """Start a run of its own, and kill it as soon as it has begun to write."""
    before = set((FOLDER / "warehouse").rglob("txn=*/*/*"))
    command = [sys.executable, "-m", "tidemark.cli", "run", str(FOLDER / "shop.yaml"), "--no-publish"]
    quiet = subprocess.DEVNULL
    child = subprocess.Popen(command, start_new_session=True, stdout=quiet, stderr=quiet)
    deadline = time.monotonic() + 240
    while child.poll() is None and time.monotonic() < deadline:
        if set((FOLDER / "warehouse").rglob("txn=*/*/*")) - before:
            break
        time.sleep(0.02)
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    found = status_of(demo.deployment)
    say(f"killed; bound {found.bound}, sealed {found.sealed}, open {list(found.open)}: no row is visible")


def tree_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def flip_a_byte(folder: Path) -> Path:
    part = min(folder.rglob("part-*.parquet"))
    data = bytearray(part.read_bytes())
    data[len(data) // 3] ^= 1
    part.write_bytes(bytes(data))
    return part


def main() -> int:
    shutil.rmtree(FOLDER, ignore_errors=True)
    (FOLDER / "landing").mkdir(parents=True)
    (FOLDER / "shop.yaml").write_text(PIPELINE, encoding="utf-8")
    shop = Shop(FOLDER / "landing")
    with console.status("starting Spark"):
        spark = build_session("tidemark demo", master="local[2]", log_file=home() / "logs" / "spark.log")
    demo = Demo(spark)

    step("1. First load")
    shop.land([shop.record(t, n) for t in ("customers", "orders") for n in range(2_000)], files=4)
    demo.run("first")
    demo.publish()

    step("2. Updates, deletes, late and broken records")
    broken = (
        '{"shop_table": "orders", "id": "one", "version": 1}',
        '{"shop_table": "customers", "id": 5, "ver',
    )
    shop.land(list(shop.changes(998)), raw=broken)
    demo.run("incremental")

    step("3. Killed in the middle of a write, and run again")
    shop.land(list(shop.changes(500)))
    killed_run(demo)
    demo.run("next")

    step("4. Two runs at once")
    shop.land(list(shop.changes(500)))
    others = [threading.Thread(target=demo.run, args=(name, demo.open())) for name in ("left", "right")]
    for other in others:
        other.start()
    for other in others:
        other.join()

    step("5. The proof: every transaction again from its recorded input")
    last = Txn(demo.deployment.control.seals.head().upper - 1)
    before = tree_bytes(FOLDER / "warehouse/shop/orders") + tree_bytes(FOLDER / "warehouse/shop/customers")
    prover = Attempt(Owner("prover"), new_token())
    findings = replay(demo.deployment.pipeline, prover, txn_from=Txn(1), txn_to=last)
    after = tree_bytes(FOLDER / "warehouse/shop/orders") + tree_bytes(FOLDER / "warehouse/shop/customers")
    say(
        f"{', '.join(f'{f.txn} {f.verdict}' for f in findings)}; {after - before} bytes written to the tables"
    )

    step("6. One flipped byte in a part, found and repaired")
    part = flip_a_byte(FOLDER / "warehouse/shop/orders/log")
    mended = repair(demo.deployment.pipeline, Attempt(Owner("mender"), new_token()), Txn(1))
    restored = [lost.path for _, lost in mended.parts]
    say(f"damaged {part.name}; the input is {mended.finding.verdict}; restored {len(restored)} part(s)")

    step("7. What the tables hold")
    demo.publish()
    good = demo.check() and all(finding.passed for finding in findings)
    good = good and any(part.name in path for path in restored)
    table = Table(box=None)
    for column in ("shard", "log has", "state has"):
        table.add_column(column)
    for shard in status_of(demo.deployment).shards:
        table.add_row(shard.shard, str(shard.log_upper - 1), str(shard.published or "-"))
    console.print(table)
    say("look around: .venv/bin/tidemark txns .tidemark/demo/shop.yaml")
    say("             .venv/bin/tidemark quarantine .tidemark/demo/shop.yaml")
    spark.stop()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
