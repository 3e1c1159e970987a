"""Accepting what the gate has judged takes no engine, and seals nothing that the gate has not found whole."""

from __future__ import annotations

from dataclasses import replace
from typing import NoReturn

import pytest

from tests.support.memory.plane import MemoryPlane
from tests.support.memory.world import World, rec, simple
from tests.unit.test_overrule import Forgetful
from tests.unit.test_steps_as_tasks import Run, Scripted
from tidemark.core.ids import Txn
from tidemark.core.ledger import Event
from tidemark.core.seal import Decision
from tidemark.pipeline.decide import accept
from tidemark.pipeline.ingest import gather
from tidemark.pipeline.reclock import reclock
from tidemark.pipeline.validate import judge_gathered

T1 = Txn(1)


class EngineNeeded(Exception):
    """Somebody wants rows."""


class NoEngine(MemoryPlane):
    """A plane that may look at files, and can neither read nor write rows."""

    def stage(self, *args: object) -> NoReturn:
        raise EngineNeeded

    read_back = replay = stage  # type: ignore[assignment]


def red(world: World) -> Run:
    """A run whose rows don't meet the user's expectations."""
    world.feed(rec("k", 1))
    run = Run(world, "r")
    run.pipeline = replace(run.pipeline, gate=Scripted(failed=("amount is negative",)))
    reclock(run.pipeline, run.attempt)
    return run


def test_what_was_judged_is_accepted_without_an_engine_and_the_journal_says_by_whom() -> None:
    world = World()
    run = red(world)
    (staged,) = gather(run.pipeline, run.attempt)
    judge_gathered(run.pipeline, run.attempt)
    page = replace(run.pipeline, plane=NoEngine(world.source, world.files))
    accept(page, world.attempt("ann-1"), T1, reason="it was a refund", user="ann")
    (seal,) = world.seals
    assert (seal.decision, seal.token) == (Decision.ACCEPTED, staged.token)
    assert seal.reason == "it was a refund"
    (entry,) = world.journal(Event.ACCEPTED)
    assert entry.detail == {"reason": "it was a refund", "run": "ann-1", "user": "ann"}
    assert simple(world.state()) == {"k": 1}


@pytest.mark.parametrize("loss", ["parts", "verdict", "differs"])
def test_parts_that_are_lost_or_were_not_found_to_be_what_was_written_are_never_sealed(loss: str) -> None:
    world = World()
    run = red(world)
    if loss == "differs":
        run.pipeline = replace(run.pipeline, plane=Forgetful(world.source, world.files))
    gather(run.pipeline, run.attempt)
    if loss != "verdict":
        judge_gathered(run.pipeline, run.attempt)
    if loss == "parts":
        world.files.clear()
    page = replace(run.pipeline, plane=NoEngine(world.source, world.files))
    with pytest.raises(EngineNeeded):
        accept(page, world.attempt("ann-1"), T1, reason="it was a refund", user="ann")
    assert world.seals == []
