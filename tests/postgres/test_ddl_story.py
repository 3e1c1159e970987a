"""Scenarios Q1 to Q5 end to end: what happens to tables of a database, and what readers of Delta see."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import yaml
from pyspark.sql import SparkSession

from tests.support.postgres_pipeline import CONN_ID, Rig, attempt
from tidemark.app.deployment import Deployment, discovered
from tidemark.app.views import View, open_errors, read
from tidemark.config import load_pipeline
from tidemark.core.errors import InvalidUsage
from tidemark.pipeline.run import run
from tidemark.sources.postgres.source import SlotSource

pytestmark = [pytest.mark.server, pytest.mark.spark]
TABLES = (
    "CREATE TYPE mood AS ENUM ('sad', 'ok')",
    "CREATE TABLE moved (id int PRIMARY KEY DEFERRABLE, v int)",
    "CREATE TABLE plain (id int PRIMARY KEY, f1 int, f2 int, m mood, code varchar(10))",
    'CREATE TABLE "odd table" ("Key 1" int PRIMARY KEY, "Col One" int, "größe" int, "a.b" int, "q""" int)',
    'CREATE TABLE "dotted.table" (id int PRIMARY KEY, list int[], g int GENERATED ALWAYS AS (id) STORED)',
)
ROWS = (
    "INSERT INTO moved VALUES (1, 100), (2, 200), (3, 300)",
    "INSERT INTO plain VALUES (1, 10, 20, 'sad', 'a'), (2, 30, 40, 'ok', 'b')",
    'INSERT INTO "odd table" VALUES (1, 2, 3, 4, 5)',
    "INSERT INTO \"dotted.table\" VALUES (1, '{1,2}'), (2, '[0:1]={1,2}')",
)
FOLLOWED = {
    "public__moved": "SELECT id, v FROM moved",
    "public__plain": "SELECT id, f1, f2, m::text, code FROM plain",
    "public__odd_table": 'SELECT * FROM "odd table"',
    "public__dotted__table": 'SELECT id, list FROM "dotted.table" WHERE id <> 2',
}


class Story:
    """A pipeline on all tables of a database, described by it."""

    def __init__(self, works: Rig, spark: SparkSession) -> None:
        self.works, self._spark, self.sql = works, spark, works.sql
        source = {"type": "postgres", "postgres_conn_id": CONN_ID, "slot": works.database, "publication": "p"}
        self._file = works.root / "p.yaml"
        self._file.write_text(yaml.safe_dump({
            "name": "p", "envelope": "debezium", "source": source, "warehouse": "wh",
            "defaults": {"schema": "from_source"},
            "tables": {"include": ["public.*"], "exclude": ["public.left out"]},
        }))  # fmt: skip

    def deployed(self) -> Deployment:
        config = discovered(load_pipeline(self._file, root=self.works.root))
        return Deployment(config, lambda: self._spark)

    def run(self) -> None:
        run(self.deployed().pipeline, attempt())

    def reread(self, *tables: str) -> None:
        source = self.deployed().pipeline.source
        assert isinstance(source, SlotSource)
        for table in tables:
            source.ask_again(table)
        self.run()

    def rows(self, shard: str) -> list[tuple[Any, ...]]:
        return sorted(tuple(row) for row in read(self.deployed(), shard, view=View.FRESH).collect())

    def check(self) -> None:
        for shard, query in FOLLOWED.items():
            assert self.rows(shard) == sorted(self.sql(query)), shard


def test_q1_q2_q3_q4_q5_the_tables_stay_those_of_the_database_or_are_refused_by_name(
    rig: Callable[..., Rig], spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    story = Story(rig(), spark)
    story.sql(*TABLES, 'CREATE TABLE "left out" (id int)', *ROWS)
    for table in ("moved", '"odd table"', '"dotted.table"'):
        story.sql(f"ALTER TABLE {table} REPLICA IDENTITY FULL")
    story.sql("CREATE PUBLICATION p FOR ALL TABLES")
    story.sql(f"SELECT pg_create_logical_replication_slot('{story.works.database}', 'pgoutput')")
    story.run()
    story.check()
    assert "generated columns are not sent: g" in caplog.text
    [bad] = open_errors(story.deployed(), "public__dotted__table").collect()
    assert '"[0:1]={1,2}"' in bad["_raw"]

    # What the log carries goes on: keys that are moved, a column that comes and goes, odd names.
    story.sql("UPDATE moved SET id = id % 3 + 1", "ALTER TABLE plain ADD y int")
    story.sql("INSERT INTO plain VALUES (3, 1, 1, 'ok', 'c', 9)", "ALTER TABLE plain DROP y")
    story.sql('UPDATE "odd table" SET "größe" = 7, "Key 1" = 2', "VACUUM FULL plain")
    story.run()
    story.check()

    # What it does not say stops the run, by name, all at once; read anew, the tables are right again.
    story.sql("ALTER TABLE plain RENAME f1 TO f3", "ALTER TABLE plain RENAME f2 TO f1")
    story.sql("ALTER TABLE plain RENAME f3 TO f2", "ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'")
    story.sql('ALTER TABLE "odd table" ALTER "Col One" TYPE int USING "Col One" * 100')
    story.sql(
        "ALTER TABLE moved SET UNLOGGED", "DELETE FROM moved WHERE id = 1", "ALTER TABLE moved SET LOGGED"
    )
    with pytest.raises(InvalidUsage, match="3 problems") as refused:
        story.run()
    assert "column 'f1' was renamed to 'f2'" in refused.value.fact
    assert "the label 'sad' of an enum was renamed to 'blue'" in refused.value.fact
    assert "table public.moved: its rows were rewritten" in refused.value.fact
    assert "`tidemark source reread PIPELINE 'public.odd table'`" in refused.value.hint
    story.reread("public.plain", "public.moved", "public.odd table")
    story.check()
