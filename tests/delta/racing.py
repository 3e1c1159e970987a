"""What a racing process runs: in a module of its own, so that the process can import it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.delta.helpers import entry, open_journal
from tidemark.core.ledger import UPPER, Committed, Put

SECONDS_MAX = 300


def race(folder: str, writer: int, rounds: int, barrier: Any, reports: Any) -> None:
    """Every round: the same expected upper for everybody, then all commit at once."""
    won: list[int] = []
    ledger = open_journal(Path(folder))
    for number in range(1, rounds + 1):
        barrier.wait(SECONDS_MAX)
        head = ledger.head()
        while head.upper != number:
            head = ledger.head()
        barrier.wait(SECONDS_MAX)
        put = Put({UPPER: number + 1}, (entry(number, token=f"w{writer}"),), None)
        if isinstance(ledger.commit(head, put), Committed):
            won.append(number)
    reports.put((writer, won))
