"""What following a database costs: `python -m bench.postgres`.

A real server, a warm session, and in turns, each as medians of `--rounds`:

- *plain read*: Spark's JDBC reader over a table of `--rows` rows, by two connections, and a write as Parquet;
- *first rows*: a whole run of the product on the same table, from its first reading to the checkpoint;
- *changes*: a run on as many updates of it, out of the slot, in source transactions of a thousand rows.

Beside the seconds stand those of processors, by process: they say where the work is, on a busy machine too.

Then a pipeline of `--tables` small tables and one of `--changed`, with `schema: from_source`: a source
transaction touches `--changed` of them, and a run takes it. Tables that are not touched should cost nothing.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from time import perf_counter

import yaml
from pyspark.sql import SparkSession

from bench.peers import LOCK
from tests.support.postgres import PASSWORD, Postgres, start
from tidemark.app.deployment import Deployment, discovered, new_token
from tidemark.config import load_pipeline
from tidemark.core.binding import Owner
from tidemark.pipeline.context import Attempt
from tidemark.pipeline.reclock import mint
from tidemark.pipeline.run import run
from tidemark.runtime import jars as ivy
from tidemark.runtime.jars import fetch, jar_paths, read_lock
from tidemark.runtime.machine import home
from tidemark.spark.session import build_session

ROWS_PER_COMMIT = 1_000
COLUMNS = "id bigint PRIMARY KEY, name text, amount numeric(12,2), note text, at timestamptz"


def bench_session(folder: Path, memory: str) -> SparkSession:
    """A session with the product's jars and PostgreSQL's driver."""
    drivers, jars = (
        home() / "bench-jars",
        [jar for jar in read_lock(LOCK) if "postgresql" in str(jar.coordinate)],
    )
    fetch(drivers, jars, ivy.download_jars)
    paths = [*jar_paths(), *(drivers / jar.coordinate.filename for jar in jars)]
    confs = {"spark.jars": ",".join(map(str, paths)), "spark.driver.memory": memory}
    return build_session("bench", master="local[2]", scratch_folder=folder / "scratch", confs=confs)


def processor_seconds(server: Postgres) -> dict[str, float]:
    """What this process, the JVM that it has started and the database have used so far."""
    tick = os.sysconf("SC_CLK_TCK")
    found = {"Python": time.process_time(), "Spark": 0.0, "server": 0.0}
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            parents[int(path.parent.name)] = int(fields[1])
            # With the children that have ended: a session is a process.
            used[int(path.parent.name)] = sum(map(int, fields[11:15])) / tick
    for process, seconds in used.items():
        above = process
        while parents.get(above, 0) not in (0, os.getpid()):
            above = parents[above]
        if parents.get(above) == os.getpid():
            found["server" if above == server.process.pid else "Spark"] += seconds
    return found


class Followed:
    """A database and pipelines on it; each has its own slot."""

    def __init__(self, server: Postgres, spark: SparkSession, folder: Path, name: str) -> None:
        self.server, self.spark, self.folder, self.name = server, spark, folder, name
        with server.connect() as db:
            db.execute(f"CREATE DATABASE {name}")
        self.conn_id = f"bench_{name}"
        os.environ[f"AIRFLOW_CONN_{self.conn_id.upper()}"] = server.uri(name)

    def sql(self, *statements: str) -> None:
        with self.server.connect(self.name) as db:
            for statement in statements:
                db.execute(statement)

    def pipeline(self, name: str) -> Path:
        """A pipeline file on every table of the database."""
        slot = f"{self.name}_{name}"
        self.sql(f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')")
        source = {"type": "postgres", "postgres_conn_id": self.conn_id, "slot": slot, "publication": "p"}
        settings = {
            "name": name, "envelope": "debezium", "source": source, "warehouse": "wh",
            "transaction": {"max_records": 2**40}, "defaults": {"schema": "from_source"},
            "tables": {"include": ["public.*"]},
        }  # fmt: skip
        file = self.folder / f"{self.name}_{name}.yaml"
        file.write_text(yaml.safe_dump(settings))
        return file

    def run(self, file: Path) -> tuple[float, float]:
        """One run; the seconds until everything is bound, and from there on."""
        begin = perf_counter()
        config = discovered(load_pipeline(file, root=self.folder / self.name))
        deployment = Deployment(config, lambda: self.spark)
        attempt = Attempt(Owner(new_token()), new_token())
        mint(deployment.pipeline, attempt)
        bound = perf_counter()
        run(deployment.pipeline, attempt)
        return bound - begin, perf_counter() - bound

    def drop_slots(self) -> None:
        self.sql(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
            " WHERE NOT temporary AND database = current_database()"
        )


def update(works: Followed, rows: int) -> None:
    """Change every row, so many to a commit."""
    with works.server.connect(works.name) as db:
        for first in range(1, rows + 1, ROWS_PER_COMMIT):
            last = first + ROWS_PER_COMMIT - 1
            db.execute(f"UPDATE accounts SET amount = amount + 1 WHERE id BETWEEN {first} AND {last}")
    time.sleep(1)  # Its session's own work is to be counted before what is measured.


def throughput(works: Followed, rows: int, rounds: int) -> None:
    works.sql(
        f"CREATE TABLE accounts ({COLUMNS})", "ALTER TABLE accounts REPLICA IDENTITY FULL",
        "CREATE PUBLICATION p FOR ALL TABLES",
        "INSERT INTO accounts SELECT n, 'name ' || n, n / 4.0, repeat('n', 40), now()"
        f" FROM generate_series(1, {rows}) n", "ANALYZE accounts",
    )  # fmt: skip
    url = f"jdbc:postgresql://127.0.0.1:{works.server.port}/{works.name}"
    properties = {
        "user": "owner",
        "password": PASSWORD,
        "driver": "org.postgresql.Driver",
        "fetchsize": "10000",
    }

    def plain(turn: int) -> tuple[float, float]:
        begin = perf_counter()
        table = works.spark.read.jdbc(
            url,
            "accounts",
            column="id",
            lowerBound=1,
            upperBound=rows,
            numPartitions=2,
            properties=properties,
        )
        table.write.parquet(str(works.folder / f"plain-{turn}"))
        return 0.0, perf_counter() - begin

    def first_rows(turn: int) -> tuple[float, float]:
        return works.run(works.pipeline(f"turn_{turn}"))

    def changes(turn: int) -> tuple[float, float]:
        taken = works.run(works.folder / f"{works.name}_turn_{turn}.yaml")
        works.drop_slots()
        works.sql("VACUUM accounts")
        return taken

    ways: dict[str, Callable[[int], tuple[float, float]]] = {
        "plain read": plain, "first rows": first_rows, "changes": changes,
    }  # fmt: skip
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    used: dict[str, Counter[str]] = {name: Counter() for name in ways}
    for turn in range(rounds + 1):
        for name, way in ways.items():
            if name == "changes":
                update(works, rows)
            before = processor_seconds(works.server)
            found = way(turn)
            if turn:  # The first round warms up.
                taken[name].append(found)
                after = processor_seconds(works.server)
                used[name].update({each: after[each] - before[each] for each in after})
    show(rows, taken, {name: {one: total[one] / rounds for one in total} for name, total in used.items()})


def show(
    rows: int, taken: Mapping[str, list[tuple[float, float]]], used: Mapping[str, Mapping[str, float]]
) -> None:
    medians = {
        name: [statistics.median(each) for each in zip(*found, strict=True)] for name, found in taken.items()
    }
    seconds = {name: sum(found) for name, found in medians.items()}
    print(f"{rows:,} rows\n")
    print("| | captured and bound, s | the rest, s | rows per second | against the plain read |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for name, (bound, rest) in medians.items():
        ratio = seconds["plain read"] / seconds[name]
        print(f"| {name} | {bound:.2f} | {rest:.2f} | {rows / seconds[name]:,.0f} | {ratio:.2f}x |")
    each = ("server", "Python", "Spark")
    print(f"\n| processor seconds per 100,000 rows | {' | '.join(each)} |\n| --- | ---: | ---: | ---: |")
    for name, total in used.items():
        per = [f"{total[one] / rows * 100_000:.2f}" for one in each]
        print(f"| {name} | {' | '.join(per)} |")


def many_tables(pipelines: Mapping[int, Followed], changed: int, rounds: int) -> dict[int, list[float]]:
    """The seconds of runs that take one source transaction over `changed` tables, by the number of tables
    that the pipeline has. The pipelines take turns, so that none has the warmer engine."""
    files = {}
    for tables, works in pipelines.items():
        with works.server.connect(works.name) as db:
            for number in range(tables):
                db.execute(f"CREATE TABLE t{number:03} (id int PRIMARY KEY, n int)")
        works.sql("CREATE PUBLICATION p FOR ALL TABLES")
        files[tables] = works.pipeline("many")
        works.run(files[tables])
    taken: dict[int, list[tuple[float, float]]] = {tables: [] for tables in pipelines}
    for turn in range(rounds + 1):
        for tables, works in pipelines.items():
            with works.server.connect(works.name) as db, db.transaction():
                for number in range(changed):
                    db.execute(f"INSERT INTO t{number:03} VALUES ({turn}, 1)")
            found = works.run(files[tables])
            if turn:
                taken[tables].append(found)
    for works in pipelines.values():
        works.drop_slots()
    return {
        tables: [statistics.median(each) for each in zip(*found, strict=True)]
        for tables, found in taken.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--tables", type=int, default=200)
    parser.add_argument("--changed", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory", default="2g")
    given = parser.parse_args()
    server = start()
    try:
        with tempfile.TemporaryDirectory(prefix="tidemark-bench-") as scratch:
            folder = Path(scratch)
            spark = bench_session(folder, given.memory)
            if given.rows:
                throughput(Followed(server, spark, folder, "plain"), given.rows, given.rounds)
            if given.tables:
                print(f"\nA source transaction over {given.changed} tables\n")
                print(
                    "| tables of the pipeline | captured and bound, s | the rest, s |\n| ---: | ---: | ---: |"
                )
                pipelines = {
                    count: Followed(server, spark, folder, f"many_{count}")
                    for count in (given.changed, given.tables)
                }
                for count, (bound, rest) in many_tables(pipelines, given.changed, given.rounds).items():
                    print(f"| {count} | {bound:.2f} | {rest:.2f} |")
            spark.stop()
    finally:
        server.stop()


if __name__ == "__main__":
    main()
