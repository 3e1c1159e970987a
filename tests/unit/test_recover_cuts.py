"""W2: a cut is a witness of its transaction, also where nothing else has it any more."""

from __future__ import annotations

import pytest

from tests.support.memory.world import A, B
from tests.unit.test_scenarios_recover import VERSIONS, Warehouse
from tidemark.core.history import HistoryLost
from tidemark.core.ids import Txn
from tidemark.core.replay import Verdict
from tidemark.pipeline.checkpoint import advance_cut
from tidemark.pipeline.recover import plan


def cut_alone_is_ahead() -> Warehouse:
    """A warehouse whose newest transaction only the table of cuts still names."""
    world = Warehouse()
    assert advance_cut(world.process().control, (A, B)) == 3
    world.warehouse.history.restore(VERSIONS["history"] - 2)
    for ledger in (world.warehouse.log(A), world.warehouse.checkpoints, world.warehouse.attempts):
        ledger.restore(ledger.version - 1)
    noted = sum(one.txn == 3 for one in world.journal())
    world.warehouse.journal.restore(world.warehouse.journal.version - noted)
    world.warehouse.publishes(A).restore(1)
    del world.states.of(A)[1:]
    world.warehouse.publishes(B).restore(0)
    world.states.of(B).clear()
    return world


def test_w2_a_cut_that_alone_is_ahead_is_recovered_to_and_cuts_go_on() -> None:
    world = cut_alone_is_ahead()
    with pytest.raises(HistoryLost):
        advance_cut(world.process().control, (A, B))
    assert "the newest cut has transaction 3" in {str(one) for one in plan(world.process()).plan.witnesses}
    assert list(world.recover().lost) == [3]
    world.run()
    world.publish_all()
    assert world.verdicts()[3] is Verdict.LOST
    assert [one.txn for one in world.bindings] == [1, 2, 3, 4]
    assert advance_cut(world.process().control, (A, B)) == Txn(4)
