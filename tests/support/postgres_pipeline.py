"""A pipeline on a database of its own: change it, run, and compare with what the database says itself."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pyarrow.parquet as pq
import yaml
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from tests.postgres.worker import CONFIG, pipeline_at
from tests.support.light import captured_lines
from tests.support.postgres import Postgres
from tests.support.workers import Workers
from tidemark.app.deployment import Deployment, new_token
from tidemark.app.generation import Generations
from tidemark.app.tasks import no_session
from tidemark.app.views import View, read
from tidemark.cli.app import app
from tidemark.config import PipelineConfig
from tidemark.core.binding import Binding, Owner
from tidemark.pipeline.context import Attempt, binding_at
from tidemark.pipeline.reclock import mint
from tidemark.pipeline.run import RunReport, run
from tidemark.sources.postgres.pgoutput import parsed_lsn
from tidemark.sources.postgres.source import SlotSource

CONN_ID = "test_db"
ITEMS = "CREATE TABLE items (id int PRIMARY KEY, name text, price numeric(10,2))"
ITEMS_SCHEMA = "id INT NOT NULL, name STRING, price DECIMAL(10,2)"
PAIRS = "CREATE TABLE {} (id bigint PRIMARY KEY, value text)"
PAIRS_SCHEMA = "id BIGINT NOT NULL, value STRING"


def attempt() -> Attempt:
    return Attempt(Owner(new_token()), new_token())


@dataclass
class Rig:
    """One database, one pipeline `p` on it, with one shard per table."""

    postgres: Postgres
    database: str
    root: Path
    spark: SparkSession | None
    schemas: dict[str, tuple[str, list[str]]]
    settings: dict[str, Any]

    def sql(self, *statements: str) -> list[tuple[Any, ...]]:
        """Each statement in a transaction of its own; the rows of the last."""
        with self.postgres.connect(self.database) as db:
            for statement in statements:
                found = db.execute(statement)
            return found.fetchall() if found.description else []

    def transaction(self, *statements: str) -> None:
        """All statements in one transaction."""
        with psycopg.connect(self.postgres.conninfo(self.database)) as db:
            for statement in statements:
                db.execute(statement)

    def ready(self, *statements: str) -> None:
        """Tables, publication and slot."""
        self.sql(*statements)
        full = [f"ALTER TABLE {table} REPLICA IDENTITY FULL" for table in self.schemas]
        tables = ", ".join(self.schemas)
        slot = f"SELECT pg_create_logical_replication_slot('{self.database}', 'pgoutput')"
        self.sql(*full, f"CREATE PUBLICATION p FOR TABLE {tables}", slot)

    def config(self, **more: Any) -> PipelineConfig:
        source = {
            "type": "postgres", "postgres_conn_id": CONN_ID, "slot": self.database, "publication": "p",
        }  # fmt: skip
        shards = [
            {"name": table, "schema": schema, "keys": keys, "route": {"table": f"public.{table}"}}
            for table, (schema, keys) in self.schemas.items()
        ]
        settings = {
            "name": "p", "envelope": "debezium", "source": source, "warehouse": "wh", "shards": shards,
            **self.settings, **more,
        }  # fmt: skip
        return PipelineConfig.model_validate(settings).at(self.root)

    def begun(self, **more: Any) -> Deployment:
        """A process of its own: nothing but the folder and the database is shared with the last one."""
        session: Callable[[], Any] = no_session if self.spark is None else lambda: self.spark
        return Deployment(self.config(**more), session)

    def run(self, **more: Any) -> RunReport:
        return run(self.begun(**more).pipeline, attempt())

    def source(self, **more: Any) -> SlotSource:
        found = self.begun(**more).pipeline.source
        assert isinstance(found, SlotSource)
        return found

    def rows(self, table: str, **more: Any) -> list[tuple[Any, ...]]:
        """What a reader of the shard sees, in order of its key."""
        frame = read(self.begun(**more), table, view=View.FRESH)
        return sorted(tuple(row) for row in frame.collect())

    def slot(self) -> tuple[int, int]:
        """Where the slot stands, and from where the server keeps its log, as it says itself."""
        query = "SELECT confirmed_flush_lsn, restart_lsn FROM pg_replication_slots WHERE slot_name = "
        found = self.sql(f"{query}'{self.database}'")[0]
        return parsed_lsn(found[0]), parsed_lsn(found[1])

    def log_end(self) -> int:
        return parsed_lsn(self.sql("SELECT pg_current_wal_insert_lsn()::text")[0][0])

    def changed(self, table: str) -> list[int]:
        """The transactions that a shard's log has, by the seals."""
        control = self.begun().control
        return [
            seal.txn for seal in control.seals.read(1, control.seals.head().upper) if table in seal.shards
        ]

    # Without Spark: what is bound, and what is in the files of it.

    def bind(self, **more: Any) -> list[Binding]:
        """Bind what the source offers, as a run of its own."""
        works = self.begun(**more)
        owned = mint(works.pipeline, attempt())
        return [binding_at(works.pipeline, txn) for txn in owned.txns]

    def records(self, binding: Binding) -> list[dict[str, Any]]:
        """The captured records of a binding, in order."""
        folder = self.root / "wh" / "p" / "_captured"
        return [
            json.loads(line)
            for file in json.loads(binding.manifest)["files"]
            for line in captured_lines(folder, file, keys=self._keys_of(file))
        ]

    def _keys_of(self, file: dict[str, Any]) -> Sequence[str]:
        return self.config().shard(file["sweep"][0]).keys if "sweep" in file else ()

    def changes(self, *bindings: Binding) -> list[tuple[Any, ...]]:
        """The captured records in short: table, operation, row or key."""
        return [
            (one["source"]["table"], one["op"], tuple((one["after"] or one["before"] or {}).values()))
            for binding in bindings
            for one in self.records(binding)
        ]


