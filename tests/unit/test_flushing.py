"""What holds a source back, told from durable facts alone (Invariant 10)."""

from __future__ import annotations

import pytest

from tests.support.memory.ledger import Crash, Fault
from tests.support.memory.world import A, B, Script, World, rec
from tests.unit.test_scenarios_replay import paused_world
from tidemark.core.checkpoint import FlushPosition, SourceTxn
from tidemark.pipeline.checkpoint import holding_back


def test_nothing_holds_back_what_is_in_every_log() -> None:
    world = World()
    assert holding_back(world.process()) == ()
    world.commit(rec("k", 1), rec("k", 1, table="b"))
    world.commit(rec("k", 2))
    assert holding_back(world.process()) == ()


@pytest.mark.parametrize("appended", [0, 1])
def test_the_shards_whose_logs_lack_a_sealed_transaction_are_named(appended: int) -> None:
    world = World()
    world.commit(rec("k", 1), rec("k", 1, table="b"))
    world.feed(rec("k", 2), rec("k", 2, table="b"))
    with pytest.raises(Crash):
        world.run(Script().fault("log.commit", Fault.CRASH_BEFORE, nth=1 + appended))
    assert [(lag.shard, lag.wanted) for lag in holding_back(world.process())] == [
        (shard, FlushPosition(SourceTxn(2), 0)) for shard in (A, B)[appended:]
    ]


def test_p12_a_paused_shard_holds_nothing_back() -> None:
    assert holding_back(paused_world().process()) == ()
