"""Runs whose steps are tasks of their own: what each leaves, and what the next one makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.support.memory.ledger import Crash, Fault
from tests.support.memory.world import A, B, Script, World, newest, rec, simple
from tidemark.core.binding import Binding
from tidemark.core.errors import Determinate, InvalidUsage
from tidemark.core.ids import ShardId, Txn, WriterToken
from tidemark.core.ledger import Event
from tidemark.core.replay import ExpectationsFailed, InputGone, Verdict
from tidemark.core.seal import Decision, Lost, Opinion, Sealed, Staged
from tidemark.pipeline.checkpoint import checkpoint
from tidemark.pipeline.context import Attempt, Pipeline
from tidemark.pipeline.decide import accept, skip
from tidemark.pipeline.ingest import gather
from tidemark.pipeline.maintain import sweep
from tidemark.pipeline.reclock import reclock
from tidemark.pipeline.run import replay, run
from tidemark.pipeline.upsert import seal_judged
from tidemark.pipeline.validate import Judged, Pair, judge_gathered, judged_in, verdicts_of

T1 = Txn(1)


class Scripted:
    """A gate that says what it was told to say."""

    def __init__(self, **opinion: object) -> None:
        self.given = Opinion(**opinion)  # type: ignore[arg-type]

    def opinion(self, staged: Staged) -> Opinion:
        return self.given


class Run:
    """One run as Airflow has it: tasks with tries, rounds, and a token for each."""

    def __init__(self, world: World, run_id: str, *, begun: str = "") -> None:
        self.world, self.run_id, self.round, self.begun = world, run_id, 0, begun
        self.pipeline: Pipeline = world.process()

    @property
    def attempt(self) -> Attempt:
        made = self.world.attempt(self.run_id, cleared=self.round > 0)
        return replace(made, round=self.round, owner=replace(made.owner, begun=self.begun))

    def clear(self) -> Run:
        self.round += 1
        return self

    def upto_validate(self) -> tuple[Judged, ...]:
        reclock(self.pipeline, self.attempt)
        gather(self.pipeline, self.attempt)
        return judge_gathered(self.pipeline, self.attempt)

    def whole(self) -> tuple[Judged, ...]:
        judged = self.upto_validate()
        seal_judged(self.pipeline, self.attempt)
        checkpoint(self.pipeline)
        return judged


def verdicts(judged: tuple[Judged, ...]) -> list[tuple[int, str, bool]]:
    return [(one.txn, str(one.gated.finding.verdict), one.replayed) for one in judged]


def test_the_steps_by_themselves_end_where_a_whole_run_ends() -> None:
    world = World(records_max=2)
    world.feed(rec("k", 1), rec("l", 1), rec("k", 2), rec("m", 1, table="b"))
    assert verdicts(Run(world, "r").whole()) == [(1, "identical", False), (2, "identical", False)]
    assert (simple(world.state(A)), simple(world.state(B))) == ({"k": 2, "l": 1}, {"m": 1})
    assert (world.checkpoint, world.acknowledged) == (2, world.bindings[-1].upper)


@pytest.mark.parametrize("opinion", [{"warned": ("odd",)}, {"failed": ("wrong",)}, {"held": {A: "odd"}}])
def test_what_expectations_say_in_a_whole_run_is_in_the_journal_too(opinion: dict[str, object]) -> None:
    world = World()
    world.feed(rec("k", 1))
    pipeline = replace(world.process(), gate=Scripted(**opinion))
    try:
        run(pipeline, world.attempt("r"))
    except ExpectationsFailed:
        assert "failed" in opinion
    pipeline.control.journal.head()
    (entry,) = [entry for entry in pipeline.control.journal.find("1") if entry.event is Event.JUDGED]
    assert judged_in(entry).gated.opinion == Opinion(**opinion)  # type: ignore[arg-type]


def test_a_whole_run_leaves_the_evidence_and_the_verdict_that_its_steps_leave() -> None:
    """Whichever way in: the same records in the attempts and in the journal, but for who made them."""
    whole, steps = World(), World()
    for world in (whole, steps):
        world.feed(rec("k", 1))
    run(whole.process(), whole.attempt("r"))
    Run(steps, "r").whole()

    def left(world: World) -> list[object]:
        found = newest(world.warehouse.attempts)
        verdicts = [entry.detail["verdict"] for entry in world.journal(Event.JUDGED)]
        return [*((one.txn, one.round, one.found, one.opinion) for one in found), *verdicts]

    assert left(whole) == left(steps)
    assert len(left(whole)) == 2


def test_a_run_that_died_before_its_seal_goes_on_with_what_it_had_staged() -> None:
    world = World()
    world.feed(rec("k", 1))
    with pytest.raises(Crash):
        run(world.process(Script().fault("seals.commit", Fault.CRASH_BEFORE)), world.attempt("r"))
    again = Script()
    run(world.process(again), world.attempt("r"))
    assert "plane.write" not in again.calls
    assert (world.seals[0].token, world.log_txns()) == ("w1", [1])


def test_p4_a_run_that_is_to_prove_reads_again_each_time() -> None:
    """The evidence of an earlier proof says what was there then."""
    world = World()
    world.feed(rec("k", 1))
    run(world.process(), world.attempt("r"))
    proves = world.attempt("r", cleared=True)
    assert [one.verdict for one in run(world.process(), proves).findings] == [Verdict.IDENTICAL]
    (path,) = world.files
    world.files[path] = tuple(replace(row, value="tampered") for row in world.files[path])
    assert [one.verdict for one in run(world.process(), proves).findings] == [Verdict.DIFFERS]


def test_a_retry_uses_what_its_earlier_try_staged() -> None:
    world = World()
    world.feed(rec("k", 1))
    run = Run(world, "r")
    reclock(run.pipeline, run.attempt)
    (first,) = gather(run.pipeline, run.attempt)
    (again,) = gather(run.pipeline, run.attempt)
    assert again.token == first.token
    assert len(world.files) == 1


def test_a_retry_stages_anew_when_the_files_of_the_earlier_try_are_gone() -> None:
    world = World()
    world.feed(rec("k", 1))
    run = Run(world, "r")
    reclock(run.pipeline, run.attempt)
    (first,) = gather(run.pipeline, run.attempt)
    world.files.clear()
    (again,) = gather(run.pipeline, run.attempt)
    assert again.token != first.token
    assert verdicts(judge_gathered(run.pipeline, run.attempt)) == [(1, "identical", False)]


def test_a_cleared_ingest_of_an_open_transaction_stages_anew() -> None:
    world = World()
    world.feed(rec("k", 1))
    run = Run(world, "r")
    run.upto_validate()
    (again,) = gather(run.pipeline, run.clear().attempt)
    assert again.round == 1
    judge_gathered(run.pipeline, run.attempt)
    seal_judged(run.pipeline, run.attempt)
    assert world.seals[0].token == again.token
    assert {path.split("/")[2] for path in world.files} == {again.token}, "the earlier try's parts are gone"
    assert [entry.detail["winner"] for entry in world.journal(Event.LOST)] == [again.token]


def test_p8_a_cleared_run_is_proven_and_writes_nothing() -> None:
    world = World()
    world.feed(rec("k", 1))
    run = Run(world, "r")
    run.whole()
    files = dict(world.files)
    assert verdicts(run.clear().whole()) == [(1, "identical", True)]
    assert (world.files, len(world.seals), world.log_txns()) == (files, 1, [1])
    assert [entry.detail["verdict"] for entry in world.journal(Event.VERIFIED)] == ["identical"]


def test_p4_a_cleared_run_whose_sealed_part_was_changed_is_not_identical() -> None:
    world = World()
    world.feed(rec("k", 1))
    run = Run(world, "r")
    run.whole()
    (path,) = world.files
    world.files[path] = tuple(replace(row, value="tampered") for row in world.files[path])
    (judged,) = run.clear().whole()
    assert judged.gated.finding.verdict is Verdict.DIFFERS
    assert "parts differ from the seal" in str(judged.gated.finding)


def test_a_run_that_the_scheduler_has_forgotten_is_proven_again_by_every_try() -> None:
    """A wiped scheduler starts the same date's run as if it were new, under the same id and in round 0."""
    world = World()
    world.feed(rec("k", 1))
    first = Run(world, "r", begun="monday")
    first.whole()
    first.clear().whole()  # Whose evidence is of an older run, though of a higher round.
    files, reads = dict(world.files), Script()
    again = Run(world, "r", begun="friday")
    again.pipeline = world.process(reads)
    for _ in range(2):  # The retry of a reclock finds the same as its first try did.
        assert reclock(again.pipeline, again.attempt).prove == (T1,)
    assert verdicts(again.whole()) == [(1, "identical", True)]
    assert reads.calls.count("plane.replay") == 1, "the input was read again, not the evidence of before"
    assert (world.files, len(world.seals), world.log_txns()) == (files, 1, [1])


