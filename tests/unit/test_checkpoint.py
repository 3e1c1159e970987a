"""Checkpoints: the complete prefix, by compare-and-max. Checks Invariant 9."""

from __future__ import annotations

from tests.unit.harness import Script, World, rec
from tidemark.core.checkpoint import Checkpoint, TableMark, complete_prefix, decide_checkpoint
from tidemark.core.checksum import Digest
from tidemark.core.ids import ShardId, Txn, WriterToken
from tidemark.core.ledger import UPPER, Head, Put
from tidemark.core.seal import Decision, Part, Seal, ShardParts, Staged
from tidemark.memory.chaos import Fault
from tidemark.pipeline.checkpoint import checkpoint
from tidemark.pipeline.ingest import ingest
from tidemark.pipeline.reclock import reclock
from tidemark.pipeline.upsert import commit_staged
from tidemark.pipeline.validate import validate

A, B = ShardId("a"), ShardId("b")


def seal(txn: int, *shards: ShardId) -> Seal:
    parts = {shard: ShardParts((Part("x", 1, 1),), Digest.of([1])) for shard in shards}
    return Seal(Txn(txn), WriterToken("w"), 0, Decision.COMMITTED, Digest(), parts)


def mark(upper: int, waits_at: int = 0) -> TableMark:
    return TableMark(Txn(upper), 1, Txn(waits_at))


def prefix(seals: list[Seal], sealed_upper: int, **tables: TableMark) -> int:
    marks = {ShardId(name): table for name, table in tables.items()}
    return complete_prefix(sealed_upper=Txn(sealed_upper), seals=seals, tables=marks)


def test_it_ends_below_the_first_transaction_that_a_touched_log_lacks() -> None:
    seals = [seal(4, A), seal(5, A, B), seal(6, A)]
    assert prefix(seals, 7, a=mark(7), b=mark(6)) == 6
    assert prefix(seals, 7, a=mark(7), b=mark(5)) == 4
    assert prefix(seals, 7, a=mark(4), b=mark(6)) == 3


def test_an_empty_or_skipped_transaction_is_complete_by_its_seal() -> None:
    assert prefix([seal(4), seal(5)], 6) == 5
    assert prefix([], 4) == 3


def test_p12_a_paused_log_does_not_hold_the_checkpoint_back() -> None:
    seals = [seal(4, A, B), seal(5, A, B)]
    assert prefix(seals, 6, a=mark(6), b=mark(4, waits_at=4)) == 5


def test_what_is_behind_for_another_reason_holds_it_although_a_later_one_is_paused() -> None:
    seals = [seal(4, A), seal(5, A)]
    assert prefix(seals, 6, a=mark(4, waits_at=5)) == 3


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
