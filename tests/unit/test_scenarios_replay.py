"""Scenarios P3 to P12: replay proves, writes nothing, and never guesses. Checks Invariants 6, 7, 8, 15."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.support.attempts import ingest, validate
from tests.support.memory import plane
from tests.support.memory.fold import Position
from tests.support.memory.ledger import Crash, Fault
from tests.support.memory.plane import MemoryPlane
from tests.support.memory.source import MemorySource, SourceRecord
from tests.support.memory.world import A, B, Script, World, newest, rec
from tidemark.core.binding import Binding, Configuration
from tidemark.core.checksum import SOURCE
from tidemark.core.errors import Determinate, InvalidUsage
from tidemark.core.ids import Frontier, Txn
from tidemark.core.ledger import Event
from tidemark.core.log import Paused
from tidemark.core.replay import DataDiffers, Finding, InputGone, Verdict
from tidemark.core.seal import Decision, Lost, Opinion, Past, Sealed, Staged, skip_of
from tidemark.pipeline.checkpoint import checkpoint, table_mark
from tidemark.pipeline.reclock import reclock
from tidemark.pipeline.run import replay, run
from tidemark.pipeline.upsert import bring_up_log, bring_up_logs, commit_staged, put_seal
from tidemark.pipeline.validate import Gated

T1 = Txn(1)


def proof(world: World, **process: object) -> Finding:
    """What a clear of the run that owns transaction 1 says of it."""
    report = run(world.process(**process), world.attempt("owner", cleared=True))  # type: ignore[arg-type]
    (finding,) = report.findings
    return finding


def finished(*records: SourceRecord) -> World:
    world = World()
    world.feed(*records)
    run(world.process(), world.attempt("owner"))
    return world


# P3, in memory: every port call of a run is a place to die.


def calls_of_a_run() -> list[str]:
    script = Script()
    busy_world(script)
    return script.calls


def busy_world(script: Script | None) -> World:
    world = World(records_max=2)
    world.feed(rec("k", 1), rec("l", 1, table="b"), rec("k", 2), rec("k", None))
    world.feed(rec("m", 3), partition="p1")
    run(world.process(script), world.attempt("owner"))
    return world


@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER])
def test_p3_killed_at_any_step_the_retry_ends_in_the_same_state(fault: Fault) -> None:
    calls = calls_of_a_run()
    wanted = busy_world(None)
    assert len(calls) > 30
    for index, call in enumerate(calls):
        world = World(records_max=2)
        script = Script().fault(call, fault, nth=calls[: index + 1].count(call))
        world.feed(rec("k", 1), rec("l", 1, table="b"), rec("k", 2), rec("k", None))
        world.feed(rec("m", 3), partition="p1")
        with pytest.raises(Crash):
            run(world.process(script), world.attempt("owner"))
        report = run(world.process(), world.attempt("owner"))
        assert report.checkpoint == wanted.checkpoint == 2, call
        assert (world.state(A), world.state(B)) == (wanted.state(A), wanted.state(B)), call
        assert (world.log_txns(A), world.log_txns(B)) == (wanted.log_txns(A), wanted.log_txns(B)), call
        cleared = run(world.process(), world.attempt("owner", cleared=True))
        assert [finding.verdict for finding in cleared.findings] == [Verdict.IDENTICAL] * 2, call
        assert world.acknowledged == wanted.acknowledged


# P4, P5


def test_p4_a_changed_row_differs_and_the_finding_names_where() -> None:
    world = finished(rec("k", 1), rec("l", 2))
    world.source.partitions["p0"][1] = rec("l", 3)
    finding = proof(world)
    assert finding.verdict is Verdict.DIFFERS
    assert [(m.txn, m.endpoint) for m in finding.mismatches] == [(1, "shard:a"), (1, SOURCE)]
    assert all(m.recorded and m.found and m.recorded.count == m.found.count == 2 for m in finding.mismatches)
    (entry,) = world.journal(Event.VERIFIED)
    assert entry.detail["verdict"] == "differs"
    assert str(finding.mismatches[0].found) in entry.detail["finding"]


def test_p4_a_swapped_duplicate_pair_differs() -> None:
    world = finished(rec("x", 1), rec("x", 1), rec("z", 1))
    world.source.partitions["p0"][:2] = [rec("y", 1), rec("y", 1)]
    assert proof(world).verdict is Verdict.DIFFERS


def test_p4_a_duplicated_record_differs_though_the_fold_hides_it() -> None:
    world = finished(rec("x", 1), rec("x", 2))
    world.source.partitions["p0"][0] = rec("x", 2)
    assert [m.endpoint for m in proof(world).mismatches] == [SOURCE]


def test_p4_a_null_is_not_an_empty_string() -> None:
    world = finished(rec(("x", None), 1))
    world.source.partitions["p0"][0] = rec(("x", ""), 1)
    assert proof(world).verdict is Verdict.DIFFERS


def test_p4_reordered_rows_and_other_parallelism_are_identical() -> None:
    world = finished(*(rec(key, 1) for key in range(9)))
    world.source.partitions["p0"].reverse()
    assert proof(world, parts_max=7).verdict is Verdict.IDENTICAL
    # Staging with another parallelism is the same data too: the loser is told so.
    other = World()
    other.feed(*(rec(key, 1) for key in range(9)))
    slow, attempt = other.process(parts_max=5), other.attempt("slow")
    reclock(slow, attempt)
    staged = ingest(slow, attempt, T1)
    run(other.process(parts_max=1), other.attempt("fast"))
    assert isinstance(commit_staged(slow, attempt, staged, validate(slow, staged)), Lost)  # type: ignore[arg-type]


def test_p5_an_endpoint_on_one_side_only_gets_its_own_message() -> None:
    world = finished(rec("k", 1))
    world.source.partitions["p0"][0] = rec("k", 1, table="b")
    texts = [str(mismatch) for mismatch in proof(world).mismatches]
    assert "endpoint shard:a: 1 rows are recorded, but nothing was found" in texts[0]
    assert "endpoint shard:b: found 1 rows, but nothing is recorded for this endpoint" in texts[1]


# P7, P8, P9


def test_p7_a_loser_with_other_data_raises_and_the_winner_stands() -> None:
    world = World()
    world.feed(rec("k", 1))
    slow, attempt = world.process(), world.attempt("slow")
    reclock(slow, attempt)
    staged = ingest(slow, attempt, T1)
    assert isinstance(staged, Staged)
    finding = validate(slow, staged)
    world.source.partitions["p0"][0] = rec("k", 2)
    world.run()
    with pytest.raises(DataDiffers, match="transaction 1, endpoint shard:a"):
        commit_staged(slow, attempt, staged, finding)
    (lost,) = world.journal(Event.LOST)
    assert lost.detail["verdict"] == Verdict.DIFFERS
    assert world.state() == {("k",): 2}
    assert {path.split("/")[2] for path in world.files} == {world.seals[0].token}


def test_p8_a_replay_writes_nothing_to_any_shard() -> None:
    world = finished(rec("k", 1), rec("l", 1, table="b"))
    files = dict(world.files)
    versions = {name: log.version for name, log in world.warehouse.logs.items()}
    seals, bindings = newest(world.warehouse.seals), newest(world.warehouse.bindings)
    script = Script()
    assert proof(world, chaos=script).verdict is Verdict.IDENTICAL
    assert world.files == files
    assert {name: log.version for name, log in world.warehouse.logs.items()} == versions
    assert newest(world.warehouse.seals) == seals
    assert newest(world.warehouse.bindings) == bindings
    committed = {call for call in script.calls if call.endswith((".commit", ".write"))}
    assert committed == {"attempts.commit", "journal.commit"}


class Compacted(MemorySource):
    """A source where everything below an offset was compacted away: offsets without records."""

    def __init__(self, *, compacted_below: int) -> None:
        super().__init__()
        self.compacted_below = compacted_below

    def records(self, binding: Binding) -> Iterator[tuple[Position, SourceRecord]]:
        return (pair for pair in super().records(binding) if pair[0].offset >= self.compacted_below)


def test_p9_an_empty_transaction_seals_counts_zero_and_keeps_the_numbers_dense() -> None:
    world = World()
    world.source = Compacted(compacted_below=1)
    world.feed(rec("gone", 1))
    run(world.process(), world.attempt("owner"))
    world.commit(rec("k", 1))
    assert [(seal.txn, seal.source.count, list(seal.shards)) for seal in world.seals] == [
        (1, 0, []),
        (2, 1, [A]),
    ]
    assert world.checkpoint == 2
    assert proof(world).verdict is Verdict.IDENTICAL


def test_p9_a_run_that_consumed_nothing_moves_nothing() -> None:
    world = finished(rec("k", 1))
    before = world.bindings, world.seals, world.checkpoint
    report = world.run()
    assert (report.decided, report.checkpoint) == ((), 1)
    assert (world.bindings, world.seals, world.checkpoint) == before
    world.commit(rec("k", 2))
    assert [b.txn for b in world.bindings] == [1, 2]
    assert [f.txn for f in replay(world.process(), world.attempt(), txn_from=T1, txn_to=Txn(2))] == [1, 2]


# P10


class ConfiguredPlane(MemoryPlane):
    """Notes which configuration each reading of the input was asked to use."""

    seen: list[str]

    def replay(self, binding: Binding) -> Staged:
        self.seen.append(binding.configuration.text)
        return super().replay(binding)


def test_p10_a_replay_uses_the_recorded_configuration() -> None:
    world = World()
    world.feed(rec("k", 1))
    run(world.process(configuration=Configuration.of('{"old": 1}')), world.attempt("owner"))
    reader = ConfiguredPlane(world.source, world.files)
    reader.seen = []
    now = replace(world.process(configuration=Configuration.of('{"new": 1}')), plane=reader)
    run(now, world.attempt("owner", cleared=True))
    assert reader.seen == ['{"old": 1}']


def test_p10_another_engine_is_not_comparable(monkeypatch: pytest.MonkeyPatch) -> None:
    world = finished(rec("k", 1))
    monkeypatch.setattr(plane, "ENGINE", "memory 2")
    finding = proof(world)
    assert (finding.verdict, finding.why) == (
        Verdict.NOT_COMPARABLE, "sealed by 'memory', replayed by 'memory 2'",
    )  # fmt: skip


# P12


def staged_for(world: World, run_id: str = "owner"):  # type: ignore[no-untyped-def]
    pipeline, attempt = world.process(), world.attempt(run_id)
    (txn, *_) = reclock(pipeline, attempt).finish
    staged = ingest(pipeline, attempt, txn)
    assert isinstance(staged, Staged)
    return pipeline, attempt, staged


def test_p12_a_gate_that_fails_stops_the_transaction_before_its_seal() -> None:
    world = World()
    world.feed(rec("k", 1))
    pipeline, attempt, staged = staged_for(world)
    world.files[staged.shards[A].parts[0].path] = ()
    with pytest.raises(DataDiffers, match=r"recorded 1 rows .* found 0 rows"):
        commit_staged(pipeline, attempt, staged, validate(pipeline, staged))
    assert (world.seals, world.log(), world.checkpoint) == ([], [], 0)
    assert world.acknowledged == Frontier()
    run(world.process(), world.attempt("owner"))  # Fixed by clear and retry.
    assert world.state() == {("k",): 1}


def test_p12_what_someone_accepts_is_sealed_with_the_reason() -> None:
    world = World()
    world.feed(rec("k", 1), rec("l", 2))
    pipeline, attempt, staged = staged_for(world)
    finding = Gated(Finding(T1, Verdict.DIFFERS, why="expect_column_mean"))
    outcome = commit_staged(pipeline, attempt, staged, finding, reason="the mean did change")
    assert isinstance(outcome, Sealed)
    assert (outcome.seal.decision, outcome.seal.reason) == (Decision.ACCEPTED, "the mean did change")


def test_p12_a_skip_is_an_empty_seal_with_its_reason_and_the_rest_goes_on() -> None:
    world = World()
    world.feed(rec("bad", 1))
    _, attempt, _ = staged_for(world)
    pipeline = world.process()
    skip = skip_of(T1, token=attempt.token, generation=0, reason="poisoned", binding=world.bindings[0].link)
    assert put_seal(pipeline, skip) == Sealed(skip.linked(Past(binding=skip.binding)))
    world.commit(rec("k", 2))
    assert world.state() == {("k",): 2}
    assert world.checkpoint == 2
    assert [f.why for f in replay(pipeline, world.attempt(), txn_from=T1, txn_to=T1)] == ["skipped: poisoned"]
    with pytest.raises(InvalidUsage, match="give a reason"):
        skip_of(T1, token=attempt.token, generation=0, reason="", binding=0)


def paused_world() -> World:
    """Transaction 1 is held for b; 2 touches both, and 3 only a."""
    world = World()
    world.feed(rec("k", 1), rec("k", 1, table="b"))
    pipeline, attempt, staged = staged_for(world)
    commit_staged(
        pipeline,
        attempt,
        staged,
        Gated(validate(pipeline, staged).finding, Opinion(held={B: "too many NULLs"})),
    )
    bring_up_logs(pipeline)
    world.commit(rec("k", 2), rec("k", 2, table="b"))
    world.commit(rec("k", 3))
    return world


def test_p12_a_held_shard_pauses_and_the_others_and_the_source_go_on() -> None:
    world = paused_world()
    assert world.log_txns(A) == [1, 2, 3]
    assert world.log_txns(B) == []
    assert bring_up_log(world.process(), B).end == Paused(T1, "too many NULLs")
    assert world.checkpoint == 3
    assert world.acknowledged == Frontier.of({"p0": 5})
    assert table_mark(world.process(), B, T1)[0].waits_at == 1
    assert all(part.path in world.files for part in world.seals[0].shards[B].parts), "sealed and durable"


def test_p12_a_released_shard_takes_everything_that_waited_in_order() -> None:
    world = paused_world()
    report = bring_up_log(world.process(), B, release=T1)
    assert report.appended == (1, 2)
    assert world.log_txns(B) == [1, 2]
    assert world.state(B) == {("k",): 2}
    assert checkpoint(world.process()) == 3


def release_and_die(world: World) -> None:
    """Someone lets b's transaction 1 through, and dies before 2 follows it."""
    with pytest.raises(Crash):
        bring_up_log(world.process(Script().fault("log.commit", Fault.CRASH_AFTER)), B, release=T1)
    assert world.log_txns(B) == [1]


