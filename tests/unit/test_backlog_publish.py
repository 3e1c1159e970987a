"""States follow during a long run, not only at its end, and never hold a transaction up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.memory.world import World, rec
from tidemark.app import publish
from tidemark.app.publish import BACKLOG_SECONDS, BacklogPublisher
from tidemark.core.errors import InvariantViolation, TidemarkError
from tidemark.core.ids import ShardId
from tidemark.core.publish import Published
from tidemark.core.seal import SealOutcome
from tidemark.pipeline.run import run

SHARD = ShardId("a")


class Bench:
    """A run of many transactions of 30 s each, with a publisher that may fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: TidemarkError | None = None) -> None:
        self.clock, self.tries, self.error = 0.0, 0, error
        monkeypatch.setattr(publish, "is_due", lambda *args: True)
        monkeypatch.setattr(publish, "publish", self.publish)
        monkeypatch.setattr(publish, "advance_cut", lambda *args: None)
        monkeypatch.setattr(publish.time, "monotonic", lambda: self.clock)
        head = SimpleNamespace(head=lambda: SimpleNamespace(upper=2))
        deployment: Any = SimpleNamespace(
            shards=(SHARD,),
            control=SimpleNamespace(log=lambda shard: head),
            policy=lambda shard: None,
            state=lambda: None,
            config=SimpleNamespace(generation=0),
        )
        attempt: Any = SimpleNamespace(token="t")
        self.publisher = BacklogPublisher(deployment, attempt)

    def publish(self, *args: object, **kwargs: object) -> Published:
        self.tries += 1
        if self.error is not None:
            raise self.error
        return Published(self.tries, self.tries, None)  # type: ignore[arg-type]

    def go(self, transactions: int) -> int:
        world = World(records_max=1)
        world.feed(*(rec(f"k{number}", number) for number in range(transactions)))

        def decided(outcome: SealOutcome) -> None:
            self.clock += BACKLOG_SECONDS / 2
            self.publisher.publish(outcome)

        return run(world.process(), world.attempt(), decided=decided).checkpoint


def test_a_long_backlog_is_published_once_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch)
    assert (bench.go(7), bench.tries) == (7, 3)
    assert bench.publisher.published[SHARD].number == 3


def test_a_short_run_leaves_it_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch)
    assert (bench.go(1), bench.tries, bench.publisher.published) == (1, 0, {})


def test_a_state_that_can_not_be_published_holds_no_transaction_up(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, InvariantViolation("a hand was at the table"))
    assert (bench.go(7), bench.tries) == (7, 1)


def test_a_cut_that_can_not_be_put_on_record_holds_no_transaction_up(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch)

    def fails(*args: object) -> None:
        raise InvariantViolation("the history was set back")

    monkeypatch.setattr(publish, "advance_cut", fails)
    assert (bench.go(7), bench.tries) == (7, 1)
