"""Columns between two runs: those that came and went, and those that are never sent (scenario Q4)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.postgres_pipeline import Rig
from tidemark.core.errors import InvalidUsage

pytestmark = pytest.mark.server
MakeRig = Callable[..., Rig]


@pytest.fixture
def t(rig: MakeRig) -> Rig:
    works = rig(t=("id INT NOT NULL, x INT", ["id"]))
    works.ready("CREATE TABLE t (id int PRIMARY KEY, x int)", "INSERT INTO t VALUES (1, 1)")
    works.bind()
    return works


def test_regression_a_column_that_is_added_and_dropped_between_two_runs_stops_nothing(t: Rig) -> None:
    t.sql("ALTER TABLE t ADD y int", "INSERT INTO t VALUES (2, 2, 2)", "UPDATE t SET y = 7 WHERE id = 1")
    t.sql("ALTER TABLE t DROP y", "INSERT INTO t VALUES (3, 3)")
    assert t.changes(*t.bind()) == [("t", "c", (2, 2)), ("t", "c", (1, 1)), ("t", "c", (3, 3))]


def test_a_column_that_may_have_been_renamed_is_not_taken_for_one_that_is_gone(t: Rig) -> None:
    t.sql("ALTER TABLE t ADD y int", "INSERT INTO t VALUES (2, 2, 2)", "ALTER TABLE t RENAME y TO z")
    with pytest.raises(InvalidUsage, match="'y' is not declared, and the table no longer has it") as no:
        t.bind()
    assert "`tidemark source reread PIPELINE public.t`" in no.value.hint


def test_regression_short_columns_need_no_full_identity(rig: MakeRig) -> None:
    """Whether values may be stored out of line is the server's own word: it has made a place for them."""
    works = rig(t=("id INT NOT NULL, code STRING, total DECIMAL(12,2)", ["id"]))
    works.sql("CREATE TABLE t (id int PRIMARY KEY, code varchar(10), total numeric(12,2))")
    works.sql("CREATE PUBLICATION p FOR TABLE t")
    works.sql(f"SELECT pg_create_logical_replication_slot('{works.database}', 'pgoutput')")
    works.bind()
    works.sql("INSERT INTO t VALUES (1, 'a', 1)", "UPDATE t SET id = 2")
    assert [one[1:] for one in works.changes(*works.bind())] == [
        ("c", (1, "a", "1.00")), ("d", (1,)), ("c", (2, "a", "1.00")),
    ]  # fmt: skip
    works.sql("ALTER TABLE t ALTER code TYPE varchar(3000)")
    with pytest.raises(InvalidUsage, match="an update does not send code when a large value is unchanged"):
        works.bind()


def test_regression_what_is_wrong_with_several_tables_is_told_at_once(rig: MakeRig) -> None:
    shape = ("id INT NOT NULL, x INT", ["id"])
    works = rig(a=shape, b=shape, c=shape)
    works.ready(
        "CREATE TABLE a (id int PRIMARY KEY, x bigint)", "CREATE TABLE b (id int PRIMARY KEY)",
        "CREATE TABLE c (id int PRIMARY KEY, x int, y int)",
    )  # fmt: skip
    with pytest.raises(InvalidUsage, match="3 problems") as refused:
        works.bind()
    for said in (
        "(1) table public.a: column 'x' can't be read as INT without loss",
        "(2) table public.b: the declared column 'x' is not sent",
        "(3) table public.c: column 'y' is not declared",
    ):
        assert said in refused.value.fact
    assert "(1) declare it as BIGINT" in refused.value.hint
