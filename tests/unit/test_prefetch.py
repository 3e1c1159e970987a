"""Staging ahead: a backlog's next transaction is staged while the one before is committed. Checks
Invariants 2, 3 and 4 where the two meet."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.memory.ledger import Crash, Fault
from tests.support.memory.world import A, AtOnce, Script, World, rec
from tidemark.core.errors import Determinate
from tidemark.core.ids import Txn
from tidemark.core.ledger import Event
from tidemark.core.replay import InputGone
from tidemark.pipeline.maintain import sweep
from tidemark.pipeline.run import run


def backlog(count: int = 3) -> World:
    """As many transactions to come, of one record each."""
    world = World(records_max=1)
    world.feed(*(rec(f"k{number}", number) for number in range(1, count + 1)))
    return world


def tokens(world: World) -> set[str]:
    return {path.split("/")[2] for path in world.files}


def test_the_next_transaction_is_staged_before_the_one_before_is_sealed() -> None:
    world, script = backlog(), Script()
    run(world.process(script), world.attempt(), background=AtOnce())
    steps = [call for call in script.calls if call in ("plane.write", "seals.commit")]
    assert steps == ["plane.write", "plane.write", "seals.commit", "plane.write", *2 * ["seals.commit"]]
    assert world.log_txns() == [1, 2, 3]
    assert world.checkpoint == 3


def test_a_thread_of_its_own_gives_the_same_tables_as_one_transaction_after_the_other() -> None:
    apart, ahead = backlog(20), backlog(20)
    apart.run()
    with ThreadPoolExecutor(1) as background:
        run(ahead.process(), ahead.attempt(), background=background)
    assert ahead.state() == apart.state()
    assert [seal.digests for seal in ahead.seals] == [seal.digests for seal in apart.seals]


def test_a_transaction_that_fails_leaves_nothing_of_the_next_one_behind() -> None:
    world = backlog(2)
    broken = Script().fault("seals.commit", Fault.FAIL)
    with pytest.raises(Determinate):
        run(world.process(broken), world.attempt(), background=AtOnce())
    assert not [path for path in world.files if path.split("/")[1] == "2"]
    world.run()
    assert world.log_txns() == [1, 2]


def test_an_input_that_is_gone_stops_its_own_transaction_and_not_the_one_before() -> None:
    world = backlog(2)
    gone = Script().before("plane.write", world.source.partitions["p0"].pop)
    with pytest.raises(InputGone, match="transaction 2"):
        run(world.process(gone), world.attempt(), background=AtOnce())
    assert world.log_txns() == [1]


def test_m8_a_rival_that_seals_what_was_staged_ahead_wins_and_our_parts_go() -> None:
    world = backlog(2)
    script = Script().before("seals.commit", lambda: run(world.process(), world.attempt("rival")), nth=1)
    run(world.process(script), world.attempt("slow"), background=AtOnce())
    assert {seal.token for seal in world.seals} == {"w2"} == tokens(world)
    assert {entry.txn for entry in world.journal(Event.LOST)} == {1, 2}
    assert world.state(A) == {("k1",): 1, ("k2",): 2}


def test_what_a_killed_process_had_staged_ahead_is_swept_once_another_has_sealed_it() -> None:
    world = backlog(2)
    killed = Script().fault("seals.commit", Fault.CRASH_BEFORE)
    with pytest.raises(Crash):
        run(world.process(killed), world.attempt(), background=AtOnce())
    assert len(world.files) == 2
    world.run()
    assert sweep(world.process()) == ((Txn(1), "w1"), (Txn(2), "w1"))
    assert world.log_txns() == [1, 2]
