"""A shard's log: drop, append, hold. Checks Invariants 2, 3, 4 and 8."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tidemark.core.checksum import Digest
from tidemark.core.errors import InvariantViolation
from tidemark.core.ids import ShardId, Txn, WriterToken
from tidemark.core.ledger import LINK, UPPER, Head, Put
from tidemark.core.log import (
    Appended,
    AppendOutcome,
    CaughtUp,
    LogEntry,
    Paused,
    UpperMismatch,
    UpperRelation,
    classify,
    decide_append,
    entry_of,
    next_append,
)
from tidemark.core.seal import Decision, Part, Seal, ShardParts

A, B = ShardId("a"), ShardId("b")


def seal(txn: int, *shards: ShardId, token: str = "w", held: str = "") -> Seal:
    parts = {
        shard: ShardParts((Part(f"{shard}/{txn}/{token}", 1, 1),), Digest.of([txn]), held) for shard in shards
    }
    return Seal(Txn(txn), WriterToken(token), 0, Decision.COMMITTED, Digest(), parts)


def append(
    entry: LogEntry, *, upper: int, expected: int, found: LogEntry | None = None
) -> Put[LogEntry, AppendOutcome] | AppendOutcome:
    return decide_append(head=Head(1, {UPPER: upper}), expected=Txn(expected), found=found, entry=entry)


def test_a_transaction_stands_below_at_or_above_an_upper() -> None:
    found = [classify(Txn(txn), Txn(5)) for txn in (4, 5, 6)]
    assert found == [UpperRelation.BELOW, UpperRelation.AT, UpperRelation.ABOVE]


def test_the_next_append_is_the_first_seal_that_touches_the_shard() -> None:
    seals = [seal(1, A), seal(2, B), seal(3, A), seal(4, B)]
    assert next_append(B, upper=Txn(1), seals=seals) == entry_of(seals[1], B)
    assert next_append(B, upper=Txn(3), seals=seals) == entry_of(seals[3], B)
    assert next_append(A, upper=Txn(4), seals=seals) == CaughtUp(Txn(5))
    assert next_append(ShardId("new"), upper=Txn(1), seals=seals) == CaughtUp(Txn(5))
    assert next_append(A, upper=Txn(5), seals=[]) == CaughtUp(Txn(5))


def test_a_gap_in_the_seals_is_a_broken_promise() -> None:
    with pytest.raises(InvariantViolation, match="seal 2 is missing below seal 3"):
        next_append(A, upper=Txn(1), seals=[seal(1, B), seal(3, A)])


def test_p12_a_held_transaction_stops_the_log_until_it_is_released_by_name() -> None:
    seals = [seal(1, A, held="too many NULLs"), seal(2, A)]
    assert next_append(A, upper=Txn(1), seals=seals) == Paused(Txn(1), "too many NULLs")
    assert next_append(A, upper=Txn(1), seals=seals, release=Txn(2)) == Paused(Txn(1), "too many NULLs")
    assert next_append(A, upper=Txn(1), seals=seals, release=Txn(1)) == entry_of(seals[0], A)


def test_at_the_upper_it_appends() -> None:
    entry = entry_of(seal(3, A), A)
    assert append(entry, upper=3, expected=3) == Put({UPPER: 4, LINK: 0}, (entry,), Appended(Txn(3)))


def test_it_never_steps_over_what_touches_the_shard() -> None:
    """A log that lost the append of 5 is not taken for one that 5 did not touch."""
    entry = replace(entry_of(seal(7, A), A), before=Txn(5))
    with pytest.raises(InvariantViolation, match="transaction 7 follows 5 in its shard"):
        append(entry, upper=5, expected=5)
    assert isinstance(append(entry, upper=6, expected=6), Put)


def test_it_steps_over_what_does_not_touch_the_shard() -> None:
    entry = entry_of(seal(7, A), A)
    assert append(entry, upper=3, expected=3) == Put({UPPER: 8, LINK: 0}, (entry,), Appended(Txn(7)))


def test_below_the_upper_it_drops_and_says_where_the_log_is() -> None:
    entry = entry_of(seal(3, A), A)
    assert append(entry, upper=9, expected=3, found=entry) == UpperMismatch(Txn(3), Txn(9))
    assert append(entry, upper=9, expected=3) == UpperMismatch(Txn(3), Txn(9)), "truncated since"


def test_m7_a_stale_writer_that_aims_at_a_higher_upper_is_refused() -> None:
    entry = entry_of(seal(7, A), A)
    assert append(entry, upper=3, expected=7) == UpperMismatch(Txn(7), Txn(3))
    assert append(entry, upper=5, expected=3) == UpperMismatch(Txn(3), Txn(5))


def test_p7_other_parts_under_the_same_number_are_an_error_never_a_skip() -> None:
    ours, theirs = entry_of(seal(3, A), A), entry_of(seal(3, A, token="rogue"), A)
    with pytest.raises(InvariantViolation, match="transaction 3 is in the log with parts of rogue"):
        append(ours, upper=4, expected=3, found=theirs)


def test_an_entry_is_numbered_by_its_transaction_and_found_by_its_writer() -> None:
    entry = entry_of(seal(3, A), A)
    assert (entry.number, entry.key) == (3, "w")
