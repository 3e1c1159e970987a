"""Publishers under the scheduler: several at once, with writers, faults and deaths. Every version of a state
is the fold of its log at a transaction, and each is on record once (Invariants 15 and 18)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from tests.simulation.world import SHARDS, World
from tests.support.memory.control import MemoryControl
from tests.support.memory.fold import fold, visible
from tests.support.memory.ledger import Chaos, Crash
from tests.support.memory.state import MemoryStatePlane
from tidemark.core.errors import Determinate, Indeterminate, TidemarkError
from tidemark.core.ids import ShardId, Txn
from tidemark.core.publish import PublishTail, decide_publish
from tidemark.pipeline.publish import publish

SEEDS = 400
MUTANT_SEEDS_MAX = 100


class PublishedWorld(World):
    """A world with publishers, and without changes to input."""

    def _spawn(self) -> None:
        self.tampers = self.skips = False
        super()._spawn()
        for _ in range(self.rng.randint(1, 3)):
            self.scheduler.spawn(self.publisher)

    def publisher(self) -> None:
        for _ in range(4):
            for _ in range(self.rng.randint(0, 40)):
                self.scheduler.pause()
            with suppress(Crash, Determinate, Indeterminate):
                for shard in SHARDS:
                    self.publish(shard, self.scheduler)

    def publish(self, shard: ShardId, chaos: Chaos | None) -> None:
        plane = MemoryStatePlane(self.warehouse, self.files, self.warehouse.states, chaos)
        publish(MemoryControl(self.warehouse, chaos), plane, shard, token=self.token())

    def fold_at(self, shard: ShardId, txn: Txn) -> dict[object, object]:
        log = self.warehouse.log(shard)
        parts = [one for entry in log.records(log.version) if entry.txn <= txn for one in entry.parts]
        return dict(visible(fold([row for part in parts for row in self.files[part.path]])))

    def check(self) -> int:
        """Returns how many publishes there were."""
        found = 0
        for shard in SHARDS:
            versions, ledger = self.warehouse.states.of(shard), self.warehouse.publishes(shard)
            records = list(ledger.records(ledger.version))
            commits = [one.commit for one in versions]
            assert [(one.version, one.commit) for one in records] == list(enumerate(commits))
            txns = [one.txn for one in commits if one is not None]
            assert txns == sorted(set(txns))
            for version, txn in zip(versions, txns, strict=True):
                shown = {key: row.value for key, row in version.visible.items()}
                assert shown == self.fold_at(shard, txn), f"version at transaction {txn} of {shard}"
            log = self.warehouse.log(shard)
            last = Txn(log.head(log.version).upper - 1)
            assert self.warehouse.states.values(shard) == self.fold_at(shard, last)
            found += len(records)
        return found


def check(seed: int) -> int:
    world = PublishedWorld(seed)
    try:
        world.simulate()
        for shard in SHARDS:
            world.publish(shard, None)
        return world.check()
    except (AssertionError, TidemarkError) as wrong:
        raise AssertionError(f"seed {seed}: {wrong!r}") from wrong


def test_every_version_of_a_state_is_its_log_at_a_transaction_whoever_publishes() -> None:
    found = [check(seed) for seed in range(SEEDS)]
    assert sum(one > 3 for one in found) > SEEDS / 10


def after_the_first(*args: Any, **known: Any) -> Any:
    """A tail that begins after the first transaction that the state lacks."""
    made = decide_publish(*args, **known)
    return replace(made, lower=made.lower + 1) if isinstance(made, PublishTail) else made


def from_the_beginning(*args: Any, **known: Any) -> Any:
    """What only the table has is not put on record, but published again."""
    last = known["last"]
    status = replace(known["status"], newest=None, newest_version=-1, version=last.version if last else -1)
    return decide_publish(*args, **{**known, "status": status})


@pytest.mark.parametrize("mistake", [after_the_first, from_the_beginning])
def test_the_simulation_of_publishes_notices_a_mistake(mistake: Callable[..., Any]) -> None:
    with (
        patch("tidemark.pipeline.publish.decide_publish", mistake),
        pytest.raises(AssertionError, match="seed"),
    ):
        sum(check(seed) for seed in range(MUTANT_SEEDS_MAX))
