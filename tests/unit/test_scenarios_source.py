"""Scenarios S1, S2, S5, S6 as far as the core and a source in memory can tell them. Checks Invariant 1."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from tests.support.memory.fold import Position
from tests.support.memory.ledger import Crash, Fault
from tests.support.memory.source import MemorySource, MemorySourceView, SourceRecord
from tests.support.memory.world import A, Script, World, rec
from tidemark.core.binding import Binding
from tidemark.core.errors import Determinate
from tidemark.core.ids import Frontier, FrontierRegressed, Txn
from tidemark.core.replay import InputGone, Replayable, Verdict
from tidemark.pipeline import replay
from tidemark.pipeline.reclock import reclock
from tidemark.pipeline.run import run


@pytest.mark.parametrize("acknowledged", [0, 1, 99])
def test_s1_the_resume_point_comes_from_the_bindings_never_from_what_the_source_remembers(
    acknowledged: int,
) -> None:
    world = World()
    world.commit(rec("k", 1), rec("l", 1))
    world.source.acknowledged = Frontier.of({"p0": acknowledged})
    world.commit(rec("m", 1))
    assert [(b.lower["p0"], b.upper["p0"]) for b in world.bindings] == [(0, 2), (2, 3)]
    assert len(world.state()) == 3


def test_s1_an_acknowledgement_that_got_lost_is_made_good_by_the_next() -> None:
    world = World()
    world.feed(rec("k", 1))
    script = Script()
    for nth in (1, 2):
        script.fault("source.acknowledge", Fault.LOSE_REQUEST, nth=nth)
    assert run(world.process(script), world.attempt()).checkpoint == 1
    assert world.acknowledged == Frontier()
    world.run()
    assert world.acknowledged == Frontier.of({"p0": 1})


def test_s1_a_checkpoint_is_durable_before_the_source_may_forget() -> None:
    world = World()
    world.feed(rec("k", 1))
    with pytest.raises(Crash):
        world.run(Script().fault("source.acknowledge", Fault.CRASH_BEFORE))
    assert (world.checkpoint, world.acknowledged) == (1, Frontier())


class StartingAt(MemorySource):
    """A source that was told where to start."""

    def __init__(self, start: int) -> None:
        super().__init__(records_max=1_000)
        self.start = start

    def records(self, binding: Binding) -> Iterator[tuple[Position, SourceRecord]]:
        return (pair for pair in super().records(binding) if pair[0].offset >= self.start)


def test_s2_a_start_offset_leaves_out_what_is_below_and_a_restart_goes_on() -> None:
    world = World()
    world.source = StartingAt(100)
    world.feed(*(rec(offset, 0) for offset in range(3_000)))
    world.run()
    assert len(world.state()) == 2_900
    world.commit(*(rec(offset, 0) for offset in range(3_000, 4_000)))
    assert len(world.state()) == 3_900
    assert len(world.bindings) == 4


def test_s5_a_source_that_was_recreated_smaller_is_a_permanent_error_and_binds_nothing() -> None:
    world = World()
    world.commit(rec("k", 1), rec("k", 2))
    world.source.partitions["p0"] = [rec("k", 9)]
    for _ in range(2):
        with pytest.raises(FrontierRegressed, match="'p0' is bound up to 2, but in the source it ends at 1"):
            world.run()
    assert len(world.bindings) == 1
    assert world.state() == {("k",): 2}


def test_s5_a_topic_that_is_gone_is_a_permanent_error() -> None:
    world = World()
    world.commit(rec("k", 1))
    world.feed(rec("k", 1), partition="p1")
    del world.source.partitions["p0"]
    with pytest.raises(FrontierRegressed, match="is gone"):
        world.run()


def test_s5_new_partitions_are_read_from_their_beginning() -> None:
    world = World()
    world.commit(rec("k", 1))
    world.commit(rec("l", 1), rec("m", 1), partition="p9")
    assert (world.bindings[1].lower["p9"], world.bindings[1].upper["p9"]) == (0, 2)
    assert len(world.state()) == 3


def test_s5_a_broken_source_stops_its_own_pipeline_only() -> None:
    broken, well = World(), World()
    for world in (broken, well):
        world.commit(rec("k", 1))
    broken.source.partitions.clear()
    with pytest.raises(FrontierRegressed):
        broken.run()
    well.commit(rec("k", 2))
    assert well.checkpoint == 2


def test_s6_input_truncated_after_it_was_bound_is_gone_and_nothing_moves() -> None:
    world = World()
    world.feed(rec("k", 1), rec("k", 2))
    reclock(world.process(), world.attempt("owner"))
    world.source.partitions["p0"].pop()
    with pytest.raises(InputGone, match=r"input of transaction 1 is gone: partition 'p0'") as error:
        run(world.process(), world.attempt("owner"))
    assert error.value.txn == 1
    assert (world.files, world.seals, world.checkpoint) == ({}, [], 0)


@pytest.mark.parametrize(
    ("left", "verdict"),
    [
        ([rec("k", 1)], Verdict.INPUT_GONE),
        ([rec("k", 1), rec("k", "replaced")], Verdict.DIFFERS),
        ([rec("k", 1), rec("k", 2)], Verdict.IDENTICAL),
    ],
    ids=["truncated", "replaced", "untouched"],
)
def test_s6_a_replay_says_what_became_of_the_input(left: list[SourceRecord], verdict: Verdict) -> None:
    world = World()
    world.feed(rec("k", 1), rec("k", 2))
    run(world.process(), world.attempt("owner"))
    world.source.partitions["p0"] = list(left)
    (finding,) = run(world.process(), world.attempt("owner", cleared=True)).findings
    assert (finding.txn, finding.verdict) == (Txn(1), verdict)
    assert world.state(A) == {("k",): 2}, "the state is what was sealed"


def test_offers_end_at_the_boundaries_of_source_transactions() -> None:
    world = World(records_max=2)
    world.feed(*(rec("k", n, ends=n in (0, 3, 4)) for n in range(6)))
    world.run()
    assert [b.upper["p0"] for b in world.bindings] == [1, 4, 5], "a whole one may be larger; 5 has not ended"


def test_the_oldest_kept_transactions_are_asked_about_however_many_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their input is let go first. They are asked about in portions."""
    asked: list[list[int]] = []

    class Asked(MemorySourceView):
        def replayable(self, bindings: Sequence[Binding]) -> Sequence[Replayable]:
            asked.append([binding.txn for binding in bindings])
            return super().replayable(bindings)

    world = World()
    for number in range(9):
        world.commit(rec("k", number))
    pipeline = replace(world.process(), source=Asked(world.source))
    monkeypatch.setattr(replay, "ASKED_AT_ONCE_MAX", 3)
    assert list(replay.replayable(pipeline, since=Txn(3))) == [3, 4, 5, 6, 7, 8, 9]
    assert asked == [[3, 4, 5], [6, 7, 8], [9]]
    assert list(replay.replayable(pipeline, since=Txn(3), at_ends=2)) == [3, 4, 8, 9]
    assert list(replay.replayable(pipeline, since=Txn(8), at_ends=5)) == [8, 9]
    assert replay.replayable(pipeline, since=Txn(10)) == {}


def test_a_source_that_cant_be_asked_is_told_as_such_and_warned_of_by_nobody() -> None:
    class Away(MemorySourceView):
        def replayable(self, bindings: Sequence[Binding]) -> Sequence[Replayable]:
            raise Determinate("the source is away", hint="retry")

    world = World()
    world.commit(rec("k", 1))
    pipeline = replace(world.process(), source=Away(world.source))
    found = replay.replayable(pipeline)
    assert found == {Txn(1): Replayable(caveat="the source can't be asked: the source is away")}
    assert replay.warnings(found, since=Txn(1), now_seconds=0.0) == ()
