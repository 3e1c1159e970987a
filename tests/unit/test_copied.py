"""A warehouse that is opened at another address than its history has is a copy: it is read, and nothing in it
or at its source is changed until it is adopted."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.memory.control import MADE_AT
from tests.support.memory.state import MemoryStatePlane
from tests.support.memory.versions import MemoryStates
from tests.support.memory.world import A, World, rec
from tidemark.core.history import CopiedWarehouse
from tidemark.core.ids import WriterToken
from tidemark.core.replay import Verdict
from tidemark.pipeline.checkpoint import checkpoint
from tidemark.pipeline.history import epoch_of
from tidemark.pipeline.listing import readable_upper
from tidemark.pipeline.maintain import sweep
from tidemark.pipeline.publish import publish
from tidemark.pipeline.reclock import reclock
from tidemark.pipeline.recover import Recovered, plan, recover
from tidemark.pipeline.run import finish, replay


def copied() -> World:
    """A copy of a world with one transaction, and with input that is not bound yet."""
    world = World()
    world.commit(rec("k", 1))
    world.feed(rec("k", 2))
    world.warehouse.address = "elsewhere"
    return world


def durable(world: World) -> object:
    truth = world.warehouse
    ledgers = (
        truth.history,
        truth.checkpoints,
        truth.journal,
        truth.attempts,
        truth.log(A),
        truth.publishes(A),
    )
    return [one.version for one in ledgers], world.acknowledged, dict(world.files)


def published(world: World) -> None:
    plane = MemoryStatePlane(world.warehouse, world.files, MemoryStates())
    publish(world.process().control, plane, A, token=WriterToken("p"))


@pytest.mark.parametrize(
    "work",
    [
        World.run,
        lambda world: checkpoint(world.process()),
        lambda world: sweep(world.process()),
        published,
        lambda world: recover(world.process(), world.attempt("recover")),
    ],
    ids=["run", "checkpoint", "sweep", "publish", "recover"],
)
def test_a_copy_binds_acknowledges_deletes_and_publishes_nothing(work: Callable[[World], object]) -> None:
    world = copied()
    before = durable(world)
    with pytest.raises(CopiedWarehouse, match="made at memory and is opened at elsewhere") as stop:
        work(world)
    assert "`tidemark recover PIPELINE --adopt`" in stop.value.hint
    assert durable(world) == before


def test_a_copy_seals_nothing_that_was_bound_before() -> None:
    world = copied()
    world.warehouse.address = MADE_AT
    attempt = world.attempt("r")
    (txn,) = reclock(world.process(), attempt).finish
    world.warehouse.address = "elsewhere"
    with pytest.raises(CopiedWarehouse):
        finish(world.process(), attempt, txn)
    assert world.sealed_upper == txn


def test_a_copy_can_be_read_and_proven() -> None:
    world = copied()
    assert readable_upper(world.process().control, A) == 2
    (finding,) = replay(world.process(), world.attempt("proof"), txn_from=1, txn_to=1)  # type: ignore[arg-type]
    assert finding.verdict is Verdict.IDENTICAL


def test_an_adopted_copy_goes_on_in_a_new_epoch_and_the_old_address_stays_good() -> None:
    world = copied()
    assert plan(world.process()).is_needed
    done = recover(world.process(), world.attempt("recover"), adopt=True)
    assert (done.epoch, done.changed, done.lost) == (1, True, {})
    world.run()
    control = world.process().control
    control.recoveries.head()
    assert [epoch_of(control, seal.txn) for seal in world.seals] == [0, 1]
    # One warehouse may be seen under two addresses, by two mounts.
    world.warehouse.address = MADE_AT
    world.commit(rec("k", 3))
    assert world.state() == {("k",): 3}
    world.warehouse.address = "a third place"
    with pytest.raises(CopiedWarehouse):
        world.run()


def test_adopting_what_is_no_copy_changes_nothing() -> None:
    world = World()
    world.commit(rec("k", 1))
    before = durable(world)
    assert recover(world.process(), world.attempt("recover"), adopt=True) == Recovered(epoch=0)
    assert durable(world) == before
