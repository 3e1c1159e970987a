"""What all steps share: the pipeline, the attempt that works on it, and `settle`.

Every change of every ledger goes through `settle`: decide on a checked head, commit on that head, else
decide again. A conflict means that the head has moved, so the decision is made anew on the new one, also
when only maintenance has moved it. An unknown outcome is treated the same way: the head is read back, and
the decision recognises its own record there (Invariant 5). Commits are conditional, so a late reply or a
late write never puts a record twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol, TypeVar

from tidemark.core.binding import Binding, Configuration, Owned, Owner, settings_of
from tidemark.core.errors import Determinate, Indeterminate, InvariantViolation
from tidemark.core.history import SEALED
from tidemark.core.ids import TXN_FIRST, TXN_NONE, ShardId, Txn, WriterToken
from tidemark.core.ledger import CommitOutcome, Committed, Event, Head, JournalEntry, Put, decide_note
from tidemark.core.seal import Evidence, Seal, Staged
from tidemark.core.shape import Shapes
from tidemark.ports.control import Control
from tidemark.ports.planes import DataPlane, Gate, NoExpectations
from tidemark.ports.source import Source

ATTEMPTS_MAX: Final = 200

R = TypeVar("R")
T = TypeVar("T")


class Changed(Protocol[R]):
    """Something that `settle` can change: it has a head, and commits on a head."""

    def head(self) -> Head: ...

    def commit(self, head: Head, put: Put[R, Any]) -> CommitOutcome: ...


def settle(ledger: Changed[R], decide: Callable[[Head], Put[R, T] | T], *, what: str) -> T:
    """Decide and commit until a decision needs no commit or a commit succeeds. The number of attempts is
    bounded (Invariant 14)."""
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


ATTEMPTS_LOOKED_AT: Final = 1_000


def no_shapes(configuration: Configuration) -> Shapes:
    """The shapes of a pipeline whose shards have none that could change."""
    return {}


@dataclass(frozen=True, slots=True)
class Pipeline:
    """One pipeline: its control tables, its source, its data plane, its settings and its gate."""

    control: Control
    source: Source
    plane: DataPlane
    configuration: Configuration
    generation: int = 0
    gate: Gate = field(default_factory=NoExpectations)
    shapes_of: Callable[[Configuration], Shapes] = no_shapes
    """The shards that a configuration declares, with their shapes."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try of one run. The token is never used twice. `cleared` asks for a proof. `round` counts how often
    the run was cleared, so that a retry can distinguish its own work from that of an earlier round."""

    owner: Owner
    token: WriterToken
    cleared: bool = False
    round: int = 0

    def proves(self, owned: Owned) -> bool:
        """Whether the run's transactions are to be proven: the run was cleared, or they were bound by another
        run of the same identity, which the scheduler no longer has."""
        return self.cleared or not self.owner.is_run_of(owned.owner)


def binding_at(pipeline: Pipeline, txn: Txn) -> Binding:
    """The binding of a transaction that is known to be bound."""
    upper = pipeline.control.bindings.head().upper
    for binding in pipeline.control.bindings.read(txn, txn + 1):
        return binding
    if txn < upper:
        raise InvariantViolation(f"binding {txn} is below the upper {upper}, but is not there")
    raise Determinate(f"the binding of transaction {txn} is not visible yet", hint="retry")


def last_binding(pipeline: Pipeline, head: Head) -> Binding | None:
    """The binding below the head's upper; None when nothing is bound."""
    if head.upper == TXN_FIRST:
        return None
    for binding in pipeline.control.bindings.read(head.upper - 1, head.upper):
        return binding
    raise InvariantViolation(f"binding {head.upper - 1} is below the upper {head.upper}, but is not there")


def undecided_promotion(control: Control, last: Binding | None) -> Binding | None:
    """The promotion that is bound and not decided: only the newest binding can be one. Answers from the
    loaded version of the history."""
    if last is None or not last.promotes or last.txn < max(TXN_FIRST, control.bindings.mark(SEALED)):
        return None
    return last


def seal_at(pipeline: Pipeline, txn: Txn) -> Seal:
    """The seal of a transaction below the loaded upper of the seals."""
    for seal in pipeline.control.seals.read(txn, txn + 1):
        return seal
    raise InvariantViolation(f"transaction {txn} is sealed, but its seal is not there")


@dataclass(frozen=True, slots=True)
class Unfinished:
    """The work that logs may still have to do: the seals above the checkpoint `done`, and per shard the first
    transaction that its log may lack. A shard that is not named has everything."""

    done: Txn
    sealed_upper: Txn
    seals: Sequence[Seal]
    lowers: Mapping[ShardId, Txn]


def sealed_binding(pipeline: Pipeline, seal: Seal) -> Binding:
    """The binding of a sealed transaction, with the settings that it was sealed with."""
    return binding_at(pipeline, seal.txn).under(seal.configuration)


def stage_open(pipeline: Pipeline, binding: Binding, token: WriterToken) -> Staged:
    """Stage an open transaction by the pipeline's current settings, so that a person can fix settings that
    were refused before. Reads no ledger. Precondition: the settings fit (`schema_change.require_shapes`)."""
    settings = settings_of(binding, pipeline.configuration)
    staged = pipeline.plane.stage(binding.under(settings), token)
    return replace(staged, configuration=settings, binding=binding.link)


