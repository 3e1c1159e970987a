"""Scenarios W1: ledgers that lost their newest commits, or were restored from an older copy (Invariant 16).

After it, the next run either stops by name, with nothing decided and nothing acknowledged, or it writes again
what can be derived and ends with the right tables. It never ends well with anything else."""

from __future__ import annotations

from copy import deepcopy
from itertools import product

import pytest

from tests.support.attempts import ingest, validate
from tests.support.memory.ledger import MemoryLedger
from tests.support.memory.state import MemoryStatePlane
from tests.support.memory.versions import MemoryStates
from tests.support.memory.world import A, B, World, rec
from tidemark.core.errors import InvariantViolation
from tidemark.core.ids import Txn, WriterToken
from tidemark.core.seal import Rebound, Staged
from tidemark.pipeline.checkpoint import checkpoint
from tidemark.pipeline.listing import readable_upper
from tidemark.pipeline.maintain import sweep
from tidemark.pipeline.publish import publish, rebuild
from tidemark.pipeline.reclock import reclock
from tidemark.pipeline.upsert import commit_staged


def three() -> World:
    """Three transactions, through to their logs: all touch a, the second touches b as well."""
    world = World()
    world.commit(rec("k", 1))
    world.commit(rec("k", 2), rec("l", 2, table="b"))
    world.commit(rec("m", 3))
    return world


def ledgers(world: World) -> dict[str, MemoryLedger]:  # type: ignore[type-arg]
    truth = world.warehouse
    return {"history": truth.history, "log": truth.log(A), "checkpoints": truth.checkpoints}


def decided(world: World) -> object:
    """All that is decided, to be read, or let go of."""
    truth = world.warehouse
    versions = [one.version for one in (truth.log(A), truth.log(B), truth.checkpoints)]
    return world.seals, versions, world.source.acknowledged


def durable(world: World) -> object:
    truth = world.warehouse
    noted = truth.attempts.version, truth.journal.version
    return decided(world), truth.history.version, noted, sorted(world.files)


def stopped(world: World) -> str:
    """What stops the next two runs; empty where nothing does."""
    try:
        world.run()
        world.run()
    except InvariantViolation as error:
        return str(error)
    return ""


VERSIONS = {name: ledger.version for name, ledger in ledgers(three()).items()}
SET_BACK = list(product(*(range(versions + 1) for versions in VERSIONS.values())))


@pytest.mark.parametrize("versions", SET_BACK, ids=lambda one: "-".join(map(str, one)))
def test_w1_whatever_was_set_back_the_next_run_stops_by_name_or_ends_with_the_right_tables(
    versions: tuple[int, ...],
) -> None:
    world = three()
    for ledger, version in zip(ledgers(world).values(), versions, strict=True):
        ledger.restore(version)
    world.feed(rec("n", 4))
    before, all_before = decided(world), durable(world)
    told = stopped(world)
    if not told:
        assert world.state(A) == {("k",): 2, ("m",): 3, ("n",): 4}
        assert [row.value for row in world.rows(A)] == [1, 2, 3, 4]
        assert world.checkpoint == world.sealed_upper - 1
        return
    assert "the history ends with" in told or "the log of shard" in told
    assert decided(world) == before
    # Only a shard that nothing names which is left may be found out when the next transaction touches it.
    if "shard b" not in told:
        assert durable(world) == all_before


@pytest.mark.parametrize("name", ["history", "log"])
def test_w1_a_ledger_that_lost_its_newest_commit_alone_is_named_and_nothing_is_written(name: str) -> None:
    world = three()
    ledgers(world)[name].restore(VERSIONS[name] - 1)
    before = durable(world)
    told = stopped(world)
    assert ("the history ends with 2" if name == "history" else "the log of shard a ends with") in told
    assert durable(world) == before


def test_w1_checkpoints_that_were_set_back_are_written_again() -> None:
    world = three()
    world.warehouse.checkpoints.restore(0)
    assert not stopped(world)
    assert world.checkpoint == 3


def test_w1_an_idle_shards_log_is_found_out_before_the_next_transaction_that_touches_it_is_sealed() -> None:
    world = three()
    world.warehouse.log(B).restore(0)
    world.feed(rec("l", 4, table="b"))
    before = decided(world)
    assert "the log of shard b ends with transaction 0, and had 2" in stopped(world)
    assert decided(world) == before


def test_w1_a_number_that_was_sealed_again_is_told_from_the_first_one() -> None:
    """The history and its checkpoints were restored, and another transaction got the number 3."""
    world = three()
    world.warehouse.history.restore(VERSIONS["history"] - 2)
    world.warehouse.checkpoints.restore(VERSIONS["checkpoints"] - 1)
    kept = deepcopy(world.warehouse.log(A))
    world.warehouse.log(A).restore(VERSIONS["log"] - 1)
    world.commit(rec("z", 9))
    world.warehouse.logs[A] = kept
    world.feed(rec("y", 9))
    assert "the log of shard a has another transaction 3 than the history" in stopped(world)


def test_a_zombie_cant_seal_parts_of_a_binding_that_was_lost_and_bound_again() -> None:
    world = World()
    world.feed(rec("k", 1))
    zombie, attempt = world.process(), world.attempt("zombie")
    reclock(zombie, attempt)
    staged = ingest(zombie, attempt, Txn(1))
    assert isinstance(staged, Staged)
    gated = validate(zombie, staged)
    world.warehouse.history.restore(0)
    world.feed(rec("l", 2))
    reclock(world.process(), world.attempt("next"))
    with pytest.raises(Rebound, match="staged for another binding"):
        commit_staged(world.process(), attempt, staged, gated)
    assert world.seals == []
    world.run()
    assert world.state(A) == {("k",): 1, ("l",): 2}


@pytest.mark.parametrize("name", ["history", "log"])
def test_w1_publishers_sweeps_and_readers_stop_as_runs_do(name: str) -> None:
    world, states = three(), MemoryStates()
    plane = MemoryStatePlane(world.warehouse, world.files, states)
    ledgers(world)[name].restore(VERSIONS[name] - 1)
    before, control = durable(world), world.process().control
    for work in (
        lambda: publish(control, plane, A, token=WriterToken("publisher")),
        lambda: rebuild(control, plane, A, token=WriterToken("builder")),
        lambda: sweep(world.process()),
        lambda: checkpoint(world.process()) if name == "history" else readable_upper(control, A),
    ):
        with pytest.raises(InvariantViolation, match=r"newest commits are lost|commits are lost"):
            work()
    assert durable(world) == before
    assert states.of(A) == []


def test_w1_a_state_that_is_ahead_of_everything_else_is_named() -> None:
    """All ledgers were restored from one moment, and the state's table was not."""
    world, states = three(), MemoryStates()
    plane = MemoryStatePlane(world.warehouse, world.files, states)
    publish(world.process().control, plane, A, token=WriterToken("publisher"))
    ledgers(world)["history"].restore(VERSIONS["history"] - 2)
    for name in ("log", "checkpoints"):
        ledgers(world)[name].restore(VERSIONS[name] - 1)
    with pytest.raises(
        InvariantViolation, match="the state of shard a has transaction 3, and the history ends"
    ):
        publish(world.process().control, plane, A, token=WriterToken("publisher"))
