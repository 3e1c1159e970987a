"""The sweep: it asks the seals, not the clock. Checks Invariants 4 and 12."""

from __future__ import annotations

from unittest.mock import Mock, patch

import pytest

from tests.support.attempts import ingest, validate
from tests.support.memory.ledger import Crash, Fault
from tests.support.memory.world import A, Script, World, rec
from tidemark.core.ids import Txn
from tidemark.pipeline.maintain import sweep
from tidemark.pipeline.reclock import reclock
from tidemark.pipeline.run import run
from tidemark.pipeline.upsert import commit_staged


def staged_world() -> World:
    """Transaction 1 is bound, and the attempt w1 has staged it and died."""
    world = World()
    world.feed(rec("k", 1), rec("l", 2))
    attempt = world.attempt("owner")
    reclock(world.process(), attempt)
    dies = Script().fault("attempts.commit", Fault.CRASH_BEFORE)
    with pytest.raises(Crash):
        ingest(world.process(dies), attempt, Txn(1))
    assert {path.split("/")[2] for path in world.files} == {"w1"}
    return world


def test_an_attempt_of_an_open_transaction_is_left_alone() -> None:
    world = staged_world()
    before = dict(world.files)
    assert sweep(world.process()) == ()
    assert world.files == before


def test_the_winners_parts_are_never_touched_and_the_losers_go() -> None:
    world = staged_world()
    run(world.process(), world.attempt("owner"))
    assert {path.split("/")[2] for path in world.files} == {"w1", "w2"}
    assert sweep(world.process()) == ((1, "w1"),)
    assert {path.split("/")[2] for path in world.files} == {"w2"}
    assert sweep(world.process()) == ()
    assert world.state(A) == {("k",): 1, ("l",): 2}


def test_a_sweep_reads_the_seals_of_many_transactions_at_once() -> None:
    world = World()
    for number in range(40):
        world.feed(rec("k", number))
        run(world.process(), world.attempt(f"run {number}"))
    pipeline = world.process()
    read = Mock(wraps=pipeline.control.history.read)
    with patch.object(pipeline.control.history, "read", read):
        assert sweep(pipeline) == ()
    assert len(pipeline.plane.attempts()) == 40
    assert read.call_count < 10


def test_a_stale_snapshot_of_the_seals_sweeps_less_never_more() -> None:
    world = staged_world()
    run(world.process(), world.attempt("owner"))
    assert set(sweep(world.process(Script().fault("seals.head", Fault.STALE)))) <= {(1, "w1")}
    assert {path.split("/")[2] for path in world.files} >= {"w2"}


def test_a_writer_whose_parts_were_swept_has_lost_a_race_not_failed_a_gate() -> None:
    world = World()
    world.feed(rec("k", 1))
    slow = world.attempt("slow")
    pipeline = world.process()
    reclock(pipeline, slow)
    staged = ingest(pipeline, slow, Txn(1))
    run(world.process(), world.attempt("fast"))
    sweep(world.process())
    finding = validate(pipeline, staged)  # type: ignore[arg-type]
    assert not finding.passed
    outcome = commit_staged(pipeline, slow, staged, finding)  # type: ignore[arg-type]
    assert outcome.winner.token == "w2"  # type: ignore[union-attr]


def test_a_sweep_that_dies_halfway_is_finished_by_the_next() -> None:
    world = staged_world()
    run(world.process(), world.attempt("owner"))
    with pytest.raises(Crash):
        sweep(world.process(Script().fault("plane.discard", Fault.CRASH_BEFORE, nth=2)))
    assert sweep(world.process()) == ((1, "w1"),)
    assert {path.split("/")[2] for path in world.files} == {"w2"}
