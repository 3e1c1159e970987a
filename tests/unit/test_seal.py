"""Seals: one per transaction, in order, fenced by generation. Checks Invariants 2, 4, 5 and 13."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tidemark.core.checksum import SOURCE, Digest
from tidemark.core.errors import InvalidUsage, InvariantViolation
from tidemark.core.ids import ShardId, Txn, WriterToken
from tidemark.core.ledger import GENERATION, UPPER, Head, Put
from tidemark.core.seal import (
    Decision,
    Fenced,
    Lost,
    Part,
    Past,
    Rebound,
    Seal,
    Sealed,
    ShardParts,
    Staged,
    TooEarly,
    decide_seal,
    seal_of,
    skip_of,
)

A, B = ShardId("a"), ShardId("b")


def parts(rows: int = 1, path: str = "x") -> ShardParts:
    return ShardParts((Part(path, rows, 10),), Digest.of(range(rows)))


def staged(txn: int = 1, token: str = "me", **shards: ShardParts) -> Staged:
    named = {ShardId(name): added for name, added in shards.items()}
    return Staged(Txn(txn), WriterToken(token), Digest.of([1, 2]), named, "engine 1", watermark=7)


def seal(txn: int = 1, token: str = "me", generation: int = 0) -> Seal:
    return seal_of(staged(txn, token, a=parts()), generation=generation, held={})


def head(upper: int, generation: int = 0) -> Head:
    return Head(upper, {UPPER: upper, GENERATION: generation})


def test_the_first_seal_at_the_upper_is_put() -> None:
    mine = seal(3, generation=2)
    put = decide_seal(head=head(3, 2), found=None, seal=mine, past=Past())
    linked = mine.linked(Past())
    assert put == Put({UPPER: 4, GENERATION: 2, "shard.a": 3}, (linked,), Sealed(linked))
    assert linked.link > 0


def test_a_link_says_which_decision_and_after_which() -> None:
    past = Past(link=5)
    links = {
        one.linked(past).link
        for one in (seal(3), seal(3, "other"), replace(seal(3), binding=9), replace(seal(3), txn=Txn(4)))
    }
    assert len(links | {seal(3).linked(Past(link=6)).link}) == 5
    assert seal(3).linked(past) == seal(3).linked(past)


def test_what_was_staged_for_another_binding_is_not_sealed() -> None:
    """A zombie that slept while the binding was lost and minted again has parts of other input."""
    mine = replace(seal(3), binding=7)
    with pytest.raises(Rebound, match="transaction 3 was staged for another binding"):
        decide_seal(head=head(3), found=None, seal=mine, past=Past(binding=8))
    assert isinstance(decide_seal(head=head(3), found=None, seal=mine, past=Past(binding=7)), Put)


def test_a_seal_names_the_transaction_that_touched_its_shard_before() -> None:
    past = Past(touched={ShardId("a"): Txn(1), ShardId("b"): Txn(2)})
    put = decide_seal(head=head(3), found=None, seal=seal(3), past=past)
    assert isinstance(put, Put)
    [linked] = put.records
    assert {shard: added.before for shard, added in linked.shards.items()} == {"a": 1}


def test_below_the_upper_another_seal_has_won() -> None:
    winner = seal(3, "other")
    assert decide_seal(head=head(9), found=winner, seal=seal(3), past=Past()) == Lost(winner)


def test_our_own_seal_found_below_the_upper_is_success() -> None:
    mine = seal(3)
    assert decide_seal(head=head(9), found=mine, seal=mine, past=Past()) == Sealed(mine, already=True)


def test_a_seal_that_is_not_where_the_upper_says_is_a_broken_promise() -> None:
    with pytest.raises(InvariantViolation, match="transaction 3 is below 9 and has no seal"):
        decide_seal(head=head(9), found=None, seal=seal(3), past=Past())


def test_m7_a_seal_above_the_upper_waits_for_the_lower_ones() -> None:
    assert decide_seal(head=head(3), found=None, seal=seal(5), past=Past()) == TooEarly(Txn(3))


def test_m7_an_older_generation_is_refused_at_and_above_the_upper() -> None:
    for txn in (3, 4):
        with pytest.raises(Fenced, match=r"generation 1 may not seal transaction \d: generation 2") as error:
            decide_seal(head=head(3, 2), found=None, seal=seal(txn, generation=1), past=Past())
        assert (error.value.generation, error.value.newest) == (1, 2)


def test_g18_a_newer_generation_is_refused_once_anything_is_sealed() -> None:
    newer = seal(3, generation=2)
    with pytest.raises(Fenced, match="generation 2 may not seal transaction 3: generation 1 is in charge"):
        decide_seal(head=head(3, 1), found=None, seal=newer, past=Past())
    assert isinstance(decide_seal(head=head(1), found=None, seal=seal(1, generation=2), past=Past()), Put)
    promotes = replace(newer, decision=Decision.CORRECTED, reason="promoted")
    assert isinstance(decide_seal(head=head(3, 1), found=None, seal=promotes, past=Past(promotes=2)), Put)


def test_an_older_generation_still_learns_who_won() -> None:
    winner = seal(3, "other", generation=2)
    late = seal(3, generation=1)
    assert decide_seal(head=head(4, 2), found=winner, seal=late, past=Past()) == Lost(winner)


def test_a_seal_lists_what_was_staged_and_leaves_empty_shards_out() -> None:
    work = staged(2, b=parts(2), a=parts(1), c=ShardParts((), Digest()))
    made = seal_of(work, generation=4, held={B: "rows are late"})
    assert list(made.shards) == [A, B]
    assert made.shards[B].held == "rows are late"
    assert made.shards[A].held == ""
    assert (made.txn, made.token, made.generation, made.engine) == (2, "me", 4, "engine 1")
    assert made.watermark == 7
    assert made.decision is Decision.COMMITTED
    assert made.digests == work.digests
    assert set(made.digests) == {SOURCE, "shard:a", "shard:b"}
    assert (made.number, made.key) == (2, "me")
    assert made.touches(A)
    assert not made.touches(ShardId("c"))


def test_p12_an_accepted_seal_keeps_its_reason() -> None:
    made = seal_of(staged(a=parts()), generation=0, held={}, reason="known bad hour")
    assert (made.decision, made.reason) == (Decision.ACCEPTED, "known bad hour")


def test_p12_a_skip_is_empty_has_a_reason_and_nothing_to_prove() -> None:
    made = skip_of(Txn(4), token=WriterToken("me"), generation=1, reason="source lost it", binding=0)
    assert (made.decision, made.reason, dict(made.shards), made.digests) == (
        Decision.SKIPPED, "source lost it", {}, {},
    )  # fmt: skip


@pytest.mark.parametrize("decision", [Decision.ACCEPTED, Decision.SKIPPED])
def test_p12_accept_and_skip_need_a_reason(decision: Decision) -> None:
    with pytest.raises(InvalidUsage, match=f"transaction 1 is {decision}: give a reason"):
        Seal(Txn(1), WriterToken("me"), 0, decision, Digest())


def test_a_seal_is_valid_from_birth() -> None:
    with pytest.raises(InvalidUsage, match="from 1 on"):
        replace(seal(), txn=Txn(0))
    with pytest.raises(InvalidUsage, match="can't have parts"):
        replace(seal(), decision=Decision.SKIPPED, reason="no")
    with pytest.raises(InvariantViolation, match="parts have 2 rows, but their digest counts 1"):
        ShardParts((Part("x", 1, 1), Part("y", 1, 1)), Digest.of([1]))
