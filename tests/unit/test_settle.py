"""How a decision becomes durable: conflicts, unknown outcomes, and an end. Checks Invariants 3, 5, 14."""

from __future__ import annotations

import pytest

from tests.support.memory.ledger import Fault, MemoryLedger, MemoryLedgerView
from tests.support.memory.world import Script
from tidemark.core.errors import Determinate, InvariantViolation
from tidemark.core.ids import Txn, WriterToken
from tidemark.core.ledger import UPPER, Head, Put
from tidemark.core.log import LogEntry
from tidemark.pipeline.context import ATTEMPTS_MAX, settle

Ledger = MemoryLedger[LogEntry]


def put_next(token: str, ledger: MemoryLedgerView[LogEntry], seen: list[int] | None = None):  # type: ignore[no-untyped-def]
    """A decision that adds one record of its own, once, wherever the upper is."""

    def decide(head: Head) -> Put[LogEntry, str] | str:
        if seen is not None:
            seen.append(head.upper)
        if ledger.find(token):
            return "found"
        entry = LogEntry(head.upper, WriterToken(token), ())
        return Put({UPPER: head.upper + 1}, (entry,), "put")

    return decide


def tokens(truth: Ledger) -> list[str]:
    return [entry.token for entry in truth.records(truth.version)]


def scripted(truth: Ledger, script: Script) -> MemoryLedgerView[LogEntry]:
    return MemoryLedgerView(truth, script)


def test_a_decision_that_needs_no_commit_is_the_answer() -> None:
    ledger = MemoryLedgerView(Ledger())
    assert settle(ledger, lambda head: f"upper {head.upper}", what="nothing") == "upper 1"
    assert ledger.head().version == 0


def test_a_conflict_makes_the_decision_anew_on_the_new_head() -> None:
    truth = Ledger()
    rival = MemoryLedgerView(truth)
    script = Script().before("ledger.commit", lambda: settle(rival, put_next("rival", rival), what="r"))
    ledger, seen = scripted(truth, script), []
    assert settle(ledger, put_next("me", ledger, seen), what="mine") == "put"
    assert seen == [1, 2]
    assert tokens(truth) == ["rival", "me"]


def test_a_conflict_with_an_unchanged_upper_puts_again() -> None:
    truth = Ledger()
    maintenance = MemoryLedgerView(truth)
    script = Script().before(
        "ledger.commit", lambda: maintenance.commit(maintenance.head(), Put({}, (), None))
    )
    ledger, seen = scripted(truth, script), []
    assert settle(ledger, put_next("me", ledger, seen), what="mine") == "put"
    assert seen == [1, 1]


@pytest.mark.parametrize(
    ("fault", "answer"), [(Fault.LOSE_REPLY, "found"), (Fault.LOSE_REQUEST, "put"), (Fault.DELAY, "put")]
)
def test_an_unknown_outcome_is_decided_by_reading_back(fault: Fault, answer: str) -> None:
    truth = Ledger()
    ledger = scripted(truth, Script().fault("ledger.commit", fault))
    assert settle(ledger, put_next("me", ledger), what="mine") == answer
    for landing in truth.delayed:
        landing()
    assert tokens(truth) == ["me"]


def test_an_unknown_outcome_that_lands_between_the_reading_back_and_the_next_try_is_in_once() -> None:
    truth = Ledger()
    script = Script().fault("ledger.commit", Fault.DELAY)
    script.before("ledger.commit", lambda: [land() for land in truth.delayed], nth=2)
    ledger = scripted(truth, script)
    assert settle(ledger, put_next("me", ledger), what="mine") == "found"
    assert tokens(truth) == ["me"]


def test_a_commit_that_surely_failed_is_the_callers_to_retry() -> None:
    ledger = scripted(Ledger(), Script().fault("ledger.commit", Fault.FAIL))
    with pytest.raises(Determinate, match="did not take the commit"):
        settle(ledger, put_next("me", ledger), what="mine")


def test_a_stale_head_costs_a_try_and_no_more() -> None:
    truth = Ledger()
    other = MemoryLedgerView(truth)
    settle(other, put_next("other", other), what="theirs")
    ledger, seen = scripted(truth, Script().fault("ledger.head", Fault.STALE)), []
    assert settle(ledger, put_next("me", ledger, seen), what="mine") == "put"
    assert seen == [1, 2]
    assert tokens(truth) == ["other", "me"]


def test_every_wait_has_an_end() -> None:
    truth = Ledger()
    rival = MemoryLedgerView(truth)
    script = Script()
    for nth in range(1, ATTEMPTS_MAX + 1):
        script.before("ledger.commit", lambda: rival.commit(rival.head(), Put({}, (), None)), nth=nth)
    ledger = scripted(truth, script)
    with pytest.raises(Determinate, match=f"mine lost {ATTEMPTS_MAX} races in a row"):
        settle(ledger, put_next("me", ledger), what="mine")
    assert tokens(truth) == []


def test_a_decision_that_would_move_a_mark_back_is_refused_by_the_store() -> None:
    ledger = MemoryLedgerView(Ledger())
    entry = LogEntry(Txn(1), WriterToken("t"), ())
    ledger.commit(ledger.head(), Put({UPPER: 5}, (entry,), None))
    with pytest.raises(InvariantViolation, match="would go back from 5 to 4"):
        settle(ledger, lambda _: Put({UPPER: 4}, (entry,), None), what="a mistake")
