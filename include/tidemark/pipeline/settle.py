"""How a decision becomes durable: decide on a checked head, commit on that head, else decide again.

Every change of every ledger goes through `settle`. A conflict means that the head has moved, so
the decision is made anew on the new one; that is also what happens when only maintenance has moved
it. An unknown outcome is treated the same way: the head is read back, and the decision recognises
its own record there (Invariant 5). Commits are conditional, so a reply that comes late, or a write
that lands late, can never put a thing twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol, TypeVar

from tidemark.core.errors import Determinate, Indeterminate
from tidemark.core.ledger import CommitOutcome, Committed, Head, Put

ATTEMPTS_MAX: Final = 200

R = TypeVar("R")
T = TypeVar("T")


class Changed(Protocol[R]):
    """What can be settled: something with a head that is committed on."""

    def head(self) -> Head: ...

    def commit(self, head: Head, put: Put[R, Any]) -> CommitOutcome: ...


def settle(ledger: Changed[R], decide: Callable[[Head], Put[R, T] | T], *, what: str) -> T:
    """Decide and commit until one of both is final. Every wait has an end (Invariant 14)."""
    for _ in range(ATTEMPTS_MAX):
        head = ledger.head()
        decision = decide(head)
        if not isinstance(decision, Put):
            return decision
        try:
            outcome = ledger.commit(head, decision)
        except Indeterminate:
            continue
        if isinstance(outcome, Committed):
            return decision.result
    raise Determinate(
        f"{what} lost {ATTEMPTS_MAX} races in a row",
        hint="retry, and look for a writer that commits in a loop",
    )