def test_p12_a_release_that_died_halfway_is_finished_by_the_next_run() -> None:
    world = paused_world()
    release_and_die(world)
    world.run()
    assert world.log_txns(B) == [1, 2]


def test_regression_a_checkpoint_in_the_middle_of_a_release_does_not_forget_the_log() -> None:
    """The checkpoint finds b neither paused nor brought up; b's transactions are all below it."""
    world = paused_world()
    world.feed(rec("k", 4))
    script = Script().before("checkpoints.head", lambda: release_and_die(world), nth=2)
    run(world.process(script), world.attempt())
    assert world.checkpoint == 4
    world.run()
    assert world.log_txns(B) == [1, 2]
    for value in (5, 6):
        world.commit(rec("k", value))
    assert B not in newest(world.warehouse.checkpoints)[-1].tables, "once it is brought up, it costs nothing"


# What a run refuses, and what a replay finishes.


def test_input_that_changed_while_it_was_read_is_not_sealed() -> None:
    world = World()
    world.feed(rec("k", 1), rec("k", 2))
    pipeline, attempt, staged = staged_for(world)
    finding = validate(pipeline, staged)
    world.source.partitions["p0"].pop()
    with pytest.raises(InputGone, match=r"partition 'p0' ends at 1, and \[1, 2\) is missing"):
        commit_staged(pipeline, attempt, staged, finding)
    assert world.seals == []


