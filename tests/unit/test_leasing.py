"""Leases over a ledger: taking, renewing, expiring, and the floor that maintenance asks. Invariant 12."""

from __future__ import annotations

import pytest

from tests.support.memory.control import MemoryControl, MemoryWarehouse
from tests.support.memory.ledger import Fault
from tests.support.memory.world import Script
from tidemark.core.errors import InvalidUsage, InvariantViolation
from tidemark.core.ids import ShardId, Txn
from tidemark.core.lease import SINCE, HeldByOther, HolderToken, LeaseLost, LeaseState, Tenure
from tidemark.core.ledger import Put
from tidemark.core.reading import batch_fence, consumer_of, lease_name
from tidemark.pipeline.leases import Leases

ME, RIVAL = HolderToken("me"), HolderToken("rival")
TTL = 60.0
BILLING = "billing/orders"


class World:
    """One warehouse, one clock, any number of processes."""

    def __init__(self) -> None:
        self.warehouse = MemoryWarehouse()
        self.now = 0.0

    def process(self, script: Script | None = None) -> Leases:
        return Leases(MemoryControl(self.warehouse, script).leases, clock=lambda: self.now)


def taken(leases: Leases, holder: HolderToken = ME, *, name: str = BILLING, start: int = 1) -> Tenure:
    tenure = leases.take(name, holder, start=Txn(start), ttl_seconds=TTL)
    assert isinstance(tenure, Tenure)
    return tenure


def waited_for(world: World, leases: Leases, holder: HolderToken) -> Tenure:
    for _ in range(8):
        tenure = leases.take(BILLING, holder, start=Txn(1), ttl_seconds=TTL)
        if isinstance(tenure, Tenure):
            return tenure
        world.now += TTL / 4
    raise AssertionError("it was never expired")


def test_r3_a_consumer_that_was_shut_down_goes_on_exactly_where_it_stood() -> None:
    world = World()
    first = world.process()
    tenure = first.renew(taken(first), txn=Txn(7))
    first.release(tenure.lease)
    assert taken(world.process(), RIVAL).lease.txn == 7


def test_a_passing_readers_lease_starts_anew_once_it_was_released() -> None:
    world = World()
    leases = world.process()
    leases.release(leases.renew(taken(leases, name="look"), txn=Txn(7)).lease)
    assert taken(leases, RIVAL, name="look", start=3).lease.txn == 3


def test_r4_a_holder_that_stopped_is_followed_and_gets_a_typed_error_when_it_wakes() -> None:
    world = World()
    stopped, next_one = world.process(), world.process()
    tenure = stopped.renew(taken(stopped), txn=Txn(4), planned=Txn(9))
    follower = waited_for(world, next_one, RIVAL)
    assert (follower.lease.txn, follower.lease.holder) == (4, RIVAL)
    assert batch_fence(follower.lease) == 9
    with pytest.raises(LeaseLost, match="not renewed"):
        stopped.renew(tenure, txn=Txn(9))
    assert next_one.current(BILLING) == follower.lease


def test_a_holder_that_renews_is_never_followed() -> None:
    world = World()
    alive, waiting = world.process(), world.process()
    tenure = taken(alive)
    for _ in range(20):
        world.now += TTL / 4
        tenure = alive.renew(tenure)
        assert isinstance(waiting.take(BILLING, RIVAL, start=Txn(1), ttl_seconds=TTL), HeldByOther)
        assert waiting.expire() == ()


def test_maintenance_expires_what_it_has_seen_stand_still_and_nothing_else() -> None:
    world = World()
    holder, maintenance = world.process(), world.process()
    taken(holder, name="dead")
    alive = taken(holder, name="alive")
    ended: list[str] = []
    for _ in range(8):
        ended += [lease.name for lease in maintenance.expire()]
        world.now += TTL / 4
        alive = holder.renew(alive)
    assert ended == ["dead"]
    states = {lease.name: lease.state for lease in maintenance.latest()}
    assert states == {"dead": LeaseState.EXPIRED, "alive": LeaseState.LIVE}


