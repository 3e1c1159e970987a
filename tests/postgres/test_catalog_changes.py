"""What the log of a database does not say is noticed from its catalog, and the table is refused by name until
it is read anew (scenarios Q2, Q3)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from tests.postgres.worker import CONFIG, pipeline_at
from tests.support.postgres_pipeline import CONN_ID, Rig, attempt
from tidemark.core.errors import InvalidUsage
from tidemark.pipeline.context import binding_at
from tidemark.pipeline.run import run
from tidemark.sources.postgres import slot as slots
from tidemark.sources.postgres.catalog import CatalogFacts, is_rewritten
from tidemark.sources.postgres.slot import connect
from tidemark.sources.postgres.tables import published_tables

pytestmark = pytest.mark.server
MakeRig = Callable[..., Rig]
MOOD = "CREATE TYPE mood AS ENUM ('sad', 'ok')"
T = "CREATE TABLE t (id bigint PRIMARY KEY, x int, y int, value mood)"
COLUMNS = ("id", "x", "y", "value")
T_SCHEMA = "id BIGINT NOT NULL, x INT, y INT, value STRING"


class Followed:
    """A pipeline on table `t`, with real logs and no engine; what was captured, folded here."""

    def __init__(self, works: Rig) -> None:
        self.works, self.sql = works, works.sql

    def run(self) -> None:
        (self.works.root / CONFIG).write_text(self.works.config().canonical_json())
        run(pipeline_at(self.works.root), attempt())

    def refused(self) -> InvalidUsage:
        """What a run is refused for; it binds nothing."""
        before = self.upper()
        with pytest.raises(InvalidUsage) as error:
            self.run()
        assert self.upper() == before
        return error.value

    def upper(self) -> int:
        return pipeline_at(self.works.root).control.bindings.head().upper

    def reread(self) -> None:
        self.works.source().ask_again("public.t")
        self.run()

    def captured(self) -> list[tuple[Any, ...]]:
        """The rows that the records come to."""
        found: dict[int, tuple[Any, ...]] = {}
        pipeline = pipeline_at(self.works.root)
        for txn in range(1, self.upper()):
            for record in self.works.records(binding_at(pipeline, txn)):  # type: ignore[arg-type]
                row = record["after"] or record["before"]
                found.pop(row["id"], None)
                if record["after"]:
                    found[row["id"]] = tuple(row.get(name) for name in COLUMNS)
        return sorted(found.values())

    def rows(self) -> list[tuple[Any, ...]]:
        """The rows of the database."""
        return self.sql(f"SELECT {', '.join(COLUMNS)} FROM t ORDER BY id")


@pytest.fixture
def t(rig: MakeRig) -> Followed:
    """A table of two rows that was read."""
    works = rig(t=(T_SCHEMA, ["id"]))
    works.sql(MOOD, T, "INSERT INTO t VALUES (1, 10, 20, 'sad'), (2, 30, 40, 'ok')")
    works.sql("CREATE PUBLICATION p FOR ALL TABLES", slots.create_sql(works.database))
    followed = Followed(works)
    followed.run()
    return followed


UNSAID = [
    (
        "column 'x' was renamed to 'y', column 'y' was renamed to 'x'",
        ["ALTER TABLE t RENAME x TO z", "ALTER TABLE t RENAME y TO x", "ALTER TABLE t RENAME z TO y"],
    ),
    (
        "column 'x' was dropped, and another column has its name",
        ["ALTER TABLE t DROP x", "ALTER TABLE t ADD x int"],
    ),
    ("the label 'sad' of an enum was renamed to 'blue'", ["ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'"]),
    ("its rows were rewritten", ["ALTER TABLE t ALTER x TYPE int USING x * 100"]),
    (
        "its rows were rewritten",
        ["ALTER TABLE t SET UNLOGGED", "INSERT INTO t (id) VALUES (3)", "ALTER TABLE t SET LOGGED"],
    ),
    (
        "its key was created again",
        ["ALTER TABLE t DROP CONSTRAINT t_pkey", "ALTER TABLE t ADD PRIMARY KEY (id)"],
    ),
    (
        "its publication was created again or altered",
        [
            "ALTER PUBLICATION p SET (publish = 'insert')", "DELETE FROM t WHERE id = 1",
            "ALTER PUBLICATION p SET (publish = 'insert, update, delete, truncate')",
        ],
    ),
    (
        "its publication was created again or altered",
        ["DROP PUBLICATION p", "INSERT INTO t (id) VALUES (4)", "CREATE PUBLICATION p FOR TABLE t"],
    ),
    (
        "it was removed from the publication and added again",
        [
            "ALTER PUBLICATION p DROP TABLE t", "INSERT INTO t (id) VALUES (5)",
            "ALTER PUBLICATION p ADD TABLE t",
        ],
    ),
]  # fmt: skip


def test_regression_what_the_log_does_not_say_is_refused_by_name_until_the_table_is_read_anew(
    t: Followed,
) -> None:
    for number, (fact, statements) in enumerate(UNSAID, 10):
        t.sql(*statements, f"INSERT INTO t (id, x, y, value) VALUES ({number}, 9, 90, 'ok')")
        refused = t.refused()
        assert refused.fact.startswith(f"table public.t: {fact}")
        assert "`tidemark source reread PIPELINE public.t`" in refused.hint
        t.reread()
        t.sql(f"UPDATE t SET x = 5 WHERE id = {number}")
        t.run()
        assert t.captured() == t.rows()


def test_what_leaves_rows_as_they_are_is_no_reason_to_read_a_table_anew(t: Followed) -> None:
    for statements in (
        ["VACUUM FULL t"],
        ["CLUSTER t USING t_pkey"],
        ["REINDEX TABLE CONCURRENTLY t"],
        ["ALTER TYPE mood ADD VALUE 'glad'", "ALTER TABLE t ALTER x SET DEFAULT 7, ALTER y SET NOT NULL"],
        ["CREATE TABLE other (id int PRIMARY KEY)", "ANALYZE t", "CREATE INDEX ON t (x)"],
        ["ALTER TABLE t ALTER x TYPE int USING x"],
    ):
        t.sql(*statements, "UPDATE t SET x = x + 1 WHERE id = 2")
        t.run()
        assert t.captured() == t.rows()


def test_a_truncate_that_the_log_carries_explains_another_file(t: Followed) -> None:
    t.works.settings["source"] = {**t.works.config().source.model_dump(), "on_truncate": "apply"}
    for statements in (
        ["TRUNCATE t", "INSERT INTO t VALUES (7, 1, 1)"],
        ["UPDATE t SET x = 2", "TRUNCATE t", "INSERT INTO t VALUES (8, 1, 1)"],
    ):
        t.sql(*statements)
        t.run()
        t.run()  # A truncate waits until everything before it is done.
        assert t.captured() == t.rows()


def test_regression_a_renamed_column_is_told_with_what_its_new_name_needs(t: Followed) -> None:
    t.sql("ALTER TABLE t RENAME x TO xx")
    refused = t.refused()
    assert "column 'x' was renamed to 'xx'" in refused.fact
    assert "column 'xx' is not declared" in refused.fact
    assert "reread" in refused.hint


def test_regression_a_publication_that_leaves_changes_out_is_refused(t: Followed) -> None:
    t.sql("ALTER PUBLICATION p SET (publish = 'insert, truncate')")
    refused = t.refused()
    assert refused.fact == "publication 'p' does not publish update, delete"
    t.sql(refused.hint.partition(";")[0])
    assert "its publication was created again or altered" in t.refused().fact


def test_regression_a_column_that_comes_back_after_a_run_without_it_is_another_one(t: Followed) -> None:
    [shard] = t.works.config().model_dump(by_alias=True, exclude_none=True, mode="json")["shards"]
    t.works.settings["shards"] = [{**shard, "on_schema_change": "missing_as_null"}]
    t.sql("ALTER TABLE t DROP x", "INSERT INTO t (id) VALUES (3)")
    t.run()
    t.sql("ALTER TABLE t ADD x int")
    assert "column 'x' was dropped, and another column has its name" in t.refused().fact
    t.reread()
    assert t.captured() == t.rows()


def test_regression_a_reading_that_was_not_bound_is_made_again_when_its_table_was_rewritten(
    rig: MakeRig,
) -> None:
    works = rig(t=(T_SCHEMA, ["id"]))
    works.ready(MOOD, T, "INSERT INTO t VALUES (1, 10, 20, 'sad')")
    works.source().offer(None)
    works.sql("ALTER TABLE t ALTER x TYPE int USING x * 100")
    followed = Followed(works)
    followed.run()
    assert followed.captured() == followed.rows()


def test_a_record_of_the_catalog_that_is_lost_is_told_with_the_way_on(t: Followed) -> None:
    for path in (t.works.root / "wh" / "p" / "_captured").glob("catalog-*.json"):
        path.unlink()
    assert "the record of its catalog" in t.refused().fact
    t.reread()
    assert t.captured() == t.rows()


def test_what_the_document_says_is_known_by_the_catalog_is(rig: MakeRig) -> None:
    """Without runs: what the facts say after each statement."""
    works = rig(t=(T_SCHEMA, ["id"]))
    works.ready(
        MOOD, "CREATE DOMAIN feeling AS mood", "CREATE TYPE pair AS (one int, two feeling)",
        "CREATE TABLE t (id int PRIMARY KEY, list feeling[], two pair)", "INSERT INTO t VALUES (1)",
    )  # fmt: skip

    def facts() -> CatalogFacts:
        with closing(connect(CONN_ID)) as db:
            return published_tables(db, "p")["public.t"].facts

    for statement, said in (
        ("ALTER TYPE mood RENAME VALUE 'ok' TO 'fine'", "the label 'ok' of an enum was renamed to 'fine'"),
        ("ALTER PUBLICATION p SET TABLE t WHERE (id > 0)", "it was removed from the publication"),
        ("ALTER PUBLICATION p SET TABLE t (id, two)", "it was removed from the publication"),
        ("ALTER PUBLICATION p OWNER TO CURRENT_USER", ""),
        (
            "ALTER PUBLICATION p SET (publish_via_partition_root)",
            "its publication was created again or altered",
        ),
    ):
        before = facts()
        works.sql(statement)
        assert [one.startswith(said) for one in before.differences(facts())] == ([True] if said else [])
    before = facts()
    works.sql("ALTER TABLE t ADD volatile float8 DEFAULT random()")
    [oid] = before.other_files(facts())
    with closing(connect(CONN_ID)) as db:
        assert is_rewritten(db, oid, since=before.since[oid])
