"""Scenario G23 on real tables: a promotion compares the rows of the shards that may differ, no others."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from pyspark.sql import SparkSession

from tests.support.deployed import arrive, attempt
from tests.support.state import rows_of
from tidemark.app import correction, views
from tidemark.app.deployment import Deployment
from tidemark.app.generation import Generations
from tidemark.app.publish import run_and_publish
from tidemark.app.views import fresh_pins, read
from tidemark.config import PipelineConfig
from tidemark.core.errors import InvalidUsage
from tidemark.core.ids import QUARANTINE, ShardId, Txn
from tidemark.delta.index import Hits, KeyIndex
from tidemark.pipeline import promotion
from tidemark.pipeline.maintain import expire_tombstones
from tidemark.pipeline.publish import verify_state
from tidemark.spark.plane import SparkPlane
from tidemark.spark.state_table import specs_of

pytestmark = pytest.mark.spark

NAMES = tuple(map(ShardId, ("a", "b", "c")))
DELETES = {"apply_as_deletes": "v = 'gone'"}


def opened(spark: SparkSession, root: Path, generation: int, shards: Sequence[dict[str, Any]]) -> Deployment:
    (root / "in").mkdir(exist_ok=True)
    source = {"type": "files", "path": "in", "format": "json", "settle_seconds": 0}
    settings = {"name": "p", "source": source, "warehouse": "wh", "generation": generation}
    declared = [{"schema": "k INT, v STRING, n INT, s STRING", "keys": ["k"], **one} for one in shards]
    return Deployment(PipelineConfig.model_validate({**settings, "shards": declared}).at(root), lambda: spark)


def three(**others: dict[str, Any]) -> list[dict[str, Any]]:
    """Three shards, some with other settings."""
    return [
        {"name": name, "route": {"column": "s", "equals": name}, **DELETES, **others.get(name, {})}
        for name in NAMES
    ]


def records(*known: tuple[str, int, str]) -> list[dict[str, Any]]:
    return [{"s": shard, "k": key, "v": value, "n": 1} for shard, key, value in known]


@contextmanager
def comparing() -> Iterator[list[ShardId]]:
    """The shards whose rows are compared for a promotion."""
    correct, found, lock = SparkPlane.correct, list[ShardId](), threading.Lock()

    def noted(self: SparkPlane, shard: ShardId, **known: Any) -> Any:
        with lock:
            found.append(shard)
        return correct(self, shard, **known)

    with patch.object(SparkPlane, "correct", noted):
        yield found


def loaded(spark: SparkSession, root: Path) -> Deployment:
    old = opened(spark, root, 0, three())
    arrive(old, *records(("a", 1, "x"), ("a", 2, "gone"), ("b", 1, "away"), ("b", 2, "y"), ("c", 1, "z")))
    arrive(old, *records(("a", 1, "gone"), ("b", 2, "gone"), ("c", 2, "away")))
    run_and_publish(old, attempt())
    return old


def values(deployment: Deployment, shard: str) -> dict[int, str]:
    return {row["k"]: row["v"] for row in read(deployment, shard).collect()}


NEW_B = {"b": {"apply_as_deletes": "v = 'away'"}}


def promoted(spark: SparkSession, root: Path) -> tuple[Deployment, list[ShardId]]:
    """A pipeline whose shard `b` gets another rule; and the shards that were compared for it."""
    old = loaded(spark, root)
    works = Generations(opened(spark, root, 1, three(**NEW_B)))
    pair = works.pair(works.start(reason="another rule for b"))
    list(pair.follow(attempt()))
    arrive(old, *records(("b", 3, "gone"), ("c", 1, "gone")))
    with comparing() as compared:
        pair.promote(attempt())
    return opened(spark, root, 1, three(**NEW_B)), compared


def test_g23_one_changed_shard_of_several_is_compared_and_all_tables_are_right(
    spark: SparkSession, tmp_path: Path
) -> None:
    new, compared = promoted(spark, tmp_path)
    assert compared == ["b"]
    assert [values(new, name) for name in NAMES] == [{}, {2: "gone", 3: "gone"}, {2: "away"}]
    for name in NAMES:
        assert verify_state(new.control, new.state(), name) is not None
        assert rows_of(read(new, name, view="state")) == rows_of(read(new, name))
    # The next generation: what the promotion has corrected is compared, and so is a new rule's shard.
    again = {**NEW_B, "c": {"apply_as_deletes": "v = 'away'"}}
    works = Generations(opened(spark, tmp_path, 2, three(**again)))
    pair = works.pair(works.start(reason="another rule for c"))
    list(pair.follow(attempt()))
    shown = pair.compare()
    assert {shard: one.is_equal for shard, one in shown.items()} == {"a": True, "b": True, "c": False}
    with comparing() as compared:
        pair.promote(attempt())
    assert sorted(compared) == ["b", "c"]
    last = opened(spark, tmp_path, 2, three(**again))
    assert [values(last, name) for name in NAMES] == [{}, {2: "gone", 3: "gone"}, {1: "gone"}]


def test_g23_a_promotion_that_skips_a_shard_that_differs_is_noticed(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A mutant of the test above."""
    with patch.object(promotion, "unchanged", lambda _, __, shards, **___: set(shards)):
        new, compared = promoted(spark, tmp_path)
    assert not compared
    assert values(new, "b") != {2: "gone", 3: "gone"}


