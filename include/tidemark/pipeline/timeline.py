"""When things happened, by the clocks of the processes that wrote them: for people and for alarms.

Every record of a control table has the time of its commit. No decision depends on it, so a wrong clock
shows wrong times and does no other harm. A ledger that stores no times, such as one in memory, has none.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from tidemark.core.binding import Binding
from tidemark.core.ids import Txn
from tidemark.core.ledger import Event
from tidemark.core.seal import Seal
from tidemark.core.status import Blocked, LastRun, LastVerdict, Times
from tidemark.pipeline.validate import judged_in
from tidemark.ports.control import Control, ReportsCommitTime

_ENTRIES_LOOKED_AT: Final = 1_000


@dataclass(frozen=True, slots=True)
class Happening:
    """One event: a binding, a seal, or an entry of the journal."""

    at: datetime | None
    txn: Txn
    event: str
    by: str
    detail: Mapping[str, str] = field(default_factory=dict)


def written_at(ledger: object, number: int) -> datetime | None:
    """When a record was committed, at the ledger's loaded version; None where that is not known."""
    return ledger.written_at(number) if isinstance(ledger, ReportsCommitTime) else None


def times_of(control: Control, txn: Txn) -> Times:
    """A transaction's times, at the loaded versions of bindings and seals."""
    return Times(written_at(control.bindings, txn), written_at(control.seals, txn))


def last_run(control: Control) -> LastRun | None:
    """The run that requested input last; None when there is none. A run that found none has a claim, at the
    next binding's number."""
    upper = control.bindings.head().upper
    records = control.owned.read(upper - 1, upper + 1)
    if not records:
        return None
    at = written_at(control.owned, upper) or written_at(control.owned, upper - 1)
    return LastRun(records[-1].owner.run_id, at)


def last_verdict(control: Control) -> LastVerdict | None:
    """The newest verdict among the journal's last entries; None where they have none."""
    upper = control.journal.head().upper
    for entry in reversed(control.journal.read(max(1, upper - _ENTRIES_LOOKED_AT), upper)):
        if entry.event in (Event.JUDGED, Event.VERIFIED):
            word = judged_in(entry).gated.word
            at = written_at(control.journal, entry.number)
            return LastVerdict(entry.txn, word, entry.event is Event.VERIFIED, at)
    return None


def refused_since(control: Control, txn: Txn) -> Blocked | None:
    """Why an open transaction was stopped at its last try, and since when; None when its input or its gate
    did not stop it."""
    control.journal.head()
    for entry in reversed(control.journal.find(str(txn))):
        why = ""
        if entry.event is Event.REFUSED:
            why = entry.detail["why"]
        elif entry.event is Event.JUDGED and not (gated := judged_in(entry).gated).passed:
            why = "; ".join(gated.opinion.failed) or gated.finding.why
        elif entry.event is not Event.JUDGED:
            continue
        since = written_at(control.journal, entry.number)
        return Blocked(f"transaction {txn}", since, why, txn) if why else None
    return None


def happenings(control: Control, *, since: datetime) -> list[Happening]:
    """Everything on record since a moment, in order of time: bindings, seals, and entries of the journal."""
    found = [*_bound(control, since), *_sealed(control, since), *_noted(control, since)]
    kept = [one for one in found if one.at is None or one.at >= since]
    return sorted(kept, key=lambda one: (one.at.timestamp() if one.at else 0.0, one.txn))


def _bound(control: Control, since: datetime) -> Iterator[Happening]:
    binding: Binding
    for binding in _records_since(control.bindings, since):
        yield Happening(written_at(control.bindings, binding.txn), binding.txn, "bound", binding.owner.run_id)


def _sealed(control: Control, since: datetime) -> Iterator[Happening]:
    seal: Seal
    for seal in _records_since(control.seals, since):
        detail: dict[str, str] = {"read": str(seal.source.count)}
        detail.update((shard, str(parts.digest.count)) for shard, parts in seal.shards.items())
        if seal.reason:
            detail["reason"] = seal.reason
        yield Happening(written_at(control.seals, seal.txn), seal.txn, str(seal.decision), seal.token, detail)


def _noted(control: Control, since: datetime) -> Iterator[Happening]:
    for entry in _records_since(control.journal, since):
        at = written_at(control.journal, entry.number)
        yield Happening(at, entry.txn, str(entry.event), entry.token, entry.detail)


def _records_since(ledger: Any, since: datetime) -> Any:
    """The records from the first one on that was committed at the moment or later."""
    upper = ledger.head().upper

    def is_since(number: int) -> bool:
        at = written_at(ledger, number)
        return at is None or at >= since

    return ledger.read(1 + bisect_left(range(1, upper), True, key=is_since), upper)
