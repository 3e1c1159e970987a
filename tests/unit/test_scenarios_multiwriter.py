"""Scenarios M1 to M12: many writers, one decision each. Checks Invariants 1, 2, 3, 4, 5, 9, 13."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from tests.support.attempts import ingest, validate
from tests.support.memory.ledger import Crash, Fault
from tests.support.memory.world import A, B, Script, World, head_of, rec
from tests.support.sealing import announce_generation
from tidemark.core.binding import Binding
from tidemark.core.ids import Frontier, Txn, WriterToken
from tidemark.core.ledger import Event
from tidemark.core.log import Appended, CaughtUp, UpperMismatch, entry_of
from tidemark.core.replay import Verdict
from tidemark.core.seal import Fenced, Lost, Sealed, SealOutcome, Staged
from tidemark.pipeline.checkpoint import checkpoint
from tidemark.pipeline.context import Attempt, Pipeline
from tidemark.pipeline.ingest import gather
from tidemark.pipeline.reclock import mint, reclock
from tidemark.pipeline.run import run
from tidemark.pipeline.upsert import bring_up_log, commit_staged, put_entry, seal_judged
from tidemark.pipeline.validate import judge_gathered
from tidemark.ports.planes import DataPlane

T1 = Txn(1)


def stage(pipeline: Pipeline, attempt: Attempt, txn: Txn = T1) -> Staged:
    staged = ingest(pipeline, attempt, txn)
    assert isinstance(staged, Staged)
    return staged


def decide(pipeline: Pipeline, attempt: Attempt, staged: Staged) -> SealOutcome:
    return commit_staged(pipeline, attempt, staged, validate(pipeline, staged))


def opened(*shards: str, transactions: int = 1) -> World:
    """A world with bound and open transactions, whose run is gone; each touches all the shards."""
    world = World(records_max=len(shards))
    for txn in range(1, transactions + 1):
        world.feed(*(rec(shard, txn, table=shard, ends=shard == shards[-1]) for shard in shards))
    reclock(world.process(), world.attempt("gone"))
    assert len(world.bindings) == transactions
    return world


def sealed(*shards: str, transactions: int = 1) -> World:
    """The same, with every transaction sealed and none appended."""
    world = opened(*shards, transactions=transactions)
    for txn in range(1, transactions + 1):
        pipeline, attempt = world.process(), world.attempt()
        decide(pipeline, attempt, stage(pipeline, attempt, Txn(txn)))
    return world


def owners_of_files(world: World) -> set[str]:
    return {path.split("/")[2] for path in world.files}


# M1


def test_m1_data_below_an_upper_that_a_peer_moved_before_we_started_is_dropped() -> None:
    world = World()
    for txn in range(1, 11):
        world.commit(rec(txn, txn, table="a" if txn in (5, 7, 9) else "b"))
    assert head_of(world.warehouse.log(A)).upper == 10
    files, pipeline, attempt = dict(world.files), world.process(), world.attempt()
    dropped = [ingest(pipeline, attempt, Txn(txn)) for txn in (5, 7)]
    assert [isinstance(drop, Lost) and drop.winner.txn for drop in dropped] == [5, 7]
    for txn in (5, 7):
        entry = entry_of(world.seals[txn - 1], A)
        assert put_entry(pipeline, A, expected=Txn(txn), entry=entry) == UpperMismatch(Txn(txn), Txn(10))
    assert bring_up_log(pipeline, A).end == CaughtUp(Txn(11)), "our frontier moves past what was dropped"
    assert world.files == files
    assert world.log_txns(A) == [5, 7, 9]


@pytest.mark.parametrize("call", ["plane.write", "seals.commit", "seals.head"])
def test_m1_the_upper_read_at_the_start_is_not_enough(call: str) -> None:
    """A peer finishes everything between our reclock and our seal."""
    world = World(records_max=1)
    world.feed(rec("k", 5), rec("k", 7))
    nth = 3 if call == "seals.head" else 1  # The first heads are the reclock's.
    script = Script().before(call, world.run, nth=nth)
    report = run(world.process(script), world.attempt("slow"))
    assert report.dropped == 2
    assert report.checkpoint == 2
    assert {seal.token for seal in world.seals} == {"w2"}
    assert owners_of_files(world) == {"w2"}, "what lost left no file behind"
    assert world.log_txns(A) == [1, 2]
    lost = world.journal(Event.LOST)
    staged_in_vain = call != "seals.head"
    assert [(entry.txn, entry.detail["winner"]) for entry in lost] == ([(1, "w2")] if staged_in_vain else [])


# M2


def test_m2_the_states_changes_are_one_per_key_and_transaction() -> None:
    world = World()
    world.commit(rec("k", "a"))
    world.commit(rec("x", 1, table="b"))
    world.commit(rec("y", 1, table="b"))
    world.commit(rec("k", "b"), rec("k", "c"))
    assert world.feed_of_changes() == [
        ("+", ("k",), "a", 1),
        ("-", ("k",), "a", 4),
        ("+", ("k",), "c", 4),
    ]
    assert [row.value for row in world.rows()] == ["a", "c"], "the loser was never written"


# M3


def test_m3_the_writer_that_comes_second_sees_where_the_upper_is_and_goes_on_from_there() -> None:
    world = sealed("a", transactions=3)
    first, second = world.process(), world.process()
    entry = entry_of(world.seals[0], A)
    assert bring_up_log(first, A).appended == (1, 2, 3)
    assert put_entry(second, A, expected=T1, entry=entry) == UpperMismatch(expected=T1, current=Txn(4))
    world.feed(rec("a", 4))
    reclock(second, attempt := world.attempt())
    decide(second, attempt, stage(second, attempt, Txn(4)))
    assert bring_up_log(second, A).appended == (4,)
    assert world.log_txns() == [1, 2, 3, 4]
    assert world.state() == {("a",): 4}


# M4


def move_on(world: World) -> Callable[[], object]:
    """A rival finishes everything that is open, and one transaction more."""

    def go() -> None:
        world.feed(rec("later", 0))
        world.run()

    return go


@pytest.mark.parametrize("rival", [False, True])
def test_m4_a_seal_that_was_committed_and_its_reply_lost_is_success(rival: bool) -> None:
    world = opened("a")
    script = Script().fault("seals.commit", Fault.LOSE_REPLY)
    pipeline, attempt = world.process(script), world.attempt("me")
    staged = stage(pipeline, attempt)
    if rival:
        script.before("seals.head", move_on(world), nth=3)
    outcome = decide(pipeline, attempt, staged)
    assert outcome == Sealed(world.seals[0], already=True)
    assert [seal.token for seal in world.seals][:1] == [attempt.token]
    assert len(world.seals) == (2 if rival else 1), "no second write"
    assert attempt.token in owners_of_files(world)


@pytest.mark.parametrize("fault", [Fault.LOSE_REQUEST, Fault.DELAY])
def test_m4_a_seal_that_was_not_committed_commits_when_there_is_no_rival(fault: Fault) -> None:
    world = opened("a")
    pipeline, attempt = world.process(Script().fault("seals.commit", fault)), world.attempt("me")
    outcome = decide(pipeline, attempt, stage(pipeline, attempt))
    assert isinstance(outcome, Sealed)
    list(world.warehouse.land_delayed())
    assert [seal.token for seal in world.seals] == [attempt.token]


@pytest.mark.parametrize("fault", [Fault.LOSE_REQUEST, Fault.DELAY])
def test_m4_a_seal_that_was_not_committed_is_lost_when_a_rival_moved(fault: Fault) -> None:
    world = opened("a")
    script = Script().fault("seals.commit", fault)
    pipeline, attempt = world.process(script), world.attempt("me")
    staged = stage(pipeline, attempt)
    script.before("seals.head", move_on(world), nth=3)
    outcome = decide(pipeline, attempt, staged)
    list(world.warehouse.land_delayed())
    assert outcome == Lost(world.seals[0])
    assert attempt.token not in {seal.token for seal in world.seals}
    assert attempt.token not in owners_of_files(world)


def test_m4_a_delayed_seal_that_lands_before_we_read_back_is_success() -> None:
    world = opened("a")
    script = Script().fault("seals.commit", Fault.DELAY)
    pipeline, attempt = world.process(script), world.attempt("me")
    staged = stage(pipeline, attempt)
    script.before("seals.head", lambda: list(world.warehouse.land_delayed()), nth=3)
    assert decide(pipeline, attempt, staged) == Sealed(world.seals[0], already=True)


@pytest.mark.parametrize("rival", [False, True])
@pytest.mark.parametrize("fault", [Fault.LOSE_REPLY, Fault.LOSE_REQUEST, Fault.DELAY])
def test_m4_an_append_with_an_unknown_outcome_is_in_the_log_exactly_once(fault: Fault, rival: bool) -> None:
    world = sealed("a")
    script = Script().fault("log.commit", fault)
    if rival:
        script.before("log.head", move_on(world), nth=3)
    pipeline = world.process(script)
    report = bring_up_log(pipeline, A)
    list(world.warehouse.land_delayed())
    assert world.log_txns() == ([1, 2] if rival else [1])
    assert world.log()[0] == entry_of(world.seals[0], A)
    assert report.end == CaughtUp(Txn(3) if rival else Txn(2))
    assert len(report.appended) + len(report.dropped) == 1


def test_m4_an_append_that_was_not_committed_is_ours_without_a_rival_and_dropped_with_one() -> None:
    for rival, expected in ((False, Appended(T1)), (True, UpperMismatch(T1, Txn(3)))):
        world = sealed("a")
        script = Script().fault("log.commit", Fault.LOSE_REQUEST)
        if rival:
            script.before("log.head", move_on(world), nth=2)
        entry = entry_of(world.seals[0], A)
        assert put_entry(world.process(script), A, expected=T1, entry=entry) == expected


@pytest.mark.parametrize("fault", [Fault.LOSE_REPLY, Fault.LOSE_REQUEST, Fault.DELAY, Fault.DUPLICATE])
@pytest.mark.parametrize("ledger", ["bindings", "seals", "log", "checkpoints", "journal"])
def test_m4_no_unknown_outcome_of_any_ledger_writes_twice(ledger: str, fault: Fault) -> None:
    world = World()
    world.feed(rec("k", 1))
    script = Script().fault(f"{ledger}.commit", fault)
    run(world.process(script), world.attempt("r"))
    run(world.process(script), world.attempt("r", cleared=True))
    list(world.warehouse.land_delayed())
    assert f"{ledger}.commit" in script.calls
    assert [b.txn for b in world.bindings] == [s.txn for s in world.seals] == world.log_txns() == [1]
    assert world.checkpoint == 1
    assert len(world.journal(Event.VERIFIED)) == 1


# M5


def test_m5_the_minter_that_comes_second_adopts_and_adds_what_is_missing() -> None:
    world = World()
    world.feed(*(rec(offset, offset) for offset in range(3)))

    def rival_binds_three() -> None:
        assert mint(world.process(), world.attempt("a")).txns == (1,)
        world.feed(rec(3, 3), rec(4, 4))

    # B has asked the source and got 3; by its commit, A has bound 3 and there are 5.
    script = Script().before("bindings.commit", rival_binds_three)
    assert mint(world.process(script), world.attempt("b")).txns == (2,)
    assert [(b.lower["p0"], b.upper["p0"], b.owner.run_id) for b in world.bindings] == [
        (0, 3, "a"),
        (3, 5, "b"),
    ]


def test_m5_a_minter_that_comes_second_and_finds_nothing_left_owns_nothing_for_good() -> None:
    world = World()
    world.feed(rec("k", 1))
    script = Script().before("bindings.commit", lambda: mint(world.process(), world.attempt("a")))
    assert mint(world.process(script), world.attempt("b")).txns == ()
    world.feed(rec("k", 2))
    cleared = world.attempt("b", cleared=True)
    assert mint(world.process(), cleared).txns == (), "clearing it mints nothing new"
    assert len(world.bindings) == 1


# M7


def test_m7_a_writer_of_an_older_generation_is_refused_at_its_next_seal() -> None:
    world = opened("a")
    old, attempt = world.process(generation=1), world.attempt("old")
    staged = stage(old, attempt)
    assert announce_generation(world.process(generation=2)) == 2
    assert announce_generation(world.process(generation=1)) == 2
    with pytest.raises(Fenced, match="generation 1 may not seal transaction 1: generation 2 is in charge"):
        decide(old, attempt, staged)
    assert world.seals == []
    run(world.process(generation=2), world.attempt())
    assert [seal.generation for seal in world.seals] == [2]


def test_m7_a_generation_that_is_announced_between_decision_and_commit_still_fences() -> None:
    world = opened("a")
    script = Script().before("seals.commit", lambda: announce_generation(world.process(generation=2)))
    old, attempt = world.process(script, generation=1), world.attempt("old")
    with pytest.raises(Fenced):
        decide(old, attempt, stage(old, attempt))
    assert world.seals == []


# M8, M9


def test_m8_who_loses_the_seal_finishes_with_the_winners_parts_and_deletes_its_own() -> None:
    world = opened("a", "b")
    first, one = world.process(Script().fault("log.commit", Fault.CRASH_BEFORE)), world.attempt("one")
    second, two = world.process(), world.attempt("two")
    staged_one, staged_two = stage(first, one), stage(second, two)
    assert isinstance(decide(first, one, staged_one), Sealed)
    with pytest.raises(Crash):
        bring_up_log(first, A)
    assert decide(second, two, staged_two) == Lost(world.seals[0])
    for shard in (A, B):
        assert bring_up_log(second, shard).appended == (1,)
        assert [entry.token for entry in world.log(shard)] == [one.token]
    assert owners_of_files(world) == {one.token}
    (lost,) = world.journal(Event.LOST)
    assert (lost.token, lost.detail["winner"], lost.detail["verdict"]) == (
        two.token,
        one.token,
        Verdict.IDENTICAL,
    )


def test_m9_a_writer_that_wakes_after_its_transaction_was_finished_deletes_nothing() -> None:
    world = opened("a", "b")
    script = Script().before("log.commit", world.run)
    report = run(world.process(script), sleeper := world.attempt("sleeper"))
    assert [seal.token for seal in world.seals] == [sleeper.token]
    assert isinstance(report.decided[0], Sealed)
    assert report.checkpoint == 1
    assert owners_of_files(world) == {sleeper.token}
    assert world.log_txns(A) == world.log_txns(B) == [1]
    assert "plane.discard" not in script.calls


@dataclass(frozen=True)
class SweptPlane:
    """Loses its race, and then its files, while it writes them."""

    plane: DataPlane
    rival: Callable[[], object]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.plane, name)

    def stage(self, binding: Binding, token: WriterToken) -> Staged:
        self.rival()
        raise FileNotFoundError("a part that a sweep has removed")


def test_invariant_4_parts_that_are_swept_while_they_are_written_are_a_lost_race() -> None:
    world = opened("a", "b")
    late = world.process()
    swept = replace(late, plane=SweptPlane(late.plane, world.run))
    (outcome,) = run(swept, world.attempt("late")).decided
    assert outcome == Lost(world.seals[0])
    world.feed(rec("k", "more", table="a"))
    with pytest.raises(FileNotFoundError):
        run(replace(late, plane=SweptPlane(late.plane, lambda: None)), world.attempt("alone"))


def test_invariant_4_parts_that_are_swept_while_a_task_writes_them_are_a_lost_race() -> None:
    world = opened("a", "b")
    late, attempt = world.process(), world.attempt("late")
    swept = replace(late, plane=SweptPlane(late.plane, world.run))
    reclock(swept, attempt)
    steps = (gather, judge_gathered, seal_judged)
    assert [step(swept, attempt) for step in steps] == [(), (), ()]
    assert [seal.txn for seal in world.seals] == [1]
    world.feed(rec("k", "more", table="a"))
    alone, attempt = replace(late, plane=SweptPlane(late.plane, lambda: None)), world.attempt("alone")
    reclock(alone, attempt)
    with pytest.raises(FileNotFoundError):
        gather(alone, attempt)


# M10, M11, M12


def test_m10_the_next_run_finishes_what_a_vanished_run_owned_then_its_own() -> None:
    world = World()
    for value in range(4):
        world.commit(rec("k", value))
    world.feed(rec("k", "five"))
    reclock(world.process(), gone := world.attempt("gone"))
    world.feed(rec("k", "six"))
    report = run(world.process(), world.attempt("next"))
    assert [outcome.seal.txn for outcome in report.decided if isinstance(outcome, Sealed)] == [5, 6]
    assert [(b.txn, b.owner.run_id) for b in world.bindings[4:]] == [(5, gone.owner.run_id), (6, "next")]
    assert [row.value for row in world.rows()][4:] == ["five", "six"]
    assert world.checkpoint == 6


def test_m11_an_upper_steps_over_what_does_not_touch_the_shard() -> None:
    world = World()
    for _ in range(4):
        world.commit(rec("k", 1), rec("k", 1, table="b"))
    world.commit(rec("k", 5))
    assert head_of(world.warehouse.log(B)).upper == 5
    world.commit(rec("k", 6, table="b"))
    assert world.log_txns(B) == [1, 2, 3, 4, 6]
    assert head_of(world.warehouse.log(B)).upper == 7
    world.commit(rec("k", 7, table="new"))
    assert [entry.txn for entry in world.warehouse.log("new").records(1)] == [7]  # type: ignore[arg-type]


def test_m11_a_thousand_untouched_shards_cost_nothing() -> None:
    def cost_of_one_more(others: int) -> list[str]:
        world = World()
        world.commit(rec("k", 0), *(rec("k", 0, table=f"s{number}") for number in range(others)))
        world.commit(rec("k", 1))
        world.feed(rec("k", 2))
        script = Script()
        world.run(script)
        return script.calls

    assert cost_of_one_more(1_000) == cost_of_one_more(0)


def test_m12_checkpoints_and_acknowledgements_advance_while_runs_overlap_without_end() -> None:
    world = World()
    world.feed(rec("k", 0))
    open_run = (world.process(), world.attempt())
    reclock(*open_run)
    for number in range(1, 20):
        world.feed(rec("k", number))
        next_run = (world.process(), world.attempt())
        reclock(*next_run)  # From here on, the next transaction is bound and open.
        pipeline, attempt = open_run
        run(pipeline, attempt)
        assert len(world.bindings) == number + 1
        assert world.checkpoint == number
        assert world.acknowledged == Frontier.of({"p0": number})
        open_run = next_run


def test_m12_a_checkpoint_by_a_slow_process_never_goes_back() -> None:
    world = World()
    world.commit(rec("k", 1))
    world.feed(rec("k", 2))
    script = Script().before("checkpoints.commit", move_on(world))
    report = run(world.process(script), world.attempt("slow"))
    assert report.checkpoint == world.checkpoint == 3
    assert checkpoint(world.process()) == 3
    assert world.acknowledged == Frontier.of({"p0": 3})
