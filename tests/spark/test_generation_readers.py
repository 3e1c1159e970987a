"""Readers of several shards while a generation is promoted and taken back, and after every vacuum."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tests.spark.test_generation import COLUMNS, NEW, OLD, kv, opened
from tests.support.deployed import arrive, attempt
from tests.support.state import rows_of
from tidemark.app.deployment import Deployment
from tidemark.app.generation import Generations
from tidemark.app.publish import run_and_publish
from tidemark.app.views import read_together
from tidemark.core.ids import ShardId
from tidemark.pipeline.checkpoint import cuts_of
from tidemark.pipeline.publish import verify_state

pytestmark = pytest.mark.spark

SHARDS = ("a", "b")
Rows = dict[str, list[Any]]


def both(rule: dict[str, str]) -> tuple[dict[str, Any], ...]:
    """Two shards: records with 1 go to one, those with 2 to the other."""
    return tuple(
        {**rule, "name": name, "schema": COLUMNS, "route": {"column": "n", "equals": str(number)}}
        for number, name in enumerate(SHARDS, 1)
    )


def together(deployment: Deployment, view: str) -> tuple[int, Rows]:
    found = read_together(deployment, view=view)
    return found.txn, {name: rows_of(found.rows[name]) for name in SHARDS}


class Watcher:
    """A reader in a thread of its own, that reads again and again until it has read as of a transaction."""

    def __init__(self, deployment: Deployment, *, until: int) -> None:
        self.seen: list[tuple[int, Rows]] = []
        self.failed: list[BaseException] = []
        self._deployment, self._until = deployment, until
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def _watch(self) -> None:
        try:
            while not self._stop.is_set():
                self.seen.append(together(self._deployment, "state" if len(self.seen) % 2 else "fresh"))
                if len({txn for txn, _ in self.seen[-2:]}) == 1 and self.seen[-1][0] == self._until:
                    return
        except BaseException as error:
            self.failed.append(error)

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._stop.set()
        self._thread.join()


def vacuumed(deployment: Deployment) -> None:
    """Another engine removes every file that no table needs now, whatever its age."""
    for name in SHARDS:
        for table in ("log", "state"):
            uri = f"{deployment.shard_uri(ShardId(name))}/{table}"
            DeltaTable(uri).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)


def test_nobody_sees_one_shard_before_a_promotion_and_another_after_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    old = opened(spark, tmp_path, 0, *both(OLD))
    for texts in (("a", "away"), ("away", "gone")):
        arrive(old, *(kv(10 * number + len(text), text, number) for number in (1, 2) for text in texts))
    run_and_publish(old, attempt())
    before = together(old, "fresh")
    assert before == together(old, "state")
    assert before[0] == 2
    file = opened(spark, tmp_path, 1, *both(NEW))
    works = Generations(file)
    pair = works.pair(works.start(reason="another rule of deletes"))
    list(pair.follow(attempt()))
    with Watcher(opened(spark, tmp_path, 0, *both(OLD)), until=3) as watcher:
        assert pair.promote(attempt()).txn == 3
    assert watcher.failed == []
    after = together(opened(spark, tmp_path, 1, *both(NEW)), "fresh")
    assert {name: [(row[0], row[1]) for row in rows] for name, rows in after[1].items()} == {
        "a": [(11, "a"), (14, "gone")], "b": [(21, "a"), (24, "gone")],
    }  # fmt: skip
    assert set(map(str, watcher.seen)) <= {str(before), str(after)}
    assert str(watcher.seen[-1]) == str(after)

    # The cuts say the same to any engine.
    new = opened(spark, tmp_path, 1, *both(NEW))
    for txn, expected in (before, after):
        ((at, versions),) = cuts_of(new.control, as_of=txn, last=1)
        assert at == txn
        for name, version in versions.items():
            uri = f"{new.shard_uri(name)}/state"
            frame = spark.read.format("delta").option("versionAsOf", version).load(uri)
            assert rows_of(frame) == expected[name]
    vacuumed(new)
    again = Generations(new)
    undone = again.pair(again.rollback(reason="the rule was right")).promote(attempt())
    last = opened(spark, tmp_path, 2, *both(OLD))
    assert (undone.txn, together(last, "fresh")[1]) == (4, before[1])
    assert together(last, "state") == (4, before[1])
    for name in SHARDS:
        assert verify_state(last.control, last.state(), ShardId(name)) is not None
