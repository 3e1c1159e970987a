"""Laws of uppers and checkpoints, over random seals and logs. Checks Invariants 2, 3 and 9."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidemark.core.checkpoint import Checkpoint, TableMark, decide_checkpoint, flush_tracker
from tidemark.core.checksum import Digest
from tidemark.core.ids import ShardId, Txn, WriterToken
from tidemark.core.ledger import Head, Put
from tidemark.core.log import Appended, CaughtUp, LogEntry, decide_append, next_append
from tidemark.core.seal import Decision, Part, Seal, ShardParts

SHARDS = (ShardId("a"), ShardId("b"), ShardId("c"))


def seal(txn: int, shards: set[ShardId]) -> Seal:
    parts = {shard: ShardParts((Part(f"{shard}/{txn}", 1, 1),), Digest.of([txn])) for shard in sorted(shards)}
    return Seal(Txn(txn), WriterToken("w"), 0, Decision.COMMITTED, Digest(), parts)


touches = st.lists(st.sets(st.sampled_from(SHARDS)), max_size=8)


@given(touches, st.lists(st.integers(0, 2), max_size=30))
def test_logs_that_are_brought_up_in_any_order_take_each_sealed_transaction_exactly_once(
    content: list[set[ShardId]], moves: list[int]
) -> None:
    """Between any two appends the checkpoint is the complete prefix, and never goes back."""
    seals = [seal(txn, shards) for txn, shards in enumerate(content, start=1)]
    sealed_upper = Txn(len(seals) + 1)
    heads = {shard: Head(0) for shard in SHARDS}
    logs: dict[ShardId, list[int]] = {shard: [] for shard in SHARDS}
    checkpoints = Head(0)
    for move in [*moves, *(index for index in range(3) for _ in seals)]:
        shard = SHARDS[move]
        upper = heads[shard].upper
        entry = next_append(shard, upper=upper, seals=seals[upper - 1 :])
        if isinstance(entry, LogEntry):
            put = decide_append(head=heads[shard], expected=upper, found=None, entry=entry)
            assert isinstance(put, Put)
            assert put.result == Appended(entry.txn)
            heads[shard] = Head(heads[shard].version + 1, heads[shard].moved(put.marks))
            logs[shard].append(entry.txn)
        else:
            assert entry == CaughtUp(max(sealed_upper, upper))
        marks = {name: TableMark(head.upper) for name, head in heads.items()}
        done = checkpoints.upper
        tracker = flush_tracker(done=Txn(done - 1), seals=seals[done - 1 :], tables=marks)
        reached = Txn(tracker.acknowledged.txn)
        complete = [
            txn for txn, shards in enumerate(content, start=1) if all(txn in logs[name] for name in shards)
        ]
        assert reached == next((n - 1 for n in range(1, sealed_upper) if n not in complete), sealed_upper - 1)
        decision = decide_checkpoint(head=checkpoints, checkpoint=Checkpoint(reached, marks))
        if isinstance(decision, Put):
            checkpoints = Head(checkpoints.version + 1, checkpoints.moved(decision.marks))
        assert checkpoints.upper == max(done, reached + 1)
    assert checkpoints.upper == sealed_upper
    for shard in SHARDS:
        assert logs[shard] == [txn for txn, shards in enumerate(content, start=1) if shard in shards]


places = st.tuples(st.integers(1, 9), st.integers(0, 9))


@given(touches, st.tuples(places, places, places), st.integers(0, 9))
def test_the_tracker_acknowledges_the_complete_prefix_of_any_seals_logs_and_pauses(
    content: list[set[ShardId]], found: tuple[tuple[int, int], ...], start: int
) -> None:
    """Invariant 10. A shard lags exactly where its log lacks a sealed transaction and it doesn't wait."""
    seals = [seal(txn, shards) for txn, shards in enumerate(content, start=1)]
    marks = {
        shard: TableMark(Txn(upper), Txn(waits_at))
        for shard, (upper, waits_at) in zip(SHARDS, found, strict=True)
    }

    def is_lacking(shard: ShardId, txn: int) -> bool:
        upper, waits_at = marks[shard].upper, marks[shard].waits_at
        return upper <= txn and not 0 < waits_at <= txn

    done = min(start, len(seals))
    above = seals[done:]
    lacking = [one.txn for one in above if any(is_lacking(shard, one.txn) for shard in one.shards)]
    tracker = flush_tracker(done=Txn(done), seals=above, tables=marks)
    assert tracker.acknowledged.txn == min(lacking, default=len(seals) + 1) - 1
    assert {lag.shard for lag in tracker.lagging()} == {
        shard for one in above for shard in one.shards if is_lacking(shard, one.txn)
    }


@given(touches, st.sampled_from(SHARDS), st.integers(1, 9), st.integers(1, 9))
def test_an_append_decision_never_moves_an_upper_back_or_past_what_it_was_not_chosen_for(
    content: list[set[ShardId]], shard: ShardId, expected: int, current: int
) -> None:
    """However stale the choice is, a put happens only at the very upper that it was made for."""
    seals = [seal(txn, shards) for txn, shards in enumerate(content, start=1)]
    entry = next_append(shard, upper=Txn(expected), seals=seals[expected - 1 :])
    if not isinstance(entry, LogEntry):
        return
    head = Head(1, {"upper": current})
    decision = decide_append(head=head, expected=Txn(expected), found=None, entry=entry)
    assert isinstance(decision, Put) == (current == expected)
    if isinstance(decision, Put):
        assert head.moved(decision.marks)["upper"] == entry.txn + 1 > current