def test_a_last_transaction_without_a_seal_is_finished_and_verified_too() -> None:
    world = finished(rec("k", 1))
    world.feed(rec("k", 2))
    reclock(world.process(), world.attempt("crashed"))
    findings = replay(world.process(), world.attempt(), txn_from=T1, txn_to=Txn(2))
    assert [(f.txn, f.verdict, f.why) for f in findings] == [
        (1, Verdict.IDENTICAL, ""),
        (2, Verdict.IDENTICAL, "finished now"),
    ]
    assert [entry.txn for entry in world.journal(Event.VERIFIED)] == [1, 2]
    assert world.state() == {("k",): 2}


def test_regression_an_old_snapshot_of_the_seals_is_never_a_proof() -> None:
    """The replay takes the transaction for open, finds it sealed, and has to compare all the same."""
    world = finished(rec("k", 1))
    world.source.partitions["p0"][0] = rec("k", 2)
    pipeline = world.process(Script().fault("seals.head", Fault.STALE))
    (finding,) = replay(pipeline, world.attempt(), txn_from=T1, txn_to=T1)
    assert finding.verdict is Verdict.DIFFERS


def test_regression_a_replay_that_a_rival_overtook_proves_the_rivals_seal() -> None:
    world = World()
    world.feed(rec("k", 1))
    reclock(world.process(), world.attempt("crashed"))
    token, bound = world.attempt().token, world.bindings[0].link
    skip = skip_of(T1, token=token, generation=0, reason="poisoned", binding=bound)
    script = Script().before("plane.write", lambda: put_seal(world.process(), skip))
    (finding,) = replay(world.process(script), world.attempt(), txn_from=T1, txn_to=T1)
    assert finding.why == "skipped: poisoned"


def test_a_replay_above_an_open_transaction_waits_for_the_lower_one() -> None:
    world = World(records_max=1)
    world.feed(rec("k", 1), rec("k", 2))
    reclock(world.process(), world.attempt("crashed"))
    with pytest.raises(Determinate, match="transaction 2 can't be decided before 1"):
        replay(world.process(), world.attempt(), txn_from=Txn(2), txn_to=Txn(2))
    assert world.files == {}
