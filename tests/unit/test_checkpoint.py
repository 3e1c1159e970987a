"""Checkpoints: the complete prefix, by compare-and-max. Checks Invariant 9."""

from __future__ import annotations

from tests.support.attempts import ingest, validate
from tests.support.memory.ledger import Fault
from tests.support.memory.world import Script, World, rec
from tidemark.core.checkpoint import Checkpoint, TableMark, decide_checkpoint, flush_tracker
from tidemark.core.checksum import Digest
from tidemark.core.ids import ShardId, Txn, WriterToken
from tidemark.core.ledger import UPPER, Head, Put
from tidemark.core.seal import Decision, Part, Seal, ShardParts, Staged
from tidemark.pipeline.checkpoint import checkpoint
from tidemark.pipeline.reclock import reclock
from tidemark.pipeline.upsert import commit_staged

A, B = ShardId("a"), ShardId("b")


def seal(txn: int, *shards: ShardId) -> Seal:
    parts = {shard: ShardParts((Part("x", 1, 1),), Digest.of([1])) for shard in shards}
    return Seal(Txn(txn), WriterToken("w"), 0, Decision.COMMITTED, Digest(), parts)


def mark(upper: int, waits_at: int = 0) -> TableMark:
    return TableMark(Txn(upper), Txn(waits_at))


def prefix(seals: list[Seal], done: int, **tables: TableMark) -> int:
    marks = {ShardId(name): table for name, table in tables.items()}
    return flush_tracker(done=Txn(done), seals=seals, tables=marks).acknowledged.txn


def test_it_ends_below_the_first_transaction_that_a_touched_log_lacks() -> None:
    seals = [seal(4, A), seal(5, A, B), seal(6, A)]
    assert prefix(seals, 3, a=mark(7), b=mark(6)) == 6
    assert prefix(seals, 3, a=mark(7), b=mark(5)) == 4
    assert prefix(seals, 3, a=mark(4), b=mark(6)) == 3


def test_an_empty_or_skipped_transaction_is_complete_by_its_seal() -> None:
    assert prefix([seal(4), seal(5)], 3) == 5
    assert prefix([], 3) == 3


def test_p12_a_paused_log_does_not_hold_the_checkpoint_back() -> None:
    seals = [seal(4, A, B), seal(5, A, B)]
    assert prefix(seals, 3, a=mark(6), b=mark(4, waits_at=4)) == 5


def test_what_is_behind_for_another_reason_holds_it_although_a_later_one_is_paused() -> None:
    seals = [seal(4, A), seal(5, A)]
    assert prefix(seals, 3, a=mark(4, waits_at=5)) == 3


def test_f12_a_shard_stalls_by_recorded_times_and_new_seals_do_not_hide_it() -> None:
    def stalled(upper: int, *, now_seconds: float, flushed_at: float = 50.0) -> list[str]:
        tracker = flush_tracker(
            done=Txn(3),
            seals=[seal(4, A), seal(5, A), seal(6, A)],
            tables={A: mark(upper)},
            sealed_seconds={Txn(4): 100.0, Txn(5): 150.0, Txn(6): 199.0},
            flushed_seconds={A: flushed_at},
        )
        return [lag.shard for lag in tracker.stalled(now_seconds=now_seconds, grace_seconds=100)]

    assert (stalled(4, now_seconds=200), stalled(4, now_seconds=201)) == ([], [A])
    # A log that took one of them has moved, even long after the next was sealed.
    assert (stalled(5, flushed_at=300, now_seconds=400), stalled(5, flushed_at=300, now_seconds=401)) == (
        [], [A],
    )  # fmt: skip
    assert stalled(7, now_seconds=1_000) == []


def test_it_is_written_by_compare_and_max() -> None:
    higher = Checkpoint(Txn(5), {A: mark(6)})
    head = Head(3, {UPPER: 4})
    assert decide_checkpoint(head=head, checkpoint=higher) == Put({UPPER: 6}, (higher,), Txn(5))
    assert decide_checkpoint(head=head, checkpoint=Checkpoint(Txn(3))) == 3
    assert decide_checkpoint(head=head, checkpoint=Checkpoint(Txn(1))) == 3


def test_p6_an_older_checkpoint_without_a_number_starts_at_zero() -> None:
    assert Checkpoint().txn == 0
    assert decide_checkpoint(head=Head(0), checkpoint=Checkpoint()) == 0


def test_a_checkpoint_is_numbered_by_its_transaction() -> None:
    assert (Checkpoint(Txn(5)).number, Checkpoint(Txn(5)).key) == (5, "")


def test_regression_an_old_snapshot_of_a_log_never_lets_the_checkpoint_pass_what_the_log_lacks() -> None:
    world = World()
    world.commit(rec("k", 1))
    world.feed(rec("k", 2))
    pipeline, attempt = world.process(), world.attempt()
    reclock(pipeline, attempt)
    staged = ingest(pipeline, attempt, Txn(2))
    assert isinstance(staged, Staged)
    commit_staged(pipeline, attempt, staged, validate(pipeline, staged))
    assert world.log_txns() == [1], "sealed, and not in the log yet"
    assert checkpoint(world.process(Script().fault("log.head", Fault.STALE))) == 1
    assert checkpoint(world.process()) == 1
