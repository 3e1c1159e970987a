"""Columns that come with records are on record before a row of them is sealed, whoever finds them, and
whatever happens to it then: real control tables and logs, rows without Spark."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.deployed import attempt
from tests.support.growing import COLUMNS, INT, LONG, TEXT, Typed, land
from tests.support.light import SHARD
from tests.support.sealing import announce_generation
from tidemark.app import tasks
from tidemark.core.errors import InvalidUsage
from tidemark.core.ids import Txn
from tidemark.core.replay import Verdict
from tidemark.core.seal import Fenced
from tidemark.core.shape import Misfit, NewColumns, Outgrown
from tidemark.pipeline import reclock as minting
from tidemark.pipeline.run import replay
from tidemark.pipeline.schema_change import put_on_record
from tidemark.pipeline.validate import judge_gathered


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return tmp_path


def test_the_first_transaction_that_has_a_column_gives_its_type(root: Path) -> None:
    for row in ({}, {"age": INT}, {"age": LONG}, {"age": TEXT, "note": TEXT}, {}):
        land(root, **row)
    works = Typed(root)
    assert works.run(transactions_max=3) == [1, 2, 3]
    assert works.recorded() == {**COLUMNS, "age": "INT"}
    assert works.run() == [4, 5]
    assert works.recorded() == {**COLUMNS, "age": "INT", "note": "STRING"}
    again = Typed(root)
    assert again.added == {SHARD: {"age": "INT", "note": "STRING"}}
    found = replay(again.pipeline, attempt(), txn_from=Txn(1), txn_to=Txn(5))
    assert [one.verdict for one in found] == [Verdict.IDENTICAL] * 5


@pytest.mark.parametrize("step", ["put_on_record", "reopen"])
def test_who_dies_at_any_step_leaves_what_the_next_one_goes_on_with(
    root: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    land(root)
    assert Typed(root).run() == [1]
    land(root, age=INT)
    with monkeypatch.context() as patched:
        if step == "reopen":
            patched.setattr(Typed, "reopen", dies)
        else:
            patched.setattr("tidemark.pipeline.schema_change.put_on_record", dies)
        with pytest.raises(KeyboardInterrupt):
            Typed(root).run()
    assert ("age" in Typed(root).recorded()) == (step == "reopen")
    assert Typed(root).control.seals.head().upper == 2
    assert Typed(root).run() == [2]
    assert Typed(root).recorded() == {**COLUMNS, "age": "INT"}


def test_a_process_that_has_not_heard_of_a_column_may_not_work_on_the_log(root: Path) -> None:
    """It would read rows without it. Opened again, it goes on."""
    land(root)
    works = Typed(root)
    assert works.run() == [1]
    late, reader = Typed(root), Typed(root)
    for one in (late, reader):
        one.control.log(SHARD).head()
    land(root, age=INT)
    assert works.run() == [2]
    for _ in range(2):
        with pytest.raises(Outgrown, match="shard points has new columns: age"):
            reader.control.log(SHARD).head()
    assert reader.up_to_date(lambda: reader.control.log(SHARD).head()).upper == 3
    land(root, age=LONG)
    assert late.run() == [3]
    assert late.recorded() == {**COLUMNS, "age": "INT"}


def test_the_steps_of_a_run_seal_what_was_staged_before_a_column_came(root: Path) -> None:
    """Each step is a process of its own; what was gathered without the column stays usable."""
    land(root)
    land(root, age=INT)
    land(root)
    own = attempt()
    minting.mint(Typed(root).pipeline, own)
    done = tasks.ingest(Typed(root), own)
    assert [one["txn"] for one in done["staged"]] == [1, 2, 3]
    judge_gathered(Typed(root).pipeline, own)
    assert tasks.upsert(Typed(root), own)["sealed"] == {"count": 3, "ranges": [[1, 3]]}
    assert Typed(root).recorded() == {**COLUMNS, "age": "INT"}
    narrow, *wide = Typed(root).sealed_columns()
    assert (narrow, ["`age` INT" in one for one in wide]) == ("", [True, True])
    found = replay(Typed(root).pipeline, attempt(), txn_from=Txn(1), txn_to=Txn(3))
    assert [one.verdict for one in found] == [Verdict.IDENTICAL] * 3


def test_an_older_generation_and_who_comes_late_put_nothing_on_record(root: Path) -> None:
    land(root)
    old = Typed(root)
    assert old.run() == [1]
    decided = NewColumns(Txn(1), {SHARD: {"late": "INT"}})
    put_on_record(old.pipeline, decided)
    announce_generation(replace(old.pipeline, generation=1))
    with pytest.raises(Fenced):
        put_on_record(old.pipeline, NewColumns(Txn(2), {SHARD: {"age": "INT"}}))
    assert old.recorded() == COLUMNS


def test_a_transaction_that_was_bound_for_other_shards_says_what_to_do(root: Path) -> None:
    land(root, age=INT)
    minting.mint(Typed(root).pipeline, attempt())
    changed = Typed(root, shard={"route": {"table": "points"}})
    with pytest.raises(InvalidUsage, match="bound for other shards") as refused:
        changed.run()
    assert "restore its shards" in refused.value.hint
    assert Typed(root).run() == [1]


def test_what_is_declared_counts_and_without_the_word_a_column_has_to_be(root: Path) -> None:
    land(root, age=INT)
    assert Typed(root).run() == [1]
    land(root, age=INT)
    for shard, fact in (
        (
            {"schema": "id BIGINT, value STRING, age BIGINT"},
            "recorded as INT, and the pipeline file says BIGINT",
        ),
        (
            {"on_schema_change": "missing_as_null"},
            "recorded as INT, and the pipeline file does not declare it",
        ),
    ):
        with pytest.raises(Misfit, match=fact):
            Typed(root, shard=shard).run()
    assert Typed(root, shard={"schema": "age INT, id BIGINT, value STRING"}).run() == [2]
