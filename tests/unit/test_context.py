"""What the steps share: bindings and seals by number, and notes that are taken exactly once."""

from __future__ import annotations

import pytest

from tests.support.memory.ledger import Crash, Fault
from tests.support.memory.world import Script, World, rec
from tidemark.core.errors import Determinate, InvariantViolation
from tidemark.core.ids import Txn, WriterToken
from tidemark.core.ledger import Event
from tidemark.pipeline.checkpoint import checkpoint
from tidemark.pipeline.context import Pipeline, binding_at, note, seal_at


def verified(pipeline: Pipeline, token: str = "w1", txn: int = 1) -> None:
    note(pipeline, Event.VERIFIED, txn=Txn(txn), token=WriterToken(token), detail={"by": token})


@pytest.mark.parametrize("fault", [Fault.LOSE_REPLY, Fault.LOSE_REQUEST, Fault.DELAY, Fault.DUPLICATE])
def test_a_note_is_taken_exactly_once_whatever_the_reply(fault: Fault) -> None:
    world = World()
    verified(world.process(Script().fault("journal.commit", fault)))
    list(world.warehouse.land_delayed())
    assert [entry.token for entry in world.journal()] == ["w1"]


def test_a_note_whose_reply_was_lost_is_recognised_behind_a_rivals() -> None:
    world = World()
    script = Script().fault("journal.commit", Fault.LOSE_REPLY)
    script.before("journal.head", lambda: verified(world.process(), "rival"), nth=2)
    verified(world.process(script))
    assert [(entry.number, entry.token) for entry in world.journal()] == [(1, "w1"), (2, "rival")]


def test_the_same_event_may_be_noted_again_on_purpose() -> None:
    world = World()
    pipeline = world.process()
    verified(pipeline)
    verified(pipeline)
    assert len(world.journal()) == 2


def test_regression_a_second_note_of_an_attempt_survives_a_conflict() -> None:
    world = World()
    verified(world.process())
    script = Script().before("journal.commit", lambda: verified(world.process(), "rival"))
    verified(world.process(script))
    assert [entry.token for entry in world.journal()] == ["w1", "rival", "w1"]


def test_a_binding_and_a_seal_are_found_by_their_number() -> None:
    world = World()
    world.commit(rec("k", 1))
    pipeline = world.process()
    assert binding_at(pipeline, Txn(1)) == world.bindings[0]
    pipeline.control.seals.head()
    assert seal_at(pipeline, Txn(1)) == world.seals[0]


def test_a_seal_that_the_upper_has_passed_must_be_there() -> None:
    pipeline = World().process()
    with pytest.raises(InvariantViolation, match="its seal is not there"):
        seal_at(pipeline, Txn(1))


def test_regression_whoever_sees_a_seal_sees_its_binding() -> None:
    """Both are of one snapshot: an old look at one of them can't lack what the other has shown."""
    world = World()
    world.commit(rec("k", 1))
    assert checkpoint(world.process(Script().fault("bindings.head", Fault.STALE))) == 1


def test_a_binding_that_cannot_be_seen_yet_is_worth_a_retry() -> None:
    with pytest.raises(Determinate, match="binding of transaction 1"):
        binding_at(World().process(), Txn(1))


def test_a_process_that_dies_while_it_notes_leaves_the_note_or_nothing() -> None:
    for fault, expected in ((Fault.CRASH_BEFORE, 0), (Fault.CRASH_AFTER, 1)):
        world = World()
        pipeline = world.process(Script().fault("journal.commit", fault))
        with pytest.raises(Crash):
            verified(pipeline)
        assert len(world.journal()) == expected
