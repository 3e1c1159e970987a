"""Scenarios G1 to G22 in memory: generations are replaced without a moment in which a table is wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from tests.support.memory.control import MemoryControl
from tests.support.memory.fold import fold, visible
from tests.support.memory.generations import SHARDS, GenerationWorld, rules_of, settings
from tests.support.memory.ledger import Crash, Fault
from tests.support.memory.state import MemoryStatePlane
from tests.support.memory.versions import MemoryStates
from tests.support.memory.world import A, B, Script, rec
from tidemark.core.binding import Configuration
from tidemark.core.errors import Determinate, InvalidUsage
from tidemark.core.generation import Candidate, CandidateState, PromotionOpen, Superseded, is_from_file
from tidemark.core.history import HistoryLost
from tidemark.core.ids import QUARANTINE, Txn
from tidemark.core.ledger import Event
from tidemark.core.publish import Published
from tidemark.core.replay import ExpectationsFailed, InputGone, Verdict
from tidemark.core.seal import Decision, Fenced
from tidemark.core.text import quarantined_in
from tidemark.pipeline.candidates import candidates, last_reread
from tidemark.pipeline.context import Pipeline
from tidemark.pipeline.decide import accept, release, set_watermark_back, skip
from tidemark.pipeline.generation import comparisons, follow, position
from tidemark.pipeline.promotion import NotReady, promote
from tidemark.pipeline.publish import publish, rebuild
from tidemark.pipeline.reclock import mint, reclock
from tidemark.pipeline.recover import recover
from tidemark.pipeline.repair import repair
from tidemark.pipeline.run import finish, replay, run
from tidemark.pipeline.upsert import put_seal

TIMES_10 = settings(1, times=10)
CORRECTED, COMMITTED, SKIPPED = Decision.CORRECTED, Decision.COMMITTED, Decision.SKIPPED


def three() -> GenerationWorld:
    """A world with three transactions; the second touches b as well."""
    world = GenerationWorld()
    world.commit(rec("k", 1), rec("gone", 1))
    world.commit(rec("k", 2), rec("l", 3, table="b"))
    world.commit(rec("m", 4), rec("gone", None))
    return world


def require_right(
    world: GenerationWorld, configuration: Configuration = TIMES_10, *, without: Sequence[int] = ()
) -> None:
    """The tables are what the configuration in charge makes of everything, and the numbers are dense."""
    for shard in SHARDS:
        assert world.state(shard) == world.recomputed(configuration, shard, without=without), shard
    assert [one.txn for one in world.seals] == list(range(1, len(world.seals) + 1))
    assert [one.txn for one in world.bindings][: len(world.seals)] == [one.txn for one in world.seals]
    assert [one.generation for one in world.seals] == sorted(one.generation for one in world.seals)


# G1


def test_g1_a_promotion_is_one_transaction_with_the_difference_of_both_generations() -> None:
    world = three()
    candidate = world.start(TIMES_10)
    assert world.follow(candidate) == [1, 2, 3]
    require_right(world, world.first)
    world.commit(rec("n", 5))  # The pipeline goes on meanwhile.
    before, seals = world.log(), world.seals
    done = world.promote(candidate)
    assert (done.txn, world.generation) == (5, 1)
    assert world.log()[: len(before)] == before
    assert world.seals[:4] == seals
    assert world.seals[4].decision is CORRECTED
    require_right(world)
    assert {shard: (one.upserts, one.deletes) for shard, one in done.corrections.items()} == {
        A: (3, 0),
        B: (1, 0),
    }
    world.commit(rec("k", 7))
    require_right(world)
    assert [entry.event for entry in world.journal(Event.PROMOTED)] == [Event.PROMOTED]


def test_g1_rows_that_are_no_longer_there_are_deleted_and_moved_ones_change_their_shard() -> None:
    world = three()
    rules = settings(1, without=["m"], rename={"b": "a"})
    done = world.replaced(rules)
    assert done.corrections[A].deletes == done.corrections[B].deletes == 1
    require_right(world, rules)


def test_g1_equal_tables_get_a_promotion_without_rows() -> None:
    world = three()
    assert all(one.parts is None for one in world.replaced(settings(1)).corrections.values())
    assert world.seals[-1].decision is CORRECTED
    assert not world.seals[-1].shards
    require_right(world, settings(1))


def test_g1_from_now_on_changes_no_row_and_reads_nothing_again() -> None:
    world = three()
    before = world.state()
    world.replaced(TIMES_10, from_now=True)
    assert world.state() == before
    world.commit(rec("k", 5))
    assert world.state() == {**before, ("k",): 50}


# G2


@pytest.mark.parametrize("fault", [Fault.NONE, Fault.LOSE_REPLY])
def test_g2_of_two_starts_at_once_one_wins_and_the_other_says_so(fault: Fault) -> None:
    world = three()
    script = Script().before("candidates.commit", lambda: world.start(TIMES_10))
    with pytest.raises(InvalidUsage, match="generation 1 has been started already"):
        world.start(settings(1), script.fault("candidates.commit", fault, nth=2))
    assert world.candidate is not None
    assert world.candidate.configuration == TIMES_10


def test_g2_a_start_whose_reply_was_lost_is_found() -> None:
    world = three()
    candidate = world.start(TIMES_10, Script().fault("candidates.commit", Fault.LOSE_REPLY))
    assert world.candidate == candidate


@pytest.mark.parametrize("call", ["bindings.commit", "seals.commit", "plane.write", "log.head"])
def test_g2_of_two_promotes_at_once_one_wins_and_the_other_says_so(call: str) -> None:
    world = three()
    candidate = world.start(TIMES_10)
    world.follow(candidate)
    told: list[Exception] = []

    def other() -> None:
        try:
            world.promote(candidate)
        except (Determinate, InvalidUsage) as error:
            told.append(error)

    try:
        world.promote(candidate, Script().before(call, other))
    except (Determinate, InvalidUsage) as error:
        told.append(error)
    assert len(told) == 1
    assert [one.decision for one in world.seals].count(CORRECTED) == 1
    require_right(world)


# G3


def test_g3_after_an_abort_a_new_start_never_sees_the_old_files() -> None:
    world = three()
    first = world.start(TIMES_10)
    world.follow(first)
    kept = dict(world.shadows)
    world.abort(first)
    assert not world.shadows
    assert world.candidate is None
    assert first not in world.bindings
    second = world.start(settings(1, times=3))
    assert second.folder != first.folder
    world.shadows.update(kept)  # Even where removing them failed.
    assert world.follow(second) == [1, 2, 3]
    world.promote(second)
    require_right(world, second.configuration)


def test_g3_an_abort_is_found_again_and_a_second_one_says_that_there_is_none() -> None:
    world = three()
    candidate = world.start(TIMES_10)
    ended = world.abort(candidate, Script().fault("candidates.commit", Fault.LOSE_REPLY))
    assert ended.state is CandidateState.ABORTED
    assert world.abort(candidate) == ended
    other = world.start(TIMES_10)
    with pytest.raises(InvalidUsage, match="no such candidate"):
        world.abort(candidate)
    assert world.candidate == other


def test_g3_a_candidate_is_not_aborted_while_its_promotion_is_open() -> None:
    world = three()
    candidate = world.start(TIMES_10)
    world.follow(candidate)

    def meanwhile() -> None:
        with pytest.raises(PromotionOpen):
            world.abort(candidate)

    world.promote(candidate, Script().before("plane.write", meanwhile))
    require_right(world)
    with pytest.raises(InvalidUsage, match="no such candidate"):
        world.abort(candidate)


def test_g3_a_promoter_whose_candidate_was_aborted_changes_nothing() -> None:
    world = three()
    candidate = world.start(TIMES_10)
    world.follow(candidate)
    with pytest.raises(InvalidUsage, match="no candidate any more"):
        world.promote(candidate, Script().before("bindings.commit", lambda: world.abort(candidate)))
    assert len(world.bindings) == 3
    require_right(world, world.first)


def test_g3_a_follower_whose_files_an_abort_removed_says_so_even_if_its_first_look_is_old() -> None:
    world = three()
    candidate = world.start(TIMES_10)

    def abort() -> None:
        files = world.shadows[candidate.folder][1]
        world.abort(candidate)
        files.clear()

    script = Script().before("plane.write", abort, nth=2).fault("candidates.head", Fault.STALE, nth=4)
    with pytest.raises(InvalidUsage, match="no candidate any more"):
        world.follow(candidate, script)
    assert script.calls.count("candidates.head") == 5


# G4


@pytest.mark.parametrize(
    "call", ["plane.write", "seals.commit", "log.commit", "bindings.commit", "seals.head"]
)
def test_g4_a_follower_that_is_overtaken_drops_its_work_and_goes_on(call: str) -> None:
    world = three()
    candidate = world.start(TIMES_10)

    def overtake() -> None:
        world.commit(rec("later", 9))
        world.follow(candidate)

    world.follow(candidate, Script().before(call, overtake))
    warehouse, files = world.shadows[candidate.folder]
    seals = warehouse.seals.records(warehouse.seals.version)
    assert [one.txn for one in seals] == [1, 2, 3, 4]
    assert {path.split("/")[2] for path in files} <= {one.token for one in seals}
    lost = [one for one in warehouse.journal.records(warehouse.journal.version) if one.event is Event.LOST]
    assert bool(lost) is (call in ("plane.write", "seals.commit"))
    world.promote(candidate)
    require_right(world)


def test_g4_a_follower_that_finds_more_adopted_than_it_knew_of_goes_on() -> None:
    world = three()
    candidate = world.start(TIMES_10)

    def overtake() -> None:
        world.commit(rec("later", 9))
        world.follow(candidate, transactions_max=1)

    world.follow(candidate, Script().before("bindings.commit", overtake))
    assert world.promote(candidate).txn == 5
    require_right(world)


def test_g4_a_candidate_far_behind_follows_in_pieces_while_the_pipeline_goes_on() -> None:
    world = three()
    candidate = world.start(TIMES_10)
    for txn in range(1, 9):
        assert world.follow(candidate, transactions_max=1) == [txn]
        if txn % 2:
            world.commit(rec("k", txn))
        pair, _ = world.pair(candidate)
        assert position(pair).behind == len(world.seals) - txn
        if len(world.seals) == txn:
            break
    assert world.follow(candidate) == list(range(txn + 1, len(world.seals) + 1))
    world.promote(candidate)
    require_right(world)


# G5


def test_g5_open_transactions_below_a_promotion_are_finished_by_it() -> None:
    world = three()
    candidate = world.start(TIMES_10)
    world.feed(rec("k", 8))
    reclock(world.opened(), world.attempt("gone"))
    assert world.promote(candidate).txn == 5
    assert [one.decision for one in world.seals] == [COMMITTED] * 4 + [CORRECTED]
    require_right(world)


def test_g5_nothing_is_bound_above_an_open_promotion() -> None:
    world = three()
    candidate = world.start(TIMES_10)
    world.follow(candidate)

    def try_to_bind() -> None:
        world.feed(rec("k", 8))
        with pytest.raises(PromotionOpen, match="transaction 4 promotes generation 1"):
            run(world.opened(), world.attempt())

    world.promote(candidate, Script().before("plane.write", try_to_bind))
    assert len(world.bindings) == 4
    world.run()
    require_right(world)
    assert world.bindings[-1].configuration == TIMES_10


# G6


def asleep(world: GenerationWorld, candidate: Candidate, meanwhile: Callable[[], object]) -> Exception:
    """A promoter that sleeps before it writes the difference, and what it says when it wakes."""
    world.follow(candidate)
    with pytest.raises((Determinate, InvalidUsage)) as told:
        world.promote(candidate, Script().before("plane.write", meanwhile), grace_seconds=60)
    return told.value


def test_g6_a_run_waits_for_a_promotion_and_finds_it_done() -> None:
    world = three()
    candidate = world.start(TIMES_10)
    world.follow(candidate)
    script = Script()

    def start_a_run() -> None:
        world.feed(rec("k", 8))
        # What promotes goes on while the run waits.
        world.sleep = lambda seconds: world.promote(candidate, attempt=again)  # type: ignore[assignment]
        world.run()

    again = world.attempt("promoter")
    world.promote(candidate, script.before("plane.write", start_a_run), attempt=again)
    assert [one.decision for one in world.seals[3:]] == [CORRECTED, COMMITTED]
    require_right(world)


def test_g6_past_its_time_a_promotion_is_skipped_and_a_promoter_that_wakes_changes_nothing() -> None:
    world = three()
    candidate = world.start(TIMES_10)

    def meanwhile() -> None:
        world.commit(rec("k", 8))
        assert world.now_seconds > 60

    told = asleep(world, candidate, meanwhile)
    assert "transaction 4" in str(told) or "behind" in str(told)
    assert [one.decision for one in world.seals[3:]] == [SKIPPED, COMMITTED]
    assert world.generation == 0
    require_right(world, world.first)
    assert not [path for path in world.files if path.endswith("correction")]
    world.promote(candidate)
    require_right(world)


def test_g6_a_promotion_that_was_skipped_is_bound_anew_by_the_same_run() -> None:
    world = three()
    candidate, attempt = world.start(TIMES_10), world.attempt("promoter")
    world.follow(candidate)
    with pytest.raises(Determinate):
        world.promote(candidate, Script().fault("plane.write", Fault.FAIL), attempt=attempt)
    assert world.seals[-1].decision is SKIPPED, "no run has to wait for what has failed"
    world.promote(candidate, attempt=attempt)
    assert world.seals[-1].decision is CORRECTED
    require_right(world)


def test_g6_whoever_gives_up_finishes_what_is_below_first() -> None:
    world = three()
    candidate = world.start(TIMES_10)
    world.feed(rec("k", 8))
    reclock(world.opened(), world.attempt("gone"))
    script = Script().fault("plane.write", Fault.CRASH_BEFORE)
    world.follow(candidate)
    with pytest.raises(Crash):
        world.promote(candidate, script, grace_seconds=0)
    world.commit(rec("n", 1))
    assert [one.decision for one in world.seals[3:]] == [COMMITTED, SKIPPED, COMMITTED]
    require_right(world, world.first)


@pytest.mark.parametrize("fault", [Fault.LOSE_REPLY, Fault.LOSE_REQUEST, Fault.DUPLICATE, Fault.DELAY])
@pytest.mark.parametrize("call", ["bindings.commit", "seals.commit"])
def test_g6_an_unknown_outcome_is_read_back_and_never_skipped(call: str, fault: Fault) -> None:
    world = three()
    candidate = world.start(TIMES_10)
    world.follow(candidate)
    world.promote(candidate, Script().fault(call, fault))
    for _ in world.warehouse.land_delayed():
        pass
    assert [one.decision for one in world.seals[3:]] == [CORRECTED]
    require_right(world)


# G7


def kills(work: Callable[[GenerationWorld, Script], object], make: Callable[[], GenerationWorld]) -> int:
    """Kill the work before and after every durable step, and let `again` end it; how often."""
    script = Script()
    work(make(), script)
    count = 0
    for call in sorted({one for one in script.calls if one.endswith((".commit", ".write", ".discard"))}):
        for nth in range(1, script.calls.count(call) + 1):
            for fault in (Fault.CRASH_BEFORE, Fault.CRASH_AFTER):
                world = make()
                with pytest.raises(Crash):
                    work(world, Script().fault(call, fault, nth=nth))
                count += 1
                ended_well(world)
    return count


def ended_well(world: GenerationWorld) -> None:
    """After a crash runs go on, whatever was done; then a candidate is promoted, and the tables are right."""
    world.commit(rec("after", 6))
    require_right(world, TIMES_10 if world.generation else world.first)
    if not world.generation:
        world.promote(world.candidate or world.start(TIMES_10))
    world.commit(rec("after that", 7))
    assert world.generation == 1
    assert [one.decision for one in world.seals].count(CORRECTED) == 1
    assert world.candidate is None
    require_right(world)


def test_g7_killed_at_every_step_of_a_start() -> None:
    assert kills(lambda world, script: world.start(TIMES_10, script, token="t"), three) == 2


def test_g7_killed_at_every_step_of_following() -> None:
    assert kills(lambda world, script: world.follow(world.start(TIMES_10), script), three) > 20


def behind_and_open() -> GenerationWorld:
    world = three()
    world.feed(rec("k", 8))
    reclock(world.opened(), world.attempt("gone"))
    return world


def test_g7_killed_at_every_step_of_a_promotion() -> None:
    assert kills(lambda world, script: world.promote(world.start(TIMES_10), script), behind_and_open) > 30


def test_g7_killed_at_every_step_of_a_promotion_and_tried_again_by_the_same_run() -> None:
    script = Script()
    world = three()
    world.promote(world.start(TIMES_10), script)
    for call in sorted({one for one in script.calls if one.endswith((".commit", ".write"))}):
        for nth in range(1, script.calls.count(call) + 1):
            for fault in (Fault.CRASH_BEFORE, Fault.CRASH_AFTER):
                world = three()
                candidate = world.start(TIMES_10)
                with pytest.raises(Crash):
                    world.promote(
                        candidate,
                        Script().fault(call, fault, nth=nth),
                        attempt=world.attempt("promoter"),
                    )
                done = world.promote(candidate, attempt=world.attempt("promoter"))
                assert done.txn == world.seals[-1].txn == 4
                assert len(world.journal(Event.PROMOTED)) == 1
                require_right(world)


def test_g7_killed_at_every_step_of_an_abort() -> None:
    def work(world: GenerationWorld, script: Script) -> None:
        candidate = world.start(TIMES_10)
        world.follow(candidate)
        world.abort(candidate, script, token="t")

    assert kills(work, three) == 2


def test_g7_killed_at_every_step_of_giving_a_promotion_up() -> None:
    def overdue() -> GenerationWorld:
        world = behind_and_open()
        with pytest.raises(Crash):
            world.promote(
                world.start(TIMES_10),
                Script().fault("plane.write", Fault.CRASH_BEFORE, nth=5),
                grace_seconds=0,
            )
        assert len(world.bindings) > len(world.seals)
        world.now_seconds += 1
        return world

    assert kills(lambda world, script: world.run(script), overdue) > 4


def test_g7_a_promotion_reads_no_record_and_quarantines_none() -> None:
    """What it adds to the quarantine was read by earlier transactions, so no count may rise by it."""
    world = three()
    world.replaced(TIMES_10)
    promotion, added = world.seals[-1], world.seals[-1].shards[A]
    seal = replace(promotion, shards={QUARANTINE: added})
    assert (seal.source.count, quarantined_in(seal)) == (0, 0)
    assert quarantined_in(replace(seal, decision=COMMITTED)) == added.digest.count > 0


# G8


def test_g8_a_consumer_from_before_the_promotion_has_the_new_state_in_the_end() -> None:
    world = three()
    had = {shard: dict(fold(world.rows(shard))) for shard in SHARDS}
    at = world.sealed_upper
    world.commit(rec("k", 8), rec("o", 1, table="b"))
    world.replaced(settings(1, times=10, without=["m"]))
    world.commit(rec("p", 8))
    for shard in SHARDS:
        later = [
            row
            for entry in world.log(shard)
            if entry.txn >= at
            for part in entry.parts
            for row in world.files[part.path]
        ]
        assert visible(fold([*had[shard].values(), *later])) == world.state(shard)
    require_right(world, settings(1, times=10, without=["m"]))


# G9


def test_g9_a_shard_that_waits_refuses_a_promotion_by_name_until_it_is_released() -> None:
    world = GenerationWorld(hold_above=100)
    world.commit(rec("k", 1))
    world.commit(rec("k", 500))
    rules = settings(1, times=10, hold_above=100)
    candidate = world.start(rules)
    with pytest.raises(NotReady, match="shard a of the pipeline waits at transaction 2: 500 is too much"):
        world.promote(candidate)
    assert len(world.bindings) == 2, "nothing was bound, so no run has to wait"
    release(world.opened(), world.attempt(), A, reason="it is right")
    world.promote(candidate)
    require_right(world, rules)


def test_g9_a_shard_that_only_the_candidate_holds_refuses_it_by_name() -> None:
    world = three()
    candidate = world.start(settings(1, times=10, hold_above=30))
    with pytest.raises(NotReady, match="shard a of the candidate waits at transaction 3"):
        world.promote(candidate)
    assert world.generation == 0
    require_right(world, world.first)


# G10


def test_g10_what_people_decided_stays_decided() -> None:
    world = GenerationWorld(fail_above=100)
    world.commit(rec("k", 1))
    for value, decide in ((500, skip), (600, accept)):
        world.feed(rec("k", value), rec(f"only {value}", 1))
        with pytest.raises(ExpectationsFailed):
            world.run()
        decide(world.opened(), world.attempt(), world.sealed_upper, reason="so it is")
    rules = settings(1, times=10, fail_above=100)
    world.replaced(rules)
    decisions = [one.decision for one in world.seals]
    assert decisions == [COMMITTED, SKIPPED, Decision.ACCEPTED, CORRECTED]
    require_right(world, rules, without=[2])
    assert world.state()["k",] == 6000


def test_g10_lost_transactions_are_passed_over() -> None:
    world = three()
    world.warehouse.history.restore(world.warehouse.history.version - 2)  # Neither bound nor sealed any more.
    recover(world.opened(), world.attempt())
    world.run()
    assert [one.decision for one in world.seals] == [COMMITTED, COMMITTED, Decision.LOST, COMMITTED]
    world.replaced(TIMES_10)
    require_right(world)


def test_g10_transactions_that_were_sealed_by_an_earlier_promotion_are_passed_over() -> None:
    world = three()
    world.replaced(TIMES_10)
    world.commit(rec("k", 6))
    candidate = world.start(settings(2, times=3))
    pair, _ = world.pair(candidate)
    assert [one.txn for one in follow(pair, world.attempt()) if one.differs] == [1, 2, 3, 5]
    assert all(one.source_equal for one in comparisons(pair))
    world.promote(candidate)
    require_right(world, candidate.configuration)


# G11


def test_g11_a_replay_is_judged_by_the_generation_that_sealed() -> None:
    world = three()
    world.replaced(TIMES_10)
    world.commit(rec("k", 6))
    findings = replay(world.opened(), world.attempt(), txn_from=Txn(1), txn_to=Txn(5))
    assert [one.verdict for one in findings] == [Verdict.IDENTICAL] * 5


def test_g11_a_promotion_whose_rows_are_gone_differs_and_is_not_made_again() -> None:
    world = three()
    world.replaced(TIMES_10)
    del world.files[world.seals[3].shards[A].parts[0].path]
    (finding,) = replay(world.opened(), world.attempt(), txn_from=Txn(4), txn_to=Txn(4))
    assert finding.verdict is Verdict.DIFFERS
    with pytest.raises(InvalidUsage, match="transaction 4 promoted a generation"):
        repair(world.opened(), world.attempt(), Txn(4))


# G12


def test_g12_a_process_of_the_old_generation_can_bind_nothing_after_the_promotion() -> None:
    world = three()
    old = world.opened()
    old.control.bindings.head()
    world.replaced(TIMES_10)
    world.feed(rec("k", 8))
    with pytest.raises(Superseded, match="generation 1 is in charge"):
        mint(old, world.attempt())
    world.run(pipeline=old)  # A command opens the pipeline again.
    require_right(world)
    assert world.bindings[-1].configuration == TIMES_10


@pytest.mark.parametrize(("call", "nth"), [("bindings.head", 2), ("bindings.commit", 1)])
def test_g12_the_generation_is_checked_in_the_commit_that_binds(call: str, nth: int) -> None:
    world = three()
    world.feed(rec("k", 8))
    old, script = world.opened(), Script()
    script.before(call, lambda: world.replaced(TIMES_10), nth=nth)
    with pytest.raises(Superseded):
        mint(replace(old, control=world.opened(script).control), world.attempt())
    world.run()
    require_right(world)


def test_g12_a_process_of_the_old_generation_can_seal_nothing_after_the_promotion() -> None:
    world = three()
    old = world.opened()
    world.replaced(TIMES_10)
    world.feed(rec("k", 8))
    reclock(world.opened(), world.attempt("gone"))
    with pytest.raises(Fenced):
        finish(old, world.attempt(), Txn(5))
    world.run()
    require_right(world)


def test_g12_a_process_that_slept_with_its_seal_through_the_promotion_has_lost() -> None:
    world = three()
    world.feed(rec("k", 8))

    def sleep() -> None:
        world.replaced(TIMES_10)
        world.commit(rec("k", 9))

    report = run(world.opened(Script().before("seals.commit", sleep)), world.attempt("slow"))
    assert report.dropped == 1
    require_right(world)


def test_g12_what_a_process_of_the_old_generation_has_read_by_its_rules_is_no_alarm() -> None:
    world = three()
    old = world.opened(Script().before("plane.write", world.run))
    world.replaced(TIMES_10)
    world.feed(rec("k", 8))
    reclock(world.opened(), world.attempt("gone"))
    with pytest.raises(Fenced):
        finish(old, world.attempt(), Txn(5))
    require_right(world)
    assert [one.detail["verdict"] for one in world.journal(Event.LOST)] == [Verdict.NOT_COMPARABLE]


# G13


def test_g13_going_back_is_another_candidate_with_what_came_since() -> None:
    world = three()
    world.replaced(TIMES_10)
    world.commit(rec("k", 7), rec("new", 1), rec("l", None, table="b"))
    back = settings(2)
    world.replaced(back)
    assert world.generation == 2
    require_right(world, back)
    assert world.state()["k",] == 7
    world.commit(rec("k", 8))
    require_right(world, back)


def test_g13_a_rollback_takes_back_the_last_promotion_also_where_nothing_came_between_two() -> None:
    world = three()
    world.replaced(TIMES_10)
    world.replaced(settings(2, times=3))
    back = world.rollback()
    assert dict(rules_of(back.configuration.text)) == {"generation": 3, "times": 10}
    world.promote(back)
    require_right(world, TIMES_10)
    world.commit(rec("n", 2))
    assert world.state()["n",] == 20


def test_g13_a_rollback_touches_no_row_that_the_promotion_has_not_touched() -> None:
    world = three()
    world.replaced(TIMES_10, from_now=True)
    world.commit(rec("n", 2))
    before = world.state()
    world.replaced(settings(2, times=3), since=Txn(1), until=Txn(1))
    world.commit(rec("o", 1))
    world.promote(world.rollback())
    assert world.state() == {**before, ("o",): 10}, "transactions 1 to 3 as they were, the rest times 10"
    world.promote(world.rollback())  # The rollback is taken back.
    assert world.state() == {**before, ("o",): 3}
    world.replaced(settings(5, times=7), since=Txn(2), until=Txn(2))
    assert world.state() == {**before, ("k",): 14, ("o",): 3}, "a later candidate reads the rest as it is now"


def test_g13_no_file_speaks_for_the_generation_of_a_rollback() -> None:
    world = three()
    world.replaced(TIMES_10)
    assert is_from_file(candidates(MemoryControl(world.warehouse)), generation=1)
    world.promote(world.rollback())
    assert not is_from_file(candidates(MemoryControl(world.warehouse)), generation=2)
    world.replaced(settings(3))
    assert is_from_file(candidates(MemoryControl(world.warehouse)), generation=3)


# G14


def test_g14_a_candidate_that_has_read_other_records_is_not_ready() -> None:
    world = three()
    candidate = world.start(TIMES_10)
    world.source.partitions["p0"][0] = rec("k", 77)
    world.follow(candidate)
    with pytest.raises(NotReady, match="read other records for transactions 1"):
        world.promote(candidate)
    assert world.generation == 0


def test_g14_input_that_is_gone_stops_the_candidate_by_name() -> None:
    world = three()
    candidate = world.start(TIMES_10)
    del world.source.partitions["p0"][3:]
    with pytest.raises(InputGone, match="transaction 2"):
        world.follow(candidate)
    assert len(world.bindings) == 3


# G15


def test_g15_a_candidate_of_an_earlier_start_is_not_promoted_under_the_same_generation() -> None:
    world = three()
    first = world.start(TIMES_10)
    world.follow(first)
    world.abort(first)
    second = world.start(settings(1, times=3))
    with pytest.raises(InvalidUsage, match="no candidate any more"):
        world.promote(first)
    assert len(world.bindings) == 3
    world.promote(second)
    require_right(world, second.configuration)


def test_g15_a_seal_names_the_generation_that_its_binding_promotes() -> None:
    world = three()
    world.replaced(TIMES_10)
    world.feed(rec("k", 9))
    reclock(world.opened(), world.attempt("gone"))
    link = world.bindings[4].link
    seal = replace(world.seals[3], txn=Txn(5), token=world.attempt().token, binding=link)
    with pytest.raises(InvalidUsage, match="transaction 5 does not promote generation 1"):
        put_seal(world.opened(), seal)


def test_g15_an_open_promotion_is_no_transaction_with_input() -> None:
    world = three()
    candidate = world.start(TIMES_10)
    world.follow(candidate)

    def meanwhile() -> None:
        with pytest.raises(InvalidUsage, match="transaction 4 promotes generation 1 and has no input"):
            finish(world.opened(), world.attempt(), Txn(4))

    world.promote(candidate, Script().before("plane.write", meanwhile))
    require_right(world)


# G16


def test_g16_a_range_is_processed_again_and_the_rest_stays_as_it_was() -> None:
    world = three()
    world.commit(rec("k", 5), rec("n", 1))
    world.replaced(settings(1, times=10), since=Txn(2), until=Txn(3))
    assert world.state() == {("k",): 5, ("m",): 40, ("n",): 1}
    assert world.state(B) == {("l",): 30}
    world.commit(rec("o", 2))
    assert world.state()["o",] == 20, "later input gets the settings"
    # The next generation reads each other transaction as it is read in the tables now.
    world.replaced(settings(2, times=7), since=Txn(1), until=Txn(1))
    assert world.state() == {("k",): 5, ("m",): 40, ("n",): 1, ("o",): 20}


def test_g16_input_after_a_promotion_is_read_by_the_settings_of_its_own_time() -> None:
    world = three()
    world.replaced(settings(1, times=10))
    world.replaced(settings(2, times=2), from_now=True)
    world.commit(rec("n", 1))
    assert world.state()["n",] == 2
    world.replaced(settings(3, times=7), since=Txn(1), until=Txn(1))
    assert world.state() == {("k",): 20, ("m",): 40, ("n",): 2}


# G17


@pytest.mark.parametrize("rules", [TIMES_10, settings(1)], ids=["with rows", "without rows"])
def test_g17_a_promotion_whose_decision_was_lost_is_lost_and_can_be_made_again(rules: Configuration) -> None:
    world = three()
    candidate = world.start(rules)
    world.promote(candidate)
    world.warehouse.history.restore(world.warehouse.history.version - 1)
    with pytest.raises(HistoryLost):
        world.run()
    recover(world.opened(), world.attempt())
    assert [one.decision for one in world.seals] == [COMMITTED] * 3 + [Decision.LOST]
    world.promote(candidate)
    world.commit(rec("k", 6))
    require_right(world, rules)


def test_g17_a_candidate_that_is_ahead_of_a_history_that_was_set_back_is_not_ready() -> None:
    world = three()
    candidate = world.start(TIMES_10)
    world.feed(rec("k", 9))
    run(world.opened(), world.attempt())
    world.follow(candidate)
    truth = world.warehouse
    truth.history.restore(truth.history.version - 2)
    for ledger in (truth.log(A), truth.checkpoints, truth.attempts, truth.journal):
        ledger.restore(ledger.version - 1)
    for path in [one for one in world.files if one.split("/")[1] == "4"]:
        del world.files[path]
    pair, _ = world.pair(candidate)
    assert len(comparisons(pair)) == 3
    with pytest.raises(NotReady, match="has transaction 4, and the pipeline's history ends with 3"):
        world.promote(candidate)
    world.commit(rec("k", 10))  # Another transaction 4.
    with pytest.raises(NotReady, match="read other records for transactions 4"):
        world.promote(candidate)
    require_right(world, world.first)


# G18


def with_file(world: GenerationWorld, configuration: Configuration = TIMES_10) -> Pipeline:
    """The pipeline as a process that takes its file for the one in charge."""
    return world.made(world.warehouse, world.files, configuration, None)


def test_g18_a_file_that_was_not_promoted_binds_and_seals_nothing() -> None:
    world = three()
    world.feed(rec("n", 5))
    early = with_file(world)
    with pytest.raises(Superseded, match="generation 0 is in charge"):
        mint(early, world.attempt())
    reclock(world.opened(), world.attempt("gone"))
    with pytest.raises(Fenced, match="generation 0 is in charge"):
        finish(early, world.attempt(), Txn(4))
    world.run(pipeline=early)  # A command opens the pipeline again.
    require_right(world, world.first)
    assert (world.generation, world.candidate) == (0, None)


@pytest.mark.parametrize("call", ["bindings.commit", "seals.commit", "plane.write"])
def test_g18_the_first_seal_decides_with_which_generation_a_pipeline_begins(call: str) -> None:
    world = GenerationWorld()
    world.feed(rec("k", 1))
    script = Script().before(call, lambda: run(world.opened(), world.attempt("first")))
    world.run(pipeline=world.made(world.warehouse, world.files, TIMES_10, script))
    world.commit(rec("l", 2))
    require_right(world, world.first)
    assert world.generation == 0


@pytest.mark.parametrize("sealer", [TIMES_10, settings(0)], ids=["the new file", "the old file"])
@pytest.mark.parametrize("renames", [{}, {"shards": [{"name": "other"}]}], ids=["same", "other shards"])
def test_g18_what_two_files_have_bound_before_the_first_seal_is_read_by_the_one_that_seals(
    sealer: Configuration, renames: dict[str, object]
) -> None:
    world = GenerationWorld()
    newer = settings(1, times=10, **renames)
    for configuration in (world.first, newer):
        world.feed(rec(f"k{configuration.generation}", 1))
        reclock(with_file(world, configuration), world.attempt(f"gone {configuration.generation}"))
    first = newer if sealer.generation else world.first
    finish(with_file(world, first), world.attempt(), Txn(1))
    world.run()
    world.commit(rec("l", 2))
    require_right(world, first)
    assert world.opened().configuration == first


def test_g18_under_the_same_number_a_changed_file_holds_for_later_input() -> None:
    world = three()
    world.feed(rec("n", 5))
    world.run(pipeline=with_file(world, settings(0, times=10)))
    assert world.state() == {("k",): 2, ("m",): 4, ("n",): 50}
    findings = replay(world.opened(), world.attempt(), txn_from=Txn(1), txn_to=Txn(4))
    assert [one.verdict for one in findings] == [Verdict.IDENTICAL] * 4, "each by the settings of its seal"


# G20


LATE = {"lateness": 10}
FAR = 2**40


def sequenced(world: GenerationWorld, *numbers: int) -> None:
    for number in numbers:
        world.commit(rec(f"k{number}", 1, sequence=number))


def test_g20_the_difference_is_judged_by_the_watermark_that_the_promotion_seals() -> None:
    """The new rules refuse a far sequence, so their watermark is lower: records between both are not late."""
    world = GenerationWorld(**LATE)
    sequenced(world, 5, FAR, 7)
    candidate = world.start(settings(1, at_most=1_000, **LATE))
    pair, corrector = world.pair(candidate)
    promote(pair, world.attempt(), corrector, SHARDS)
    assert [one.watermark for one in world.seals] == [5, FAR, FAR, 7]
    assert corrector.watermarks == [7]


def test_g20_a_watermark_that_was_set_back_in_the_pipeline_is_set_back_in_the_candidate() -> None:
    world = GenerationWorld(**LATE)
    sequenced(world, 5, FAR)
    set_watermark_back(world.opened(), world.attempt(), 6, reason="a wrong sequence")
    sequenced(world, 8)
    candidate = world.start(settings(1, times=10, **LATE))
    world.follow(candidate)
    shadow = world.pair(candidate)[0].shadow.control.seals
    assert [(one.base, one.watermark) for one in shadow.read(1, shadow.head().upper)] == [
        (None, 5),
        (5, FAR),
        (6, 8),
    ]
    sequenced(world, FAR)
    set_watermark_back(world.opened(), world.attempt(), 9, reason="again, right before the promotion")
    world.promote(candidate)
    assert [one.watermark for one in world.seals] == [5, FAR, 8, FAR, 9]
    sequenced(world, 11)
    assert world.seals[-1].base == 9


# G21


def test_g21_a_publisher_of_an_older_generation_publishes_nothing_of_a_promotion() -> None:
    world = three()
    old, states = world.opened(), MemoryStates()
    plane = MemoryStatePlane(world.warehouse, world.files, states)

    def published(pipeline: Pipeline, generation: int) -> object:
        return publish(pipeline.control, plane, A, token=world.attempt().token, generation=generation)

    with pytest.raises(Superseded, match="generation 0 is in charge"):
        published(with_file(world), 1)
    published(old, 0)
    world.replaced(TIMES_10)
    with pytest.raises(Superseded, match="generation 1 is in charge"):
        published(old, 0)
    with pytest.raises(Superseded, match="generation 1 is in charge"):
        rebuild(old.control, plane, A, token=world.attempt().token, generation=0)
    done = published(world.opened(), 1)
    assert isinstance(done, Published)
    assert done.txn == 4


def test_g21_the_generation_is_asked_after_the_log_is_pinned() -> None:
    world = three()
    script = Script().before("log.head", lambda: world.replaced(TIMES_10))
    plane = MemoryStatePlane(world.warehouse, world.files, MemoryStates())
    with pytest.raises(Superseded):
        publish(world.opened(script).control, plane, A, token=world.attempt().token, generation=0)


# G22


def test_g22_open_errors_are_those_of_the_last_candidate_that_has_read_the_past_again() -> None:
    world = three()

    def found() -> int:
        return last_reread(MemoryControl(world.warehouse))

    assert found() == 1
    assert world.replaced(TIMES_10).txn == found() == 4
    world.commit(rec("n", 1))
    world.replaced(settings(2), from_now=True)
    world.abort(world.start(settings(3)))
    assert found() == 4
    world.commit(rec("o", 1))
    assert world.promote(world.rollback()).txn == found() == 8
