"""What can't be staged is on record, for who did not watch the run."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.memory.ledger import Fault
from tests.support.memory.world import Script, World, rec
from tidemark.core.binding import Binding
from tidemark.core.errors import Determinate, InvalidUsage, TidemarkError
from tidemark.core.ids import Txn, WriterToken
from tidemark.core.ledger import Event
from tidemark.core.seal import Staged
from tidemark.pipeline.context import ATTEMPTS_MAX, Attempt, Pipeline
from tidemark.pipeline.ingest import gather, refusal_of
from tidemark.pipeline.reclock import reclock
from tidemark.pipeline.run import run


def stepwise(pipeline: Pipeline, attempt: Attempt) -> None:
    reclock(pipeline, attempt)
    gather(pipeline, attempt)


WAYS = {"run": run, "stepwise": stepwise}
Way = Callable[[Pipeline, Attempt], object]


def tried(world: World, way: Way, name: str, error: TidemarkError, script: Script | None = None) -> None:
    """One run whose staging fails so."""
    process = world.process(script) if script is not None else world.process()

    def stage(binding: Binding, token: WriterToken) -> Staged:
        raise error

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process.plane, "stage", stage)
        with pytest.raises(type(error), match=error.fact):
            way(process, world.attempt(name))


def reasons(world: World) -> list[tuple[int, str]]:
    return [(entry.txn, entry.detail["why"]) for entry in world.journal(Event.REFUSED)]


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_refusal_is_noted_once_until_its_reason_changes_and_is_no_more_when_it_goes_on(way: Way) -> None:
    world = World()
    world.feed(rec("k", 1))
    for number, reason in enumerate(["column 'a'", "column 'a'", "column 'b'", "column 'a'"]):
        tried(world, way, f"r{number}", InvalidUsage(reason))
    assert reasons(world) == [(1, "column 'a'"), (1, "column 'b'"), (1, "column 'a'")]
    assert refusal_of(world.process(), Txn(1)) == "column 'a'"
    run(world.process(), world.attempt("mended"))
    assert [seal.txn for seal in world.seals] == [1]


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_what_a_retry_may_mend_is_not_noted(way: Way) -> None:
    world = World()
    world.feed(rec("k", 1))
    tried(world, way, "r", Determinate("the disk is full"))
    assert reasons(world) == []


def test_a_journal_that_can_not_be_written_does_not_hide_the_refusal() -> None:
    world = World()
    world.feed(rec("k", 1))
    script = Script()
    for nth in range(1, ATTEMPTS_MAX + 1):
        script.fault("journal.commit", Fault.LOSE_REQUEST, nth=nth)
    tried(world, run, "r", InvalidUsage("column 'a'"), script)
    assert reasons(world) == []


def test_only_what_may_be_kept_is_noted() -> None:
    world = World()
    world.feed(rec("k", 1))
    error = InvalidUsage("column 'a' is INT, found secret")
    error.recordable = "column 'a' is INT"
    tried(world, run, "r", error)
    assert reasons(world) == [(1, "column 'a' is INT")]