def test_the_tries_of_one_run_prove_nothing_before_a_clear() -> None:
    world = World()
    world.feed(rec("k", 1))
    run = Run(world, "r", begun="monday")
    run.whole()
    assert reclock(run.pipeline, run.attempt).prove == ()


@pytest.mark.parametrize("tampered", [False, True])
def test_p4_what_lies_on_disk_is_put_before_the_gates_library_too(tampered: bool) -> None:
    """Otherwise its pages stay green while the gate is red."""
    world = World()
    world.feed(rec("k", 1))
    run = Run(world, "r")
    run.whole()
    (path,) = world.files
    if tampered:
        world.files[path] = tuple(replace(row, value="tampered") for row in world.files[path])
    seen: dict[str, bool] = {}

    def confirm(pairs: Sequence[Pair]) -> None:
        for _, recorded, found in pairs:
            seen.update({endpoint: recorded[endpoint] == found[endpoint] for endpoint in recorded})

    run.clear()
    gather(run.pipeline, run.attempt)
    (judged,) = judge_gathered(run.pipeline, run.attempt, confirm=confirm)
    assert seen == {"source": True, "shard:a": True, "shard:a on disk": not tampered}
    assert judged.gated.passed is not tampered


@pytest.mark.parametrize("cleared", [False, True])
def test_s6_input_that_is_gone_is_told_by_the_gate(cleared: bool) -> None:
    world = World()
    world.feed(rec("k", 1))
    run = Run(world, "r")
    if cleared:
        run.whole()
        run.clear()
    else:
        reclock(run.pipeline, run.attempt)
    world.source.partitions["p0"].clear()
    judged = run.upto_validate()
    assert verdicts(judged) == [(1, "input gone", cleared)]
    assert not judged[0].gated.passed
    if not cleared:
        with pytest.raises(Determinate, match="transaction 1 is not staged"):
            seal_judged(run.pipeline, run.attempt)
        assert world.seals == []


