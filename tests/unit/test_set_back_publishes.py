"""Scenario W1 for what was published: history, log and checkpoints are restored together, and a record of the
shard's publishes, or the state's table itself, is ahead of them. A run says so before it binds or seals
anything (Invariant 16)."""

from __future__ import annotations

from itertools import product

import pytest

from tests.support.memory.state import MemoryStatePlane
from tests.support.memory.versions import MemoryStates
from tests.support.memory.world import A, B, World, rec
from tidemark.core.errors import InvariantViolation
from tidemark.core.ids import ShardId, WriterToken
from tidemark.pipeline.history import losses
from tidemark.pipeline.publish import publish


class PublishedWorld(World):
    """A world whose states follow every transaction."""

    def __init__(self) -> None:
        super().__init__()
        self.states = MemoryStates()
        self.commit_published(rec("k", 1))
        self.commit_published(rec("k", 2), rec("l", 2, table="b"))
        self.commit_published(rec("m", 3))

    def publish(self, shard: ShardId) -> None:
        plane = MemoryStatePlane(self.warehouse, self.files, self.states)
        publish(self.process().control, plane, shard, token=WriterToken(f"p{len(self.states.of(shard))}"))

    def commit_published(self, *records: object) -> None:
        self.commit(*records)  # type: ignore[arg-type]
        for shard in (A, B):
            self.publish(shard)

    def restore(self, versions: tuple[int, ...]) -> None:
        truth = self.warehouse
        ledgers = (truth.history, truth.log(A), truth.checkpoints, truth.publishes(A))
        for ledger, version in zip(ledgers, versions, strict=True):
            ledger.restore(version)

    def decided(self) -> object:
        truth = self.warehouse
        logs = [truth.log(A).version, truth.log(B).version]
        return self.seals, logs, truth.checkpoints.version, self.acknowledged


def versions_of(world: PublishedWorld) -> tuple[int, ...]:
    truth = world.warehouse
    return (
        truth.history.version,
        truth.log(A).version,
        truth.checkpoints.version,
        truth.publishes(A).version,
    )


def stopped(world: World) -> str:
    """What stops the next run; empty where nothing does."""
    try:
        world.run()
    except InvariantViolation as error:
        return str(error)
    return ""


SET_BACK = list(product(*(range(version + 1) for version in versions_of(PublishedWorld()))))


@pytest.mark.parametrize("versions", SET_BACK, ids=lambda one: "-".join(map(str, one)))
def test_w1_a_run_never_seals_below_what_a_state_has(versions: tuple[int, ...]) -> None:
    world = PublishedWorld()
    world.restore(versions)
    published = [one.commit.txn for one in world.states.of(A) if one.commit is not None]
    world.feed(rec("n", 4))
    before, bound = world.decided(), world.bindings
    told = stopped(world)
    if told:
        assert "lost" in told
        assert world.decided() == before
        # A shard that nothing else names which is left is found out when the next transaction touches it.
        assert world.bindings == bound or "shard b" in told
        return
    assert world.sealed_upper > max(published)
    assert world.state(A) == {("k",): 2, ("m",): 3, ("n",): 4}


def test_w1_a_publish_that_is_ahead_of_all_other_ledgers_is_named_before_anything_is_bound() -> None:
    world = PublishedWorld()
    history, log, checkpoints, published = versions_of(world)
    world.restore((history - 2, log - 1, checkpoints - 1, published))
    world.feed(rec("n", 4))
    before, bound = world.decided(), world.bindings
    named = "the state of shard a has transaction 3, and the history ends with 2"
    with pytest.raises(InvariantViolation, match=named):
        world.run()
    assert (world.decided(), world.bindings) == (before, bound)
    assert named in losses(world.process().control, (A, B))[0]


def test_regression_w1_a_state_that_is_ahead_of_its_record_is_named_before_anything_is_bound() -> None:
    world = PublishedWorld()
    history, log, checkpoints, published = versions_of(world)
    world.restore((history - 2, log - 1, checkpoints - 1, published - 1))
    world.feed(rec("n", 4))
    before, bound = world.decided(), world.bindings
    named = "the state of shard a has transaction 3, and the history ends with 2"
    with pytest.raises(InvariantViolation, match=named):
        world.run()
    assert (world.decided(), world.bindings) == (before, bound)
    assert named in losses(world.process().control, (A, B))[0]


def test_a_publish_that_died_before_its_record_stops_nobody() -> None:
    world = PublishedWorld()
    record = world.warehouse.publishes(A)
    record.restore(record.version - 1)
    world.commit_published(rec("n", 4))
    assert world.states.values(A) == {("k",): 2, ("m",): 3, ("n",): 4}


def test_w1_a_publish_of_a_shard_that_only_the_next_transaction_touches_is_named_before_its_seal() -> None:
    world = PublishedWorld()
    world.warehouse.history.restore(2)
    world.warehouse.log(A).restore(1)
    world.warehouse.log(B).restore(0)
    world.warehouse.checkpoints.restore(1)
    world.warehouse.publishes(A).restore(1)
    del world.states.of(A)[1:]
    sealed = world.seals
    with pytest.raises(InvariantViolation, match="the state of shard b has transaction 2"):
        world.run()
    assert world.seals == sealed
