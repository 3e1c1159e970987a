"""What older versions of a state take is kept as promised, and told where it is much."""

from __future__ import annotations

from dataclasses import replace

from tidemark.app.maintenance import DAY_MS, Terms, _history_warnings
from tidemark.core.ids import ShardId, Txn
from tidemark.delta.vacuum import HISTORY_BYTES_MIN, HISTORY_TIMES_MAX, TableStats

FACTS = TableStats(
    files=1, bytes=HISTORY_BYTES_MIN, rows=1, hidden=0, small=0, small_bytes=0, worn=0, worn_bytes=0, old=0,
    old_bytes=0, waiting=9, waiting_bytes=0, configuration={},
)  # fmt: skip
TERMS = Terms(now_ms=0, window=Txn(1), quarantine_window=Txn(1), kept_ms=7 * DAY_MS)


def told(**changed: int) -> list[str]:
    return list(_history_warnings(ShardId("orders"), replace(FACTS, **changed), TERMS))


def test_a_history_that_takes_much_more_than_the_state_is_told_with_what_helps() -> None:
    most = HISTORY_TIMES_MAX * HISTORY_BYTES_MIN
    assert told(waiting_bytes=most) == []
    (warning,) = told(waiting_bytes=most + 1)
    assert "older versions of the state of orders take 10,737,418,241 bytes" in warning
    assert "lower `state_history_days: 7`, or publish less often" in warning


def test_a_small_history_is_nobodys_business_however_small_the_state_is() -> None:
    assert told(bytes=1, waiting_bytes=HISTORY_BYTES_MIN) == []
    assert told(bytes=1, waiting_bytes=HISTORY_BYTES_MIN + 1)
