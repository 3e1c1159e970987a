"""A run asks only those shards for a publish that have moved since the last one that asked all of them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.attempts import ingest, validate
from tests.support.memory.world import A, B, World, rec
from tidemark.app import publish
from tidemark.app.publish import publish_due
from tidemark.core.binding import Configuration
from tidemark.core.errors import Determinate
from tidemark.core.ids import ShardId
from tidemark.core.seal import Opinion, Staged
from tidemark.pipeline.context import Pipeline
from tidemark.pipeline.decide import release
from tidemark.pipeline.reclock import reclock
from tidemark.pipeline.upsert import commit_staged
from tidemark.pipeline.validate import Gated

SHARDS = (A, B, ShardId("c"))


class Works:
    """A pipeline of three shards, whose publishes are written down instead of done."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world, self.root = World(), root
        self.asked: list[str] = []
        self.fails_at: str | None = None
        monkeypatch.setattr(publish, "publish_if_due", self.ask)

    def ask(self, deployment: Any, attempt: Any, shard: ShardId, **_: object) -> None:
        self.asked.append(shard)
        if shard == self.fails_at:
            raise Determinate("not now")

    def publish(self, configuration: Configuration | None = None, *, every: bool = False) -> list[str]:
        """Which shards a process of its own asks."""
        pipeline: Pipeline = self.world.process()
        if configuration is not None:
            pipeline = self.world.process(configuration=configuration)
        deployment: Any = SimpleNamespace(
            root=str(self.root / "wh"), shards=SHARDS, pipeline=pipeline, control=pipeline.control
        )
        self.asked.clear()
        publish_due(deployment, self.world.attempt(), every=every)
        return list(self.asked)


@pytest.fixture
def works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Works:
    works = Works(tmp_path, monkeypatch)
    works.world.commit(rec("k", 1))
    assert works.publish() == [*SHARDS], "nobody has asked yet"
    return works


def test_regression_shards_that_have_not_moved_are_not_asked(works: Works) -> None:
    assert works.publish() == []
    works.world.commit(rec("k", 2))
    works.world.commit(rec("k", 3))
    assert works.publish() == ["a"]
    assert works.publish() == []
    works.world.commit(rec("k", 4, table="b"))
    assert works.publish() == ["b"]


def test_what_failed_is_asked_again(works: Works) -> None:
    works.world.commit(rec("k", 2, ends=False), rec("k", 2, table="b"))
    works.fails_at = "b"
    for _ in range(2):
        with pytest.raises(Determinate):
            works.publish()
        assert works.asked == ["a", "b"]
    works.fails_at = None
    assert works.publish() == ["a", "b"]
    assert works.publish() == []


def test_other_settings_and_who_asks_for_it_ask_all(works: Works) -> None:
    assert works.publish(Configuration.of('{"generation": 0, "publish": 10}')) == [*SHARDS]
    assert works.publish() == [*SHARDS]
    assert works.publish() == []
    assert works.publish(every=True) == [*SHARDS]


def test_a_transaction_whose_logs_are_not_brought_up_yet_is_asked_about_again(works: Works) -> None:
    """Its writer died after the seal: the shard has not moved when it is asked, and does so later."""
    works.world.feed(rec("k", 2, table="b"))
    pipeline, attempt = works.world.process(), works.world.attempt()
    reclock(pipeline, attempt)
    staged = ingest(pipeline, attempt, works.world.sealed_upper)
    assert isinstance(staged, Staged)
    commit_staged(pipeline, attempt, staged, validate(pipeline, staged))
    assert works.publish() == ["b"]
    works.world.run()
    assert works.publish() == ["b"]
    assert works.publish() == []


def test_a_paused_shard_is_asked_until_it_was_released(works: Works) -> None:
    works.world.feed(rec("k", 2, table="b"))
    pipeline, attempt = works.world.process(), works.world.attempt()
    reclock(pipeline, attempt)
    staged = ingest(pipeline, attempt, works.world.sealed_upper)
    assert isinstance(staged, Staged)
    gated = Gated(validate(pipeline, staged).finding, Opinion(held={B: "too many NULLs"}))
    commit_staged(pipeline, attempt, staged, gated)
    works.world.run()
    works.world.commit(rec("k", 3))
    assert works.publish() == ["a", "b"]
    assert "b" in works.publish()
    release(works.world.process(), works.world.attempt(), B, reason="looked at")
    assert "b" in works.publish()
    works.world.commit(rec("k", 4))
    assert "b" in works.publish()
    assert works.publish() == []


@pytest.mark.parametrize("content", ["", "[]", '{"upper": 99}', '{"upper": "x", "seal": 1, "settings": 2}'])
def test_a_note_that_cant_be_read_asks_all(works: Works, content: str) -> None:
    (note,) = works.root.rglob("*.json")
    note.write_text(content)
    assert works.publish() == [*SHARDS]
    assert works.publish() == []


def test_another_history_asks_all(works: Works) -> None:
    works.world.warehouse = World().warehouse
    works.world.source = World().source
    works.world.commit(rec("k", 9))
    assert works.publish() == [*SHARDS]
    works.world.warehouse = World().warehouse
    assert works.publish() == [*SHARDS], "one that was set back to nothing"


def test_a_note_that_cant_be_written_fails_nothing(works: Works) -> None:
    (note,) = works.root.rglob("*.json")
    note.unlink()
    note.parent.rmdir()
    note.parent.write_text("a file")
    for _ in range(2):
        assert works.publish() == [*SHARDS]


def test_a_long_way_behind_all_are_asked(works: Works, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish, "SEALS_LOOKED_AT_MAX", 2)
    for value in range(2):
        works.world.commit(rec("k", value))
    assert works.publish() == ["a"]
    for value in range(3):
        works.world.commit(rec("k", value))
    assert works.publish() == [*SHARDS]