def test_p12_expectations_that_fail_stop_the_transaction_before_its_seal() -> None:
    world = World()
    world.feed(rec("k", 1))
    run = Run(world, "r")
    run.pipeline = replace(run.pipeline, gate=Scripted(failed=("amount is negative",)))
    (judged,) = run.upto_validate()
    assert not judged.gated.passed
    with pytest.raises(ExpectationsFailed, match="amount is negative"):
        seal_judged(run.pipeline, run.attempt)
    assert (world.seals, world.log_txns()) == ([], [])


def test_p12_a_red_gate_is_overruled_by_accept_and_the_run_then_goes_on() -> None:
    world = World()
    world.feed(rec("k", 1))
    run = Run(world, "r")
    run.pipeline = replace(run.pipeline, gate=Scripted(failed=("amount is negative",)))
    run.upto_validate()
    accept(run.pipeline, world.attempt("person"), T1, reason="it was a refund")
    assert seal_judged(run.pipeline, run.attempt) == (), "its own parts were accepted, so nothing is dropped"
    assert [seal.decision for seal in world.seals] == [Decision.ACCEPTED]
    assert simple(world.state()) == {"k": 1}


def test_p12_a_skipped_transaction_lets_the_run_go_on_without_it() -> None:
    world = World()
    world.feed(rec("k", 1))
    run = Run(world, "r")
    run.upto_validate()
    skip(run.pipeline, world.attempt("person"), T1, reason="poisoned")
    seal_judged(run.pipeline, run.attempt)
    assert (simple(world.state()), world.files) == ({}, {})


def test_s4_a_skipped_transaction_is_proven_although_its_input_is_gone() -> None:
    """By its tasks and by the command: what was lost is why it was skipped."""
    world = World()
    world.feed(rec("k", 1))
    run = Run(world, "r")
    run.upto_validate()
    skip(run.pipeline, world.attempt("person"), T1, reason="expired")
    seal_judged(run.pipeline, run.attempt)
    world.source.partitions["p0"].clear()
    assert verdicts(run.clear().upto_validate()) == [(1, "identical", True)]
    (finding,) = replay(run.pipeline, world.attempt("person"), txn_from=T1, txn_to=T1)
    assert (finding.verdict, finding.why) == (Verdict.IDENTICAL, "skipped: expired")


