"""Which files make up a batch: by seals and log together, with conditions and limits. Invariant 11."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Any

import pytest

from tidemark.core.checksum import Digest
from tidemark.core.errors import InvalidUsage
from tidemark.core.ids import ShardId, Txn, WriterToken
from tidemark.core.log import Condition, Limits, ListedTxn, LogFile, cut_batch, list_txns
from tidemark.core.seal import Decision, Part, Seal, ShardParts

A, B = ShardId("a"), ShardId("b")


def part(name: str, rows: int = 1) -> Part:
    return Part(name, rows, 10 * rows)


def file(name: str, first: int, last: int | None = None, **bounds: tuple[Any, Any]) -> LogFile:
    low, high = ({key: pair[end] for key, pair in bounds.items()} for end in (0, 1))
    return LogFile(part(name), Txn(first), Txn(first if last is None else last), low, high)


def seal(txn: int, *names: str, shard: ShardId = A) -> Seal:
    parts = tuple(map(part, names))
    shards = {shard: ShardParts(parts, Digest(count=len(parts)))} if names else {}
    return Seal(Txn(txn), WriterToken("w"), 0, Decision.COMMITTED, Digest(), shards)


def listed(seals: Sequence[Seal], files: Sequence[LogFile], lower: int = 1, **more: Any) -> list[Any]:
    found = list_txns(A, seals=seals, files=files, lower=Txn(lower), **more)
    return [(one.txn, [part.path for part in one.parts], one.last, bool(one.lost)) for one in found]


def test_each_touched_txn_has_its_own_files_and_untouched_ones_are_not_listed() -> None:
    seals = [seal(1, "x"), seal(2), seal(3, "b", shard=B), seal(4, "y", "z")]
    files = [file("z", 4), file("x", 1), file("y", 4)]
    assert listed(seals, files) == [(1, ["x"], 1, False), (4, ["z", "y"], 4, False)]
    assert listed(seals[1:], files, lower=2) == [(4, ["z", "y"], 4, False)]


def test_r1_a_txn_that_the_log_shows_no_file_of_is_lost_with_the_parts_it_was_sealed_with() -> None:
    seals = [seal(1, "x"), seal(2, "y", "z"), seal(3, "u")]
    assert listed(seals, [file("x", 1), file("u", 3)]) == [
        (1, ["x"], 1, False),
        (2, ["y", "z"], 2, True),
        (3, ["u"], 3, False),
    ]
    # One of two is as bad as both.
    assert listed(seals, [file("x", 1), file("z", 2), file("u", 3)])[1] == (2, ["y", "z"], 2, True)


def test_a_file_of_several_txns_is_listed_once_at_the_first_that_is_asked_for() -> None:
    seals = [seal(txn, f"p{txn}") for txn in range(1, 6)]
    files = [file("compacted", 2, 4), file("p1", 1), file("p5", 5)]
    assert listed(seals, files) == [
        (1, ["p1"], 1, False),
        (2, ["compacted"], 4, False),
        (3, [], 3, False),
        (4, [], 4, False),
        (5, ["p5"], 5, False),
    ]
    assert listed(seals[2:], files, lower=3)[0] == (3, ["compacted"], 4, False)


def test_several_parts_of_one_txn_may_have_become_one() -> None:
    assert listed([seal(1, "x", "y")], [file("compacted", 1)]) == [(1, ["compacted"], 1, False)]


@pytest.mark.parametrize(
    ("comparison", "value", "kept"),
    [
        ("=", 4, False), ("=", 5, True), ("=", 9, True), ("=", 10, False),
        ("<", 5, False), ("<", 6, True), ("<=", 5, True), ("<=", 4, False),
        (">", 9, False), (">", 8, True), (">=", 9, True), (">=", 10, False),
    ],
)  # fmt: skip
def test_a_file_is_left_out_only_when_its_bounds_rule_a_row_out(
    comparison: str, value: int, kept: bool
) -> None:
    upserts = file("x", 1, n=(5, 9), _op=("U", "U"))
    assert Condition("n", comparison, value).may_hold(upserts, keys=()) is kept


@pytest.mark.parametrize(
    ("bounds", "why"),
    [
        ({"_op": ("U", "U")}, "no bounds"),
        ({"n": (None, None), "_op": ("U", "U")}, "bounds of no value"),
        ({"n": ("5", "9"), "_op": ("U", "U")}, "bounds of another type"),
        ({"n": (5, 9)}, "maybe a delete, whose n is not known"),
        ({"n": (5, 9), "_op": ("D", "U")}, "a delete, whose n is not known"),
        ({"n": (5, 9), "_op": (None, None)}, "nothing known of its deletes"),
    ],
)
def test_what_the_statistics_do_not_say_keeps_the_file(bounds: dict[str, Any], why: str) -> None:
    assert Condition("n", ">", 100).may_hold(file("x", 1, **bounds), keys=()), why


def test_a_condition_on_a_key_holds_for_deletes_too() -> None:
    some = file("x", 1, k=("b", "d"), _op=("D", "U"))
    assert not Condition("k", ">", "x").may_hold(some, keys=("k",))
    assert Condition("k", ">", "c").may_hold(some, keys=("k",))
    day = file("x", 1, k=(date(2026, 1, 1), date(2026, 1, 9)))
    assert not Condition("k", "<", date(2026, 1, 1)).may_hold(day, keys=("k",))


@pytest.mark.parametrize(("comparison", "value"), [("!=", 1), ("=", True), ("=", 1.5), ("=", None)])
def test_a_condition_that_statistics_cant_answer_is_refused(comparison: str, value: Any) -> None:
    with pytest.raises(InvalidUsage):
        Condition("n", comparison, value)


def cut(
    sizes: Sequence[int], *, upper: int, fence: int | None = None, **limits: int
) -> tuple[list[int], int]:
    txns = [ListedTxn(Txn(at), (part(f"p{at}", rows),), Txn(at)) for at, rows in enumerate(sizes, start=1)]
    fenced = None if fence is None else Txn(fence)
    chosen, end = cut_batch(txns, upper=Txn(upper), limits=Limits(**limits), fence=fenced)
    return [one.txn for one in chosen], end


def test_a_batch_ends_where_a_limit_is_met_and_never_inside_a_txn() -> None:
    assert cut([1, 1, 1], upper=9) == ([1, 2, 3], 9)
    assert cut([1, 1, 1], upper=9, txns_max=2) == ([1, 2], 3)
    assert cut([5, 5, 5], upper=9, rows_max=11) == ([1, 2], 3)
    assert cut([5, 5, 5], upper=9, bytes_max=50) == ([1], 2)
    assert cut([500, 5], upper=9, rows_max=10) == ([1], 2)


def test_r3_a_batch_that_may_have_been_done_comes_again_as_it_was() -> None:
    assert cut([1, 1, 1, 1], upper=5, fence=3) == ([1, 2], 3)
    assert cut([1, 1, 1, 1], upper=5, fence=3, txns_max=1) == ([1, 2], 3)
    assert cut([1, 1], upper=3, fence=7) == ([1, 2], 3)


def test_a_batch_does_not_end_inside_a_file_of_several_txns() -> None:
    txns = [
        ListedTxn(Txn(1), (part("x"),), Txn(1)),
        ListedTxn(Txn(2), (part("many", 3),), Txn(4)),
        ListedTxn(Txn(3), (), Txn(3)),
        ListedTxn(Txn(4), (), Txn(4)),
        ListedTxn(Txn(5), (part("y"),), Txn(5)),
    ]
    chosen, end = cut_batch(txns, upper=Txn(6), limits=Limits(txns_max=2), fence=None)
    assert ([one.txn for one in chosen], end) == ([1, 2, 3, 4], 5)


def test_limits_of_nothing_are_refused() -> None:
    with pytest.raises(InvalidUsage, match="a limit of a batch is below 1"):
        Limits(rows_max=0)
