"""Heads and marks, and what the memory ledger promises of them. Checks Invariants 2 and 5."""

from __future__ import annotations

import pytest

from tests.support.memory.ledger import Crash, Fault, MemoryLedger, MemoryLedgerView
from tests.support.memory.world import Script
from tidemark.core.errors import Determinate, Indeterminate, InvariantViolation
from tidemark.core.ids import Txn, WriterToken
from tidemark.core.ledger import GENERATION, UPPER, Committed, Conflict, Head, Put
from tidemark.core.log import LogEntry


def put(number: int, *, upper: int | None = None, token: str = "t") -> Put[LogEntry, None]:
    marks = {} if upper is None else {UPPER: upper}
    return Put(marks, (LogEntry(Txn(number), WriterToken(token), ()),), None)


def view(*, fault: Fault = Fault.NONE, call: str = "commit") -> MemoryLedgerView[LogEntry]:
    return MemoryLedgerView(MemoryLedger(), Script().fault(f"ledger.{call}", fault))


def test_an_empty_ledger_stands_at_the_first_transaction_and_generation_zero() -> None:
    assert (Head(0).upper, Head(0).generation) == (1, 0)
    assert (Head(3, {UPPER: 4, GENERATION: 2}).upper, Head(3, {UPPER: 4, GENERATION: 2}).generation) == (4, 2)


def test_marks_move_forward_and_the_others_stay() -> None:
    assert Head(1, {UPPER: 4, GENERATION: 2}).moved({UPPER: 5}) == {UPPER: 5, GENERATION: 2}
    assert Head(1, {UPPER: 4}).moved({UPPER: 4}) == {UPPER: 4}


@pytest.mark.parametrize(
    ("marks", "moved"), [({UPPER: 4}, {UPPER: 3}), ({GENERATION: 1}, {GENERATION: 0}), ({}, {"other": -1})]
)
def test_a_mark_that_would_go_back_is_a_broken_promise(marks: dict[str, int], moved: dict[str, int]) -> None:
    with pytest.raises(InvariantViolation, match="would go back from"):
        Head(1, marks).moved(moved)


def test_regression_an_upper_that_was_never_put_can_not_go_below_the_first_transaction() -> None:
    with pytest.raises(InvariantViolation, match="mark 'upper' would go back from 1 to 0"):
        Head(0).moved({UPPER: 0})


def test_of_two_commits_on_one_head_one_is_committed_and_the_other_writes_nothing() -> None:
    truth: MemoryLedger[LogEntry] = MemoryLedger()
    one, two = MemoryLedgerView(truth), MemoryLedgerView(truth)
    head_one, head_two = one.head(), two.head()
    assert one.commit(head_one, put(1, upper=2, token="one")) == Committed(1)
    assert two.commit(head_two, put(1, upper=2, token="two")) == Conflict()
    assert [entry.token for entry in truth.records(truth.version)] == ["one"]


def test_reads_answer_from_the_snapshot_that_head_loaded() -> None:
    truth: MemoryLedger[LogEntry] = MemoryLedger()
    writer, reader = MemoryLedgerView(truth), MemoryLedgerView(truth)
    reader.head()
    writer.commit(writer.head(), put(1, upper=2))
    assert reader.read(1, 9) == []
    assert reader.find("t") == []
    assert reader.head().upper == 2
    assert [entry.number for entry in reader.read(1, 9)] == [1]
    assert [entry.number for entry in reader.find("t")] == [1]
    assert reader.read(2, 9) == []
    assert reader.find("other") == []


def test_a_stale_head_is_one_version_old_and_never_behind_what_was_seen() -> None:
    truth: MemoryLedger[LogEntry] = MemoryLedger()
    writer = MemoryLedgerView(truth)
    for number in (1, 2):
        writer.commit(writer.head(), put(number, upper=number + 1))
    script = Script().fault("ledger.head", Fault.STALE, nth=1).fault("ledger.head", Fault.STALE, nth=3)
    reader = MemoryLedgerView(truth, script)
    assert reader.head().upper == 2
    assert reader.commit(reader.head(), put(3, upper=4)) == Committed(3)
    assert reader.head().upper == 3, "stale: the commit of its own is not seen yet"


def test_a_commit_that_failed_or_never_arrived_wrote_nothing() -> None:
    for fault, error in (
        (Fault.FAIL, Determinate),
        (Fault.LOSE_REQUEST, Indeterminate),
        (Fault.CRASH_BEFORE, Crash),
    ):
        ledger = view(fault=fault)
        with pytest.raises(error):
            ledger.commit(ledger.head(), put(1, upper=2))
        assert ledger.head().version == 0


def test_a_commit_whose_reply_was_lost_is_there() -> None:
    for fault, error in ((Fault.LOSE_REPLY, Indeterminate), (Fault.CRASH_AFTER, Crash)):
        ledger = view(fault=fault)
        with pytest.raises(error):
            ledger.commit(ledger.head(), put(1, upper=2))
        assert ledger.head().upper == 2


def test_a_commit_asked_for_twice_is_in_once() -> None:
    ledger = view(fault=Fault.DUPLICATE)
    assert ledger.commit(ledger.head(), put(1, upper=2)) == Committed(1)
    assert ledger.head().version == 1


def test_a_delayed_commit_lands_only_on_the_head_it_was_made_for() -> None:
    truth: MemoryLedger[LogEntry] = MemoryLedger()
    slow = MemoryLedgerView(truth, Script().fault("ledger.commit", Fault.DELAY))
    fast = MemoryLedgerView(truth)
    with pytest.raises(Indeterminate):
        slow.commit(slow.head(), put(1, upper=2, token="slow"))
    assert fast.commit(fast.head(), put(1, upper=2, token="fast")) == Committed(1)
    assert truth.delayed.pop()() == Conflict()
    assert [entry.token for entry in truth.records(truth.version)] == ["fast"]


def test_a_process_may_die_while_it_reads() -> None:
    with pytest.raises(Crash):
        view(fault=Fault.CRASH_BEFORE, call="head").head()
