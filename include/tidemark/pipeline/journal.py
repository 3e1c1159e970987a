"""What the journal says of transactions: when things happened, and what is announced downstream.

Every record of a control table has the time of its commit, by the clock of the process that wrote it: for
people and for alarms. No decision depends on it, so a wrong clock shows wrong times and does no other harm. A
ledger that stores no times, such as one in memory, has none.

An announcement is each transaction's gate verdict, and whether a person overruled it. The journal is its only
source. A run whose gate is red does not reach its checkpoint. A run that does reach it with a red gate was
let through by a person. Both facts are on record before anything is announced (Invariant 19).

Announcements are on record too, so a proof that changes nothing triggers nothing downstream. A transaction
is announced again only with another verdict, or after a repair.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from tidemark.core.binding import Binding
from tidemark.core.ids import Txn
from tidemark.core.ledger import Event, JournalEntry
from tidemark.core.replay import Verdict
from tidemark.core.seal import Decision, Evidence, Seal
from tidemark.core.status import Blocked, LastRun, LastVerdict, Times
from tidemark.pipeline.context import Attempt, Pipeline, note_all
from tidemark.pipeline.ingest import found_by
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


NOT_PROVEN: Final = "not proven"
"""The gate's word for a transaction whose proof was begun and has no verdict."""
BY_HAND: Final = "the validate task was marked as success by hand"
UNANSWERED: Final = "the run went on without a verdict"

_GATE, _OVERRULED = "gate", "overruled"


@dataclass(frozen=True, slots=True)
class Announcement:
    """The announcement of one sealed transaction. `gate` is the gate's last verdict, `overruled` is how a
    person overruled it. `unchanged`: the same was announced before, and nothing was repaired since.
    `unrecorded`: the journal has no entry yet that the gate was overruled by hand."""

    seal: Seal
    gate: str
    overruled: str = ""
    repaired: bool = False
    unchanged: bool = False
    unrecorded: bool = False


def announcement_of(
    seal: Seal, entries: Sequence[JournalEntry], run_id: str, *, begun: Evidence | None = None
) -> Announcement:
    """The announcement that follows from the journal's entries on a transaction, in order, for a run that is
    past its gate.

    `begun` is the last proof that the run has begun; it needs a verdict. Marking a task as success raises the
    run's round, so the current round is not compared."""
    proofs = [entry for entry in entries if entry.event is Event.VERIFIED]
    gate, accepted = _sealed_by(seal, entries)
    by_hand = ""
    if begun is not None and not any(_answers(entry, begun) for entry in proofs):
        gate, by_hand = NOT_PROVEN, UNANSWERED
    elif proofs:
        gate = proofs[-1].detail["verdict"]
        if gate != Verdict.IDENTICAL and proofs[-1].detail.get("run") == run_id:
            by_hand = BY_HAND
    overruled = "; ".join(way for way in (accepted, by_hand) if way)
    judgement = {_GATE: gate, _OVERRULED: overruled}
    last_proof = proofs[-1].number if proofs else 0
    recorded = any(
        entry.event is Event.OVERRULED
        and entry.number > last_proof
        and judgement.items() <= entry.detail.items()
        for entry in entries
    )
    announced = [entry for entry in entries if entry.event is Event.ANNOUNCED]
    repaired = bool(announced) and any(
        entry.event is Event.REPAIRED and entry.number > announced[-1].number for entry in entries
    )
    unchanged = bool(announced) and judgement.items() <= announced[-1].detail.items() and not repaired
    return Announcement(seal, gate, overruled, repaired, unchanged, bool(by_hand) and not recorded)


def _sealed_by(seal: Seal, entries: Sequence[JournalEntry]) -> tuple[str, str]:
    """The gate's verdict on the attempt that was sealed, and how a person overruled it. A committed
    transaction always has the verdict `identical`."""
    if seal.decision is Decision.LOST:
        return str(Verdict.LOST), ""
    if seal.decision is not Decision.ACCEPTED:
        return str(Verdict.IDENTICAL), ""
    own = [entry for entry in entries if entry.event is Event.JUDGED and entry.token == seal.token]
    if not own:
        return str(Decision.ACCEPTED), f"accepted: {seal.reason}"
    gate = judged_in(own[-1]).gated.word
    return gate, f"accepted although {gate}: {seal.reason}"


def announcements(pipeline: Pipeline, attempt: Attempt, seals: Sequence[Seal]) -> tuple[Announcement, ...]:
    """The announcements of a run's transactions, once the run has reached its checkpoint."""
    run_id = attempt.owner.run_id
    begun = {
        one.txn: one for one in found_by(pipeline, attempt) if one.replayed and one.owner.run_id == run_id
    }
    journal = pipeline.control.journal
    journal.head()
    return tuple(
        announcement_of(seal, journal.find(str(seal.txn)), run_id, begun=begun.get(seal.txn))
        for seal in seals
    )


def _answers(entry: JournalEntry, begun: Evidence) -> bool:
    """Whether an entry is the verdict of this proof: of the same round of the same run."""
    owed = {"run": begun.owner.run_id, "begun": begun.owner.begun, "round": str(begun.round)}
    return owed.items() <= entry.detail.items()


def note_overruled(pipeline: Pipeline, attempt: Attempt, announced: Sequence[Announcement]) -> None:
    """Record, once, which verdicts a person has overruled by hand."""
    _note(pipeline, attempt, Event.OVERRULED, [one for one in announced if one.unrecorded])


def note_announced(pipeline: Pipeline, attempt: Attempt, announced: Sequence[Announcement]) -> None:
    """Record what was announced. Call this once the scheduler has the announcements: after a crash in
    between, they are announced twice, never lost."""
    _note(pipeline, attempt, Event.ANNOUNCED, [one for one in announced if not one.unchanged])


def _note(pipeline: Pipeline, attempt: Attempt, event: Event, announced: Sequence[Announcement]) -> None:
    groups: dict[tuple[str, str], list[Txn]] = {}
    for one in announced:
        groups.setdefault((one.gate, one.overruled), []).append(one.seal.txn)
    for (gate, overruled), txns in groups.items():
        detail = {_GATE: gate, _OVERRULED: overruled, "run": attempt.owner.run_id}
        note_all(pipeline, event, txns=txns, token=attempt.token, detail=detail)
