"""Upkeep of a log, decided: what is merged, what may go in, what may be deleted."""

from __future__ import annotations

import pytest

from tidemark.core.ids import Txn
from tidemark.core.ledger import Head, Put
from tidemark.core.log import LogFile
from tidemark.core.maintenance import (
    BYTES_FULL,
    COMPACTION,
    Leftover,
    Outrun,
    Replaced,
    Replacement,
    choose_runs,
    covering,
    decide_begin,
    decide_replace,
    decide_truncate,
    held_back,
)
from tidemark.core.seal import Part

KB, MB = 1024, 1024 * 1024


def file(first: int, last: int = 0, *, size: int = KB, name: str = "a") -> LogFile:
    return LogFile(Part(f"{first}-{last or first}/{name}", 1, size), Txn(first), Txn(last or first))


def test_a_transactions_rows_are_in_the_files_that_cover_it() -> None:
    files = [file(1, 3), file(4), file(4, name="b"), file(5)]
    assert [one.part.path for one in covering(files, Txn(2))] == ["1-3/a"]
    assert [one.part.path for one in covering(files, Txn(4))] == ["4-4/a", "4-4/b"]
    assert covering(files, Txn(6)) == ()


def test_ten_small_neighbours_are_merged_and_nine_are_not() -> None:
    assert choose_runs([file(txn) for txn in range(1, 10)]) == ()
    (run,) = choose_runs([file(txn) for txn in range(10, 0, -1)])
    assert (run.first, run.last, len(run.files), run.bytes) == (1, 10, 10, 10 * KB)


def test_a_transactions_parts_are_never_torn_apart() -> None:
    files = [file(txn, name=name, size=60 * MB) for txn in range(1, 12) for name in "ab"]
    runs = choose_runs(files)
    assert runs == ()  # Two parts of 60 MB fill a file, so no ten of them fit into one.
    small = [file(txn, name=name, size=7 * MB) for txn in range(1, 20) for name in "ab"]
    for run in choose_runs(small):
        assert all(
            sum(one.txn_first == txn for one in run.files) == 2 for txn in range(run.first, run.last + 1)
        )
        assert run.bytes <= BYTES_FULL


def test_a_full_file_is_left_alone_and_parts_its_neighbours() -> None:
    files = [file(txn) for txn in range(1, 9)] + [file(9, 50, size=BYTES_FULL)]
    files += [file(txn) for txn in range(51, 59)]
    assert choose_runs(files) == ()


def test_a_large_merged_file_is_not_rewritten_for_a_few_small_ones() -> None:
    files = [file(1, 100, size=50 * MB)] + [file(txn) for txn in range(101, 112)]
    (run,) = choose_runs(files)
    assert run.first == 101


def merged() -> tuple[Replacement, list[LogFile]]:
    old = [file(1), file(2)]
    return Replacement(tuple(old), (Part("1-2/new", 2, KB),)), old


def test_a_compaction_goes_in_while_it_is_the_last_one_begun_and_its_files_are_there() -> None:
    replacement, old = merged()
    begun = decide_begin(head=Head(4, {COMPACTION: 6}))
    assert begun.result == 7
    head = Head(5, dict(begun.marks))
    assert isinstance(decide_replace(head=head, active=old, number=7, replacement=replacement), Put)
    later = Head(6, {COMPACTION: 8})
    assert decide_replace(head=later, active=old, number=7, replacement=replacement) == Outrun()
    assert decide_replace(head=head, active=old[:1], number=7, replacement=replacement) == Outrun()


def test_m4_a_compaction_whose_reply_was_lost_finds_its_own_files() -> None:
    replacement, _ = merged()
    found = [LogFile(Part("1-2/new", 2, KB), Txn(1), Txn(2))]
    head = Head(6, {COMPACTION: 7})
    assert decide_replace(head=head, active=found, number=7, replacement=replacement) == Replaced(replacement)


def test_a_truncation_takes_whole_files_below_since_and_no_other() -> None:
    files = [file(1, 3), file(4, 6), file(7)]
    put = decide_truncate(active=files, since=Txn(6))
    assert isinstance(put, Put)
    assert [one.part.path for one in put.result] == ["1-3/a"]
    assert decide_truncate(active=files[1:], since=Txn(6)) == ()


TERMS = {
    "begun": 3, "sealed_token": "w", "log_upper": Txn(10), "held_from": None, "now_ms": 1_000, "kept_ms": 100,
}  # fmt: skip


@pytest.mark.parametrize(
    ("leftover", "changed", "why"),
    [
        (Leftover("p", 1, Txn(5), Txn(5), "w"), {}, ""),
        (Leftover("p", 1, Txn(5), Txn(5), "w"), {"sealed_token": None}, "its transaction is open"),
        (Leftover("p", 1, Txn(5), Txn(5), "x"), {}, "sweep"),
        (Leftover("p", 1, Txn(10), Txn(10), "w"), {}, "does not have it yet"),
        (Leftover("p", 1, Txn(5), Txn(5), "w", removed_ms=950), {}, "earlier reader"),
        (Leftover("p", 1, Txn(5), Txn(5), "w", removed_ms=900), {}, ""),
        (Leftover("p", 1, Txn(5), Txn(5), "w"), {"held_from": Txn(5), "held_by": "lease r"}, "lease r"),
        (Leftover("p", 1, Txn(5), Txn(5), "w"), {"held_from": Txn(6), "held_by": "lease r"}, ""),
        (Leftover("m", 1, Txn(1), Txn(5), "w", number=3), {}, "is writing it"),
        (Leftover("m", 1, Txn(1), Txn(5), "w", number=2), {}, ""),
        (Leftover("m", 1, Txn(1), Txn(5), "w", number=2), {"held_from": Txn(6)}, ""),
        (Leftover("m", 1, Txn(1), Txn(5), "w", number=2), {"held_from": Txn(5)}, "held"),
        (Leftover("m", 1, Txn(1), Txn(5), "w", number=2, removed_ms=950), {}, "earlier reader"),
        (Leftover("m", 1, Txn(1), Txn(5), "w", number=2, removed_ms=1), {"held_from": Txn(5)}, "held"),
    ],
)
def test_invariant_12_a_file_goes_only_when_nobody_can_need_it(
    leftover: Leftover, changed: dict[str, object], why: str
) -> None:
    """Invariant 12: open transactions, waiting logs, recent looks and live leases hold a file."""
    terms = {**TERMS, "held_by": "held", **changed}
    hold = held_back(leftover, **terms)  # type: ignore[arg-type]
    assert (hold is None) == (why == "")
    if hold is not None:
        assert why in hold.why