def unfinished(pipeline: Pipeline) -> Unfinished:
    """The shards that the seals above the checkpoint touch, and those that waited at the checkpoint."""
    checkpoints = pipeline.control.checkpoints
    done_upper = checkpoints.head().upper
    waiting = {
        shard: mark.waits_at
        for last in checkpoints.read(done_upper - 1, done_upper)
        for shard, mark in last.tables.items()
        if mark.waits_at != TXN_NONE
    }
    sealed_upper = pipeline.control.seals.head().upper
    seals = pipeline.control.seals.read(done_upper, sealed_upper)
    touched = {shard: done_upper for seal in seals for shard in seal.shards}
    return Unfinished(Txn(done_upper - 1), sealed_upper, seals, dict(sorted({**touched, **waiting}.items())))


def untouched(pipeline: Pipeline, shards: Sequence[ShardId]) -> set[ShardId]:
    """Those of the shards that have no log, and no pending transaction that could still give them one."""
    behind = unfinished(pipeline)
    upper = pipeline.control.bindings.head().upper
    pending = pipeline.control.bindings.read(behind.sealed_upper, upper)
    pending_settings = {binding.configuration for binding in pending}
    return {
        shard
        for shard in shards
        if shard not in behind.lowers
        and not any(shard in settings.shards for settings in pending_settings)
        and pipeline.control.log(shard).head().upper == TXN_FIRST
    }


def watermark_below(control: Control, txn: Txn) -> int | None:
    """The watermark that a transaction's records are judged by; None where there is none.

    For a sealed transaction, its seal has it. For the next one, it is the watermark of the seal before, or
    the value that a person has set it back to. For a later one, it comes from the last attempt at the
    transaction before, which the seal of this one is checked against."""
    if txn <= TXN_FIRST:
        return None
    upper = control.seals.head().upper
    if txn <= upper:
        before, own = ([*control.seals.read(txn - 1, txn + 1), None])[:2]
        if own is not None and own.base is not None:
            return own.base
        watermark = before.watermark if before is not None else None
        return watermark if watermark is None or txn < upper else _set_back(control, txn, watermark)
    upper = control.attempts.head().upper
    recent = control.attempts.read(max(TXN_FIRST, upper - ATTEMPTS_LOOKED_AT), upper)
    staged = [entry.staged for entry in recent if entry.txn == txn - 1 and not entry.replayed]
    return next((one.watermark for one in reversed(staged) if one is not None), None)


def follows_watermark(control: Control, work: Staged | Seal) -> bool:
    """Whether an attempt's records were judged by the watermark that is below its transaction now."""
    return work.watermark is None or work.base == watermark_below(control, work.txn)


def _set_back(control: Control, txn: Txn, watermark: int) -> int:
    """The value in the journal that the watermark below an open transaction was set back to; else the given
    one."""
    control.journal.head()
    noted = [one for one in control.journal.find(str(txn)) if one.event is Event.WATERMARK]
    return int(noted[-1].detail["to"]) if noted else watermark


def attempts_at(pipeline: Pipeline, binding: Binding) -> list[Evidence]:
    """The evidence on a transaction (`attempts_of`)."""
    return attempts_of(pipeline, (binding,))[binding.txn]


def attempts_of(pipeline: Pipeline, bindings: Sequence[Binding]) -> dict[Txn, list[Evidence]]:
    """The evidence on each transaction, in order: all of its own run's, and other runs' among the last
    attempts on record."""
    ledger = pipeline.control.attempts
    upper = ledger.head().upper
    recent = ledger.read(max(TXN_FIRST, upper - ATTEMPTS_LOOKED_AT), upper)
    own = [one for name in {binding.owner.identity for binding in bindings} for one in ledger.find(name)]
    found: dict[Txn, list[Evidence]] = {binding.txn: [] for binding in bindings}
    for _, one in sorted({one.number: one for one in (*own, *recent)}.items()):
        if one.txn in found:
            found[one.txn].append(one)
    return found


def note(
    pipeline: Pipeline, event: Event, *, txn: Txn, token: WriterToken, detail: Mapping[str, str]
) -> None:
    """Add an event to the journal, exactly once, even when the first reply was lost."""
    note_all(pipeline, event, txns=(txn,), token=token, detail=detail)


def note_all(
    pipeline: Pipeline, event: Event, *, txns: Sequence[Txn], token: WriterToken, detail: Mapping[str, str]
) -> None:
    """Add the same event for several transactions to the journal, by one commit, exactly once."""
    journal = pipeline.control.journal
    first_upper: Txn | None = None

    def decide(head: Head) -> Put[JournalEntry, None] | None:
        nonlocal first_upper
        first_upper = head.upper if first_upper is None else first_upper
        # Only entries since our first try can be ours; the same event may have been noted before.
        noted = any(
            entry.event is event and entry.token == token and entry.number >= first_upper
            for entry in journal.find(str(txns[0]))
        )
        return decide_note(head=head, txns=txns, event=event, token=token, detail=detail, noted=noted)

    settle(journal, decide, what=f"the journal's note on transaction {txns[0]}")
