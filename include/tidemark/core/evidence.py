"""Evidence: what an attempt has found, kept for the steps that come after it in other processes.

When the steps of a run are tasks of their own, the parts that one task staged are judged by a second
and sealed by a third. What they hand on is a record here, not a message: any process can pick it up,
and none depends on a scheduler's memory. Evidence decides nothing. It can be made again at any time,
and what is sealed is decided by the seal alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidemark.core.binding import Owner
from tidemark.core.errors import InvalidUsage
from tidemark.core.ids import Txn, WriterToken
from tidemark.core.ledger import UPPER, Head, Put
from tidemark.core.seal import Staged


@dataclass(frozen=True, slots=True)
class Evidence:
    """What one attempt of one run found: parts it staged, digests of a replay, or why it can't read.

    `round` counts how often the run was cleared. A replay's `staged` has no files."""

    number: int
    txn: Txn
    owner: Owner
    round: int
    token: WriterToken
    staged: Staged | None = None
    replayed: bool = False
    gone: str = ""

    def __post_init__(self) -> None:
        if (self.staged is None) is not bool(self.gone):
            raise InvalidUsage(f"evidence on transaction {self.txn} is either something or says why not")

    @property
    def key(self) -> str:
        return self.owner.identity


def decide_evidence(*, head: Head, found: Sequence[Evidence], new: Evidence) -> Put[Evidence, None] | None:
    """Keep the evidence under the next number, unless it is there already after a lost reply."""
    known = {(entry.txn, entry.token, entry.replayed) for entry in found}
    if (new.txn, new.token, new.replayed) in known:
        return None
    entry = Evidence(head.upper, new.txn, new.owner, new.round, new.token, new.staged, new.replayed, new.gone)
    return Put(marks={UPPER: head.upper + 1}, records=(entry,), result=None)


def newest_of(
    found: Sequence[Evidence], txn: Txn, *, replayed: bool = False, round_min: int = 0
) -> Evidence | None:
    """The last that a run has found on a transaction, from a round on."""
    on_it = [
        entry
        for entry in found
        if entry.txn == txn and entry.replayed is replayed and entry.round >= round_min
    ]
    return on_it[-1] if on_it else None
