"""The one fold, and how long a deletion is remembered (scenarios U11, U12, U13)."""

from __future__ import annotations

import pytest

from tests.support.memory.fold import Change, Position, Sequence, fold, too_late, visible
from tidemark.core.ids import Txn


def change(
    value: object, *, txn: int = 1, partition: str = "p0", offset: int = 0, ordinal: int = 0,
    sequence: Sequence = None, key: tuple[object, ...] = ("k",),
) -> Change:  # fmt: skip
    return Change(key, value, Txn(txn), Position(partition, offset, ordinal), sequence)


def last(*changes: Change) -> object:
    (found,) = {fold(order)[("k",)].value for order in (changes, changes[::-1])}
    return found


def test_the_later_transaction_wins_then_the_later_position() -> None:
    assert last(change("old", txn=1, offset=9), change("new", txn=2, offset=0)) == "new"
    assert last(change("old", offset=1, ordinal=7), change("new", offset=2)) == "new"
    assert last(change("old", ordinal=1), change("new", ordinal=2)) == "new"


def test_u11_an_older_sequence_never_replaces_a_newer_one_even_in_a_later_transaction() -> None:
    assert last(change("new", txn=1, sequence=10), change("late", txn=2, sequence=5)) == "new"


def test_u11_equal_sequences_fall_back_to_the_position() -> None:
    assert last(change("first", txn=1, sequence=10), change("second", txn=2, sequence=10)) == "second"
    assert last(change("first", offset=1, sequence=10), change("second", offset=2, sequence=10)) == "second"


def test_u11_a_late_delete_older_than_the_row_is_ignored() -> None:
    assert visible(fold([change(1, txn=1, sequence=10), change(None, txn=2, sequence=5)])) == {("k",): 1}


def test_u11_a_deletion_is_kept_against_a_late_record() -> None:
    folded = fold([change(None, txn=1, sequence=10), change("late", txn=2, sequence=5)])
    assert visible(folded) == {}
    assert folded[("k",)].deletes


def test_a_null_sequence_is_older_than_any_other() -> None:
    assert last(change("null", txn=2), change("zero", txn=1, sequence=-(10**9))) == "zero"
    assert last(change("one", txn=1), change("two", txn=2)) == "two"
    assert last(change("text", txn=1, sequence="2025-01-01"), change("null", txn=2)) == "text"


def test_u12_the_same_key_in_two_partitions_is_decided_by_the_partitions_name() -> None:
    assert last(change("p0", partition="p0", offset=99), change("p1", partition="p1", offset=0)) == "p1"


def test_u13_null_is_a_key_part_like_any_other() -> None:
    folded = fold(
        [change(1, key=(None, "r")), change(2, key=(None, "r"), offset=1), change(3, key=("", "r"))]
    )
    assert visible(folded) == {(None, "r"): 2, ("", "r"): 3}


@pytest.mark.parametrize(
    ("sequence", "watermark", "lateness", "late"),
    [
        (5, 10, 5, False), (4, 10, 5, True), (10, 10, 0, False), (9, 10, 0, True), (-99, None, 5, False),
        (-99, 10, None, False), (None, None, 5, False), (None, 10, None, False),
    ],
)  # fmt: skip
def test_too_late_is_further_below_the_watermark_than_the_lateness(
    sequence: int | None, watermark: int | None, lateness: int | None, late: bool
) -> None:
    assert too_late(sequence, watermark=watermark, lateness=lateness) is late


def test_regression_a_null_sequence_is_too_late_once_there_is_a_watermark() -> None:
    """It is older than any other, so a tombstone that was let go could not be told from none."""
    assert too_late(None, watermark=-(10**9), lateness=10)


def test_positions_are_ordered_by_partition_then_offset_then_ordinal() -> None:
    positions = [Position("b", 0), Position("a", 1), Position("a", 0, 1), Position("a", 0, 0)]
    assert sorted(positions) == positions[::-1]