@pytest.mark.parametrize("is_overlooked", [False, True], ids=["", "mutant"])
def test_g23_equal_rows_with_another_lateness_have_other_tombstones(
    spark: SparkSession, tmp_path: Path, is_overlooked: bool
) -> None:
    """The pipeline has forgotten a deleted key, and the candidate has not. A later record that is older than
    the deletion must not bring it back."""

    def shards(lateness: int) -> list[dict[str, Any]]:
        return [{"name": "t", "sequence_by": "n", "lateness": lateness, **DELETES}]

    def sequenced(*known: tuple[int, str, int]) -> list[dict[str, Any]]:
        return [{"s": "", "k": key, "v": value, "n": number} for key, value, number in known]

    old = opened(spark, tmp_path, 0, shards(10))
    for one in ((1, "a", 100), (1, "gone", 110), (2, "b", 200), (3, "c", 300), (9, "gone", 310)):
        arrive(old, *sequenced(one))
        run_and_publish(old, attempt())
    assert expire_tombstones(old.control, old.keeper(), ShardId("t"), generation=0).files == 1
    works = Generations(opened(spark, tmp_path, 1, shards(1_000)))
    pair = works.pair(works.start(reason="records may be later"))
    # The mutant: every setting but the lateness counts.
    plain = patch.object(correction.TableCorrector, "settings", lambda *_: "")
    with comparing() as compared:
        if is_overlooked:
            plain.start()
        try:
            pair.promote(attempt())
        finally:
            if is_overlooked:
                plain.stop()
    assert compared == ([] if is_overlooked else ["t"])
    new = opened(spark, tmp_path, 1, shards(1_000))
    arrive(new, *sequenced((1, "late", 105)))
    assert (values(new, "t") == {2: "b", 3: "c"}) is not is_overlooked


def test_g23_many_quarantined_records_of_few_shards(spark: SparkSession, tmp_path: Path) -> None:
    """Open errors are looked for in the shards that have some, and only they are staged."""
    old = opened(spark, tmp_path, 0, three())
    arrive(old, *records(("a", 1, "x"), ("b", 1, "y")), {"s": "b", "k": 7, "v": "z", "n": "broken"})
    works = Generations(opened(spark, tmp_path, 1, three(**NEW_B)))
    pair = works.pair(works.start(reason="another rule for b"))
    errors = correction.open_errors
    with comparing() as compared, patch.object(correction, "open_errors", side_effect=errors) as asked:
        done = pair.promote(attempt())
    assert sorted(compared) == sorted(["b", QUARANTINE])
    assert [one.args[1] for one in asked.call_args_list] == ["b"]
    assert done.corrections[QUARANTINE].upserts == 1


def test_g23_what_is_read_is_the_log_where_it_is_short_and_whole(spark: SparkSession, tmp_path: Path) -> None:
    works = loaded(spark, tmp_path)
    a = specs_of(works.config).of(NAMES[0])
    assert fresh_pins(works, a, as_of=Txn(2)).base is None
    for name, value in (("LOG_ROWS_MAX", 0), ("since_of", lambda _: Txn(2))):
        with patch.object(views, name, value):
            assert fresh_pins(works, a, as_of=Txn(2)).base is not None
    sequenced = replace(a, rule=replace(a.rule, sequence_by="n"))
    assert fresh_pins(works, sequenced, as_of=Txn(2)).base is not None, "a log knows forgotten tombstones"
    with patch.object(views, "since_of", lambda _: Txn(2)), pytest.raises(views.Truncated):
        fresh_pins(works, a, as_of=Txn(1))


def test_g23_a_damaged_table_is_no_difference_and_stops_a_promotion_before_it_is_bound(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The key index forgets a row, so the candidate's state has two of one key; its carried digest agrees."""
    old, new = ([{"name": "a", "sequence_by": "n", **rule}] for rule in (DELETES, NEW_B["b"]))
    live = opened(spark, tmp_path, 0, old)
    arrive(live, *records(("a", 1, "x"), ("a", 2, "away")))
    arrive(live, {"k": 1, "v": "y", "n": 2, "s": "a"})
    works = Generations(opened(spark, tmp_path, 1, new))
    pair = works.pair(works.start(reason="another rule"))
    list(pair.follow(attempt(), transactions_max=1))
    with patch.object(KeyIndex, "find", lambda *_, **__: Hits.none()):
        list(pair.follow(attempt()))
    with pytest.raises(
        InvalidUsage, match=r"candidate's table is damaged: .* 1 keys of version 1 have several"
    ):
        pair.promote(attempt())
    assert live.control.bindings.head().upper == 3, "nothing is bound"
    works.abort(reason="its state is damaged")
    again = works.pair(works.start(reason="another rule"))
    assert again.promote(attempt()).txn == 3
    assert values(opened(spark, tmp_path, 1, new), "a") == {1: "y"}
