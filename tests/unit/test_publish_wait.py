"""A publish that finds another at work waits for it, and then asks again whether there is anything left."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tidemark import publishing
from tidemark.core.ids import ShardId
from tidemark.core.publish import BeingPublished

SHARD = ShardId("orders")


class Bench:
    """A shard that is due for some looks, and busy for some tries."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, due: int, busy: int) -> None:
        self.due, self.busy, self.tries, self.clock = due, busy, 0, 0.0
        head = SimpleNamespace(head=lambda: SimpleNamespace(upper=2))
        self.deployment: Any = SimpleNamespace(
            shards=(SHARD,),
            control=SimpleNamespace(log=lambda shard: head),
            policy=lambda shard: None,
            state=lambda: None,
        )
        monkeypatch.setattr(publishing, "is_due", self.is_due)
        monkeypatch.setattr(publishing, "publish", self.publish)
        monkeypatch.setattr(publishing.time, "sleep", self.sleep)
        monkeypatch.setattr(publishing.time, "monotonic", lambda: self.clock)

    def is_due(self, *args: object) -> bool:
        self.due -= 1
        return self.due >= 0

    def publish(self, *args: object, **kwargs: object) -> str:
        self.tries += 1
        if self.tries <= self.busy:
            raise BeingPublished("another process is publishing")
        return "published"

    def sleep(self, seconds: float) -> None:
        self.clock += seconds

    def go(self) -> object:
        attempt: Any = SimpleNamespace(token="t")
        return publishing.publish_when_free(self.deployment, attempt, SHARD, progress=lambda txn, phase: None)


def test_it_publishes_once_the_other_is_through(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, due=9, busy=3)
    assert (bench.go(), bench.tries, bench.clock) == ("published", 4, 3.0)


def test_it_leaves_what_the_other_has_published(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, due=2, busy=9)
    assert (bench.go(), bench.tries) == (None, 2)


def test_the_wait_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Invariant 14."""
    bench = Bench(monkeypatch, due=10**9, busy=10**9)
    with pytest.raises(BeingPublished):
        bench.go()
    assert bench.clock >= publishing.PUBLISHER_WAIT_SECONDS_MAX
