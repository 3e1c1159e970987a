"""Announcements to downstream: each transaction's gate verdict, and whether a person overruled it.

The journal is the only source. A run whose gate is red does not reach its checkpoint. A run that does reach
it with a red gate was let through by a person. Both facts are on record before anything is announced
(Invariant 19).

Announcements are on record too, so a proof that changes nothing triggers nothing downstream. A transaction
is announced again only with another verdict, or after a repair.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tidemark.core.ids import Txn
from tidemark.core.ledger import Event, JournalEntry
from tidemark.core.replay import Verdict
from tidemark.core.seal import Decision, Evidence, Seal
from tidemark.pipeline.context import Attempt, Pipeline, note_all
from tidemark.pipeline.ingest import found_by
from tidemark.pipeline.validate import judged_in

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
