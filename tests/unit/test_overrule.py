"""What people decide about a transaction, and that their reasons are kept (scenario P12)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.attempts import ingest, validate
from tests.support.memory.ledger import Crash, Fault
from tests.support.memory.plane import MemoryPlane
from tests.support.memory.world import A, B, Script, World, rec
from tidemark.core.checksum import Digests
from tidemark.core.errors import Determinate, InvalidUsage
from tidemark.core.ids import Txn
from tidemark.core.ledger import Event
from tidemark.core.replay import DataDiffers
from tidemark.core.seal import Decision, Opinion, Staged
from tidemark.pipeline.context import Pipeline
from tidemark.pipeline.decide import accept, release, skip
from tidemark.pipeline.reclock import reclock
from tidemark.pipeline.run import run
from tidemark.pipeline.upsert import commit_staged
from tidemark.pipeline.validate import Gated

T1 = Txn(1)


def opened(transactions: int = 1) -> World:
    """Bound and open transactions on both shards, whose run is gone."""
    world = World(records_max=2)
    for value in range(transactions):
        world.feed(rec("k", value, ends=False), rec("k", value, table="b"))
    reclock(world.process(), world.attempt("gone"))
    assert len(world.bindings) == transactions
    return world


def held() -> World:
    """Transaction 1 is held for b, and 2 waits behind it."""
    world = opened(2)
    pipeline, attempt = world.process(), world.attempt()
    staged = ingest(pipeline, attempt, T1)
    assert isinstance(staged, Staged)
    commit_staged(
        pipeline,
        attempt,
        staged,
        Gated(validate(pipeline, staged).finding, Opinion(held={B: "too many NULLs"})),
    )
    world.run()
    assert (world.log_txns(A), world.log_txns(B), world.checkpoint) == ([1, 2], [], 2)
    return world


class Forgetful(MemoryPlane):
    """A plane whose parts read back empty: its gate is always red."""

    def read_back(self, staged: Staged, **_: object) -> Digests:
        return {}


def red(world: World) -> Pipeline:
    process = world.process()
    return Pipeline(
        process.control, process.source, Forgetful(world.source, world.files), process.configuration
    )


def test_p12_a_skipped_transaction_is_passed_over_and_the_journal_keeps_the_reason() -> None:
    world = opened(2)
    assert skip(world.process(), world.attempt("ops"), T1, reason=" poisoned ") == 1
    assert [(seal.decision, seal.reason) for seal in world.seals] == [(Decision.SKIPPED, "poisoned")]
    (entry,) = world.journal(Event.SKIPPED)
    assert (entry.txn, entry.detail) == (1, {"reason": "poisoned", "run": "ops"})
    world.run()
    assert (world.log_txns(A), world.checkpoint) == ([2], 2)
    assert world.acknowledged == world.bindings[1].upper


def test_regression_a_skip_hands_the_watermark_on() -> None:
    world = opened(2)
    pipeline, attempt = world.process(), world.attempt()
    staged = ingest(pipeline, attempt, T1)
    assert isinstance(staged, Staged)
    staged = replace(staged, watermark=7)
    commit_staged(pipeline, attempt, staged, validate(pipeline, staged))
    skip(world.process(), world.attempt(), Txn(2), reason="poisoned")
    assert [seal.watermark for seal in world.seals] == [7, 7]


def test_p12_an_accepted_transaction_is_sealed_although_its_gate_is_red() -> None:
    world = opened()
    with pytest.raises(DataDiffers):
        run(red(world), world.attempt())
    assert accept(red(world), world.attempt("ops"), T1, reason="the mean did change") == 1
    assert [(seal.decision, seal.reason) for seal in world.seals] == [
        (Decision.ACCEPTED, "the mean did change")
    ]
    assert world.log_txns(A) == world.log_txns(B) == [1]
    (entry,) = world.journal(Event.ACCEPTED)
    assert entry.detail["reason"] == "the mean did change"


def test_p12_a_released_shard_goes_on_and_the_journal_keeps_the_reason() -> None:
    world = held()
    report = release(world.process(), world.attempt("ops"), B, reason="NULLs are fine now")
    assert report.appended == (1, 2)
    assert world.state(B) == {("k",): 1}
    (entry,) = world.journal(Event.RELEASED)
    assert (entry.txn, entry.detail["shard"], entry.detail["reason"]) == (1, "b", "NULLs are fine now")


def test_p12_the_reason_of_a_release_is_on_record_before_its_effect() -> None:
    world = held()
    with pytest.raises(Crash):
        release(
            world.process(Script().fault("log.commit", Fault.CRASH_BEFORE)), world.attempt(), B, reason="fine"
        )
    assert world.log_txns(B) == []
    assert len(world.journal(Event.RELEASED)) == 1


@pytest.mark.parametrize("reason", ["", "  \n"])
def test_p12_nothing_is_overruled_without_a_reason(reason: str) -> None:
    world = opened()
    for overrule in (skip, accept):
        with pytest.raises(InvalidUsage, match="no reason was given"):
            overrule(world.process(), world.attempt(), T1, reason=reason)
    assert (world.seals, world.files) == ([], {})
    paused = held()
    with pytest.raises(InvalidUsage, match="no reason was given"):
        release(paused.process(), paused.attempt(), B, reason=reason)
    assert paused.log_txns(B) == []


def test_what_is_sealed_stays() -> None:
    world = opened()
    world.run()
    for overrule in (skip, accept):
        with pytest.raises(InvalidUsage, match="transaction 1 is already committed, by w2"):
            overrule(world.process(), world.attempt(), T1, reason="changed my mind")
    assert len(world.seals) == 1


def test_a_transaction_above_an_open_one_waits_for_it() -> None:
    world = opened(2)
    for overrule in (skip, accept):
        with pytest.raises(InvalidUsage, match="transaction 2 can't be decided before 1"):
            overrule(world.process(), world.attempt(), Txn(2), reason="poisoned")
    assert world.seals == []


def test_what_is_not_bound_can_not_be_skipped() -> None:
    with pytest.raises(Determinate, match="binding of transaction 1"):
        skip(World().process(), World().attempt(), T1, reason="poisoned")


def test_a_shard_that_is_not_paused_can_not_be_released() -> None:
    world = opened()
    world.run()
    with pytest.raises(InvalidUsage, match="shard 'b' is not paused"):
        release(world.process(), world.attempt(), B, reason="just in case")