def file_of(works: Rig) -> Path:
    """The pipeline as a file."""
    plain = json.loads(works.config().canonical_json())
    shards = [{key: shard[key] for key in ("name", "schema", "keys", "route")} for shard in plain["shards"]]
    for shard in shards:
        shard["route"] = {"table": shard["route"]["table"]}
    kept = {key: plain[key] for key in ("name", "envelope", "source", "warehouse")}
    path = works.root / "p.yaml"
    path.write_text(yaml.safe_dump({**kept, "shards": shards}))
    return path


def told(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "300"})
    return result.exit_code, result.output


def table_of(works: Rig, shard: str) -> list[tuple[int, str]]:
    """The rows that a shard's log comes to, worked out here."""
    uris = DeltaTable(f"{works.root}/wh/p/{shard}/log").file_uris()
    rows = [row for uri in uris for row in pq.ParquetFile(uri).read().to_pylist()]
    found: dict[int, str] = {}
    for row in sorted(rows, key=lambda row: (row["_txn"], row["_offset"], row["_ordinal"])):
        found.pop(row["id"], None)
        if row["_op"] == "U":
            found[row["id"]] = row["value"]
    return sorted(found.items())


class Kept:
    """A pipeline on one table, whose logs are real."""

    def __init__(self, works: Rig) -> None:
        self.works = works
        works.ready(PAIRS.format("pairs"), "INSERT INTO pairs VALUES (1, 'a'), (2, 'b'), (3, 'c')")
        self.write(works.config())
        self.run()

    def write(self, config: Any) -> None:
        (self.works.root / CONFIG).write_text(config.canonical_json())

    def run(self) -> None:
        run(pipeline_at(self.works.root), attempt())

    def promote(self, config: PipelineConfig) -> None:
        """Put another pipeline file in charge, from now on."""
        self.write(config)
        works = Generations(Deployment(config.at(self.works.root), no_session))
        works.pair(works.start(reason="other tables", from_now=True)).promote(attempt())

    def check(self) -> None:
        assert table_of(self.works, "pairs") == self.works.sql("SELECT id, value FROM pairs ORDER BY id")

    def bound(self) -> list[Binding]:
        control = pipeline_at(self.works.root).control
        return list(control.bindings.read(1, control.bindings.head().upper))


@contextmanager
def workers(root: Path, spark: SparkSession | None = None) -> Iterator[Callable[[str, str], int]]:
    """Processes that run the pipeline and die before or after the first step of a kind; each answers with its
    exit status. With a session they work in its JVM, which outlives them."""
    gateway = None
    if spark is not None:
        parameters = spark.sparkContext._gateway.gateway_parameters
        gateway = [parameters.port, parameters.auth_token]
    with Workers("tests.postgres.worker") as pool:
        yield lambda when, kind: pool.run(root=str(root), when=when, kind=kind, gateway=gateway)