def test_regression_a_skipped_transaction_is_proven_although_its_input_can_not_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What made people skip it would else fail every clear of its run, for good."""
    world = World()
    world.feed(rec("k", 1))
    run = Run(world, "r")
    reclock(run.pipeline, run.attempt)
    skip(run.pipeline, world.attempt("person"), T1, reason="poisoned")

    def refuse(binding: Binding) -> Staged:
        raise InvalidUsage("a record can't be decoded, and on_error is fail")

    monkeypatch.setattr(run.pipeline.plane, "replay", refuse)
    assert verdicts(run.clear().upto_validate()) == [(1, "identical", True)]


def test_p12_expectations_that_pause_hold_their_shard_only() -> None:
    world = World()
    world.feed(rec("k", 1), rec("k", 1, table="b"))
    run = Run(world, "r")
    run.pipeline = replace(run.pipeline, gate=Scripted(held={ShardId("b"): "too many NULLs"}))
    run.whole()
    assert (world.log_txns(A), world.log_txns(B), world.checkpoint) == ([1], [], 1)


def test_invariant_15_nothing_is_sealed_that_no_gate_has_seen() -> None:
    """Invariant 15."""
    world = World()
    world.feed(rec("k", 1))
    run = Run(world, "r")
    reclock(run.pipeline, run.attempt)
    gather(run.pipeline, run.attempt)
    with pytest.raises(Determinate, match="was not validated"):
        seal_judged(run.pipeline, run.attempt)
    assert world.seals == []


def test_m8_overlapping_runs_stage_the_same_transaction_and_one_of_them_decides() -> None:
    world = World()
    world.feed(rec("k", 1))
    one, two = Run(world, "one"), Run(world, "two")
    one.upto_validate()
    world.feed(rec("k", 2))
    assert verdicts(two.upto_validate()) == [(1, "identical", False), (2, "identical", False)]
    assert all(isinstance(outcome, Sealed) for outcome in seal_judged(two.pipeline, two.attempt))
    (outcome,) = seal_judged(one.pipeline, one.attempt)
    assert isinstance(outcome, Lost)
    assert simple(world.state()) == {"k": 2}
    assert sweep(world.process()) == (), "no parts are left behind"
    assert len(world.journal(Event.LOST)) == 1
    seal_judged(one.pipeline, one.attempt)
    assert len(world.journal(Event.LOST)) == 1, "and told once"


def test_m10_a_run_finishes_what_a_run_that_is_gone_for_good_began() -> None:
    world = World()
    world.feed(rec("k", 1))
    gone = Run(world, "gone")
    reclock(gone.pipeline, gone.attempt)
    world.feed(rec("l", 1))
    assert verdicts(Run(world, "next").whole()) == [(1, "identical", False), (2, "identical", False)]
    assert simple(world.state()) == {"k": 1, "l": 1}


def test_an_attempts_verdicts_are_found_by_its_token() -> None:
    world = World()
    world.feed(rec("k", 1))
    run = Run(world, "r")
    reclock(run.pipeline, run.attempt)
    gather(run.pipeline, run.attempt)
    attempt = run.attempt
    judge_gathered(run.pipeline, attempt)
    assert verdicts(verdicts_of(run.pipeline, attempt)) == [(1, "identical", False)]
    assert verdicts_of(run.pipeline, replace(attempt, token=WriterToken("other"))) == ()


def test_a_step_before_its_reclock_says_so() -> None:
    world = World()
    with pytest.raises(Determinate, match="run:r was not reclocked"):
        gather(world.process(), world.attempt("r"))
    assert gather_nothing(world) == ()


def gather_nothing(world: World) -> tuple[object, ...]:
    run = Run(world, "empty")
    reclock(run.pipeline, run.attempt)
    assert judge_gathered(run.pipeline, run.attempt) == ()
    assert seal_judged(run.pipeline, run.attempt) == ()
    return gather(run.pipeline, run.attempt)


def test_the_input_that_was_lost_between_validate_and_upsert_is_not_sealed() -> None:
    world = World()
    world.feed(rec("k", 1))
    run = Run(world, "r")
    run.upto_validate()
    world.source.partitions["p0"].clear()
    with pytest.raises(InputGone):
        seal_judged(run.pipeline, run.attempt)
    assert world.seals == []