def test_r4_an_idle_consumer_holds_the_floor_until_it_is_forgotten() -> None:
    world = World()
    leases = world.process()
    leases.release(leases.renew(taken(leases), txn=Txn(5)).lease)
    held = leases.announce(consumers={"state": Txn(8)}, window=Txn(9))
    assert [str(need) for need in held.held_by] == ["consumer billing/orders needs txn 5"]
    assert leases.since() == 5
    leases.forget(BILLING)
    assert leases.announce(consumers={"state": Txn(8)}, window=Txn(9)).txn == 8
    with pytest.raises(InvalidUsage, match="the oldest retained transaction is 8"):
        taken(leases, start=1)
    assert taken(leases, start=8).lease.txn == 8


def test_a_consumer_that_reads_is_not_forgotten() -> None:
    leases = World().process()
    taken(leases)
    with pytest.raises(InvalidUsage, match="is being read by me"):
        leases.forget(BILLING)
    with pytest.raises(InvalidUsage, match="no consumer 'other/orders'"):
        leases.forget("other/orders")


def test_a_consumer_that_maintenance_passed_is_a_broken_promise() -> None:
    world = World()
    leases = world.process()
    leases.release(taken(leases).lease)
    truth = world.warehouse.leases
    truth.commit(truth.head(truth.version), Put({SINCE: 3}, (), None))
    with pytest.raises(InvariantViolation, match="the table of leases may have been restored"):
        taken(world.process())


def test_a_lease_taken_while_since_is_raised_is_decided_anew_on_one_of_both() -> None:
    """Of the two that race on one head, one sees the other: nobody holds what is about to go."""
    world = World()
    reader = world.process()
    script = Script().before("leases.commit", lambda: taken(reader, start=3))
    kept = world.process(script).announce(consumers={}, window=Txn(9))
    assert (kept.txn, reader.since()) == (3, 3)


def test_a_new_name_without_a_start_holds_what_is_kept_when_it_is_taken() -> None:
    """Maintenance that goes on in the middle of it gives a later start, never an error."""
    world = World()
    keeper = world.process()
    script = Script().before("leases.commit", lambda: keeper.announce(consumers={}, window=Txn(9)))
    tenure = world.process(script).take(BILLING, ME, start=None, ttl_seconds=TTL)
    assert isinstance(tenure, Tenure)
    assert tenure.lease.txn == 9


@pytest.mark.parametrize("fault", [Fault.LOSE_REPLY, Fault.LOSE_REQUEST])
def test_m4_no_lost_reply_leaves_a_lease_in_doubt(fault: Fault) -> None:
    world = World()
    script = Script()
    for nth in (1, 3, 5):
        script.fault("leases.commit", fault, nth=nth)
    leases = world.process(script)
    tenure = leases.renew(taken(leases), txn=Txn(6))
    assert tenure.lease.txn == 6
    leases.release(tenure.lease)
    current = world.process().current(BILLING)
    assert current is not None
    assert (current.txn, current.state) == (6, LeaseState.RELEASED)


def test_a_consumers_lease_names_consumer_and_shard() -> None:
    lease = taken(World().process(), name=lease_name("billing", ShardId("orders"))).lease
    assert consumer_of(lease) == ("billing", "orders")
    assert consumer_of(taken(World().process(), name="look").lease) is None
    with pytest.raises(InvalidUsage, match="consumer 'a/b' is not a name"):
        lease_name("a/b", ShardId("orders"))


def test_input_is_kept_by_one_commit_that_no_process_has_to_live_for() -> None:
    world = World()
    leases = world.process(Script().fault("leases.commit", Fault.LOSE_REPLY))
    kept = leases.keep("candidate/input", ME)
    assert (kept.txn, kept.state, kept.is_kept) == (1, LeaseState.RELEASED, True)
    other = world.process()
    assert other.keep("candidate/input", RIVAL) == kept, "what is kept stays as it is"
    assert other.floor(consumers={}, window=Txn(9)).txn == 1
    other.forget("candidate/input")
    assert other.keep("candidate/input", RIVAL).holder == RIVAL
