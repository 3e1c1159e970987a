"""Recover: bring a history and logs forward that have lost commits (`core.history`, Invariant 16).

`plan` only reads. `recover` first makes the plan durable by one put in the history: an epoch, and the
bindings of the lost transactions. From then on every step is one of a run's own conditional commits, in
order. Bound transactions whose seals are lost are read again, compared with the rows that logs have of
them, and sealed with the link that is proven for them. Transactions without a binding are sealed as lost.
Logs append what is sealed. Any later recovery continues one that died; of two concurrent ones, one begins
it.

A recovery never truncates, overwrites, deletes or acknowledges anything, and uses no clock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast

from tidemark.core.binding import Binding, Step
from tidemark.core.checksum import Digest, shard_endpoint
from tidemark.core.errors import Determinate, InvariantViolation
from tidemark.core.history import (
    BOUND,
    SEALED,
    CopiedWarehouse,
    Forked,
    Overtaken,
    Plan,
    Recovery,
    Witness,
    decide_recovery,
    lost_of,
    plan_recovery,
)
from tidemark.core.ids import TXN_FIRST, Frontier, ShardId, Txn
from tidemark.core.lease import Lease
from tidemark.core.ledger import UPPER, Event, Head, JournalEntry, Put
from tidemark.core.log import LogEntry, Paused, begins_at
from tidemark.core.maintenance import covering
from tidemark.core.publish import VERSION_NONE
from tidemark.core.seal import Part, Seal, ShardParts, Staged, skip_of, touch_mark
from tidemark.pipeline.context import (
    Attempt,
    Pipeline,
    binding_at,
    last_binding,
    note_all,
    settle,
    watermark_below,
)
from tidemark.pipeline.history import newest_recovery, require_home
from tidemark.pipeline.ingest import Progress, gather_open, no_progress
from tidemark.pipeline.run import finish
from tidemark.pipeline.upsert import bring_up_log, commit_staged, put_seal
from tidemark.pipeline.validate import open_case
from tidemark.ports.control import Control, Ledger
from tidemark.ports.source import BindsNothing

LOOKS_MAX: Final = 20
_OF_BOUND: Final = frozenset(
    {
        Event.JUDGED,
        Event.LOST,
        Event.VERIFIED,
        Event.ACCEPTED,
        Event.SKIPPED,
        Event.RELEASED,
        Event.REPAIRED,
    }
)
"""Events of the journal that only bound transactions have."""


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """The work of a recovery. `logs` are the sealed transactions that logs lack, `damaged` those of them
    whose parts are gone. `resumes` is set when an epoch was begun for this work and is not finished. `copied`
    says that the warehouse is a copy that is not adopted; else it is empty."""

    epoch: int
    plan: Plan
    logs: Mapping[ShardId, tuple[Txn, ...]] = field(default_factory=dict)
    damaged: Mapping[ShardId, tuple[Txn, ...]] = field(default_factory=dict)
    resumes: bool = False
    copied: str = ""

    @property
    def is_needed(self) -> bool:
        return self.plan.is_needed or self.resumes or bool(self.logs) or bool(self.copied)


@dataclass(frozen=True, slots=True)
class Recovered:
    """The result of a recovery: the current epoch, and whether this recovery began it; the transactions that
    were decided again, the lost ones with the reasons, the transactions that the logs have appended, and
    those that they can't append because parts are gone."""

    epoch: int
    began: bool = False
    again: tuple[Txn, ...] = ()
    lost: Mapping[Txn, str] = field(default_factory=dict)
    appended: Mapping[ShardId, tuple[Txn, ...]] = field(default_factory=dict)
    damaged: Mapping[ShardId, tuple[Txn, ...]] = field(default_factory=dict)

    @property
    def changed(self) -> bool:
        """Whether there was anything to do."""
        return self.began or bool(self.again or self.lost or self.appended)


def witnesses(pipeline: Pipeline) -> list[Witness]:
    """Everything outside the history that names a transaction."""
    control = pipeline.control
    upper = control.checkpoints.head().upper
    newest = control.checkpoints.read(upper - 1, upper)
    found = [Witness("the newest checkpoint", one.txn, one.link) for one in newest]
    found += [
        Witness(f"the newest checkpoint's mark of shard {shard}", Txn(mark.upper - 1), decided=True)
        for one in newest
        for shard, mark in one.tables.items()
    ]
    upper = control.cuts.head().upper
    found += [Witness("the newest cut", one.txn, one.link) for one in control.cuts.read(upper - 1, upper)]
    for shard in control.shards():
        head = control.log(shard).head()
        found.append(Witness(f"the log of shard {shard}", Txn(head.upper - 1), head.link))
        found += _published(control, shard)
    found += _leased(control)
    upper = control.journal.head().upper
    noted = [one for one in control.journal.read(TXN_FIRST, upper) if one.event in _OF_BOUND]
    found += [Witness("the journal", max(one.txn for one in noted))] if noted else []
    upper = control.attempts.head().upper
    tried = control.attempts.read(TXN_FIRST, upper)
    found += [Witness("an attempt on record", max(one.txn for one in tried))] if tried else []
    staged = pipeline.plane.attempts()
    found += [Witness("a part on disk", max(txn for txn, _ in staged))] if staged else []
    return [one for one in found if one.txn >= TXN_FIRST]


def _published(control: Control, shard: ShardId) -> Iterator[Witness]:
    publishes = control.publishes(shard)
    upper = publishes.head().upper
    last = next(iter(publishes.read(upper - 1, upper)), None)
    if last is not None:
        yield Witness(f"a publish of shard {shard}", last.txn, last.commit.link)
    newest = control.state_commit(shard, after=last.version if last is not None else VERSION_NONE)
    if newest is not None:
        yield Witness(f"the state of shard {shard}", newest.txn, newest.link)


def _leased(control: Control) -> Iterator[Witness]:
    """What consumers have confirmed, and the batches that they got last and may have processed."""
    records = control.leases.read(TXN_FIRST, control.leases.head().upper)
    last = {one.name: one for one in records if isinstance(one, Lease)}
    for one in last.values():
        if one.link:
            yield Witness(f"consumer {one.name}", Txn(one.txn - 1), one.link)
        if one.planned > one.txn:
            yield Witness(f"a batch of consumer {one.name}", Txn(one.planned - 1), decided=True)


def plan(pipeline: Pipeline) -> RecoveryPlan:
    """The work of a recovery now. Writes nothing. Concurrent runs are no loss: where the history has moved,
    everything is read again."""
    head = pipeline.control.recoveries.head()
    for _ in range(LOOKS_MAX):
        found, before = _planned(pipeline, head), head
        head = pipeline.control.recoveries.head()
        if head.version == before.version:
            return replace(found, copied=_copied(pipeline.control))
    raise Determinate(f"the history has moved {LOOKS_MAX} times meanwhile", hint="stop the runs, and retry")


def _planned(pipeline: Pipeline, head: Head) -> RecoveryPlan:
    """The plan by the loaded version of the history, which has this head."""
    control = pipeline.control
    sealed_upper, bound_upper = _uppers(control)
    try:
        made = _compared(pipeline, sealed_upper=sealed_upper, bound_upper=bound_upper)
    except Forked:
        # The loaded version of a log may have been an old one, so look twice; a fork stays.
        made = _compared(pipeline, sealed_upper=sealed_upper, bound_upper=bound_upper)
    recovery = newest_recovery(control)
    resumes = recovery is not None and sealed_upper <= recovery.ends and _covers(recovery, made)
    logs, damaged = _behind(pipeline, sealed_upper)
    return RecoveryPlan(head.epoch, made, logs, damaged, resumes)


def _copied(control: Control) -> str:
    try:
        require_home(control)
    except CopiedWarehouse as copied:
        return copied.fact
    return ""


def _compared(pipeline: Pipeline, *, sealed_upper: Txn, bound_upper: Txn) -> Plan:
    found, seals = witnesses(pipeline), pipeline.control.seals
    named = sorted({one.txn for one in found if one.link is not None and one.txn < sealed_upper})
    links = {seal.txn: seal.link for txn in named for seal in seals.read(txn, txn + 1)}
    return plan_recovery(sealed_upper=sealed_upper, bound_upper=bound_upper, witnesses=found, links=links)


def _covers(recovery: Recovery, made: Plan) -> bool:
    """Whether a recovery that was begun includes every loss that is found now."""
    known = made.proven.items() <= recovery.proven.items() and made.decided <= recovery.ends
    return known and not made.lost


def _uppers(control: Control) -> tuple[Txn, Txn]:
    """The uppers of the seals and of the bindings, at the history's loaded version."""
    sealed, bound = (control.recoveries.mark(name) or TXN_FIRST for name in (SEALED, BOUND))
    return Txn(sealed), Txn(bound)


def _behind(
    pipeline: Pipeline, sealed_upper: Txn
) -> tuple[dict[ShardId, tuple[Txn, ...]], dict[ShardId, tuple[Txn, ...]]]:
    """The sealed transactions that each log lacks, up to the first that its gate holds, and those of them
    whose parts are gone."""
    control = pipeline.control
    logs: dict[ShardId, tuple[Txn, ...]] = {}
    damaged: dict[ShardId, tuple[Txn, ...]] = {}
    for shard, upper in _lagging(control):
        lacking: list[Seal] = []
        for seal in control.seals.read(upper, sealed_upper):
            if not seal.touches(shard):
                continue
            if seal.shards[shard].held and not _was_released(control, seal.txn, shard):
                break
            lacking.append(seal)
        gone = [one.txn for one in lacking if pipeline.plane.damaged(shard, one.shards[shard].parts)]
        logs |= {shard: tuple(one.txn for one in lacking)} if lacking else {}
        damaged |= {shard: tuple(gone)} if gone else {}
    return logs, damaged


def _lagging(control: Control) -> Iterator[tuple[ShardId, Txn]]:
    """The shards whose logs end before the transaction that touched them last, with the logs' uppers."""
    for shard in control.shards():
        upper = control.log(shard).head().upper
        if upper <= control.seals.mark(touch_mark(shard)):
            yield shard, upper


def _was_released(control: Control, txn: Txn, shard: ShardId) -> bool:
    noted = _noted(control, txn, Event.RELEASED)
    return any(one.detail.get("shard") == shard for one in noted)


def _noted(control: Control, txn: Txn, *events: Event) -> list[JournalEntry]:
    control.journal.head()
    return [one for one in control.journal.find(str(txn)) if one.event in events]


def recover(
    pipeline: Pipeline,
    attempt: Attempt,
    *,
    restored: bool = False,
    adopt: bool = False,
    progress: Progress = no_progress,
) -> Recovered:
    """Bring everything forward. `restored` begins an epoch also where nothing shows a loss: after everything
    was restored from one copy, only systems outside the warehouse could show it. `adopt` lets a copied
    warehouse go on at its address, in a new epoch; without it a copy raises `CopiedWarehouse`."""
    control = pipeline.control
    if not adopt:
        require_home(control)
    found = plan(pipeline)
    adopted = control.address if found.copied else ""
    # Logs first: the next seal checks that they have everything that is sealed.
    appended = _bring_up(pipeline, without=found.damaged)
    if restored or adopted or (found.plan.is_needed and not found.resumes):
        _begin(pipeline, attempt, found.epoch, restored=restored, adopted=adopted)
    control.recoveries.head()
    recovery = newest_recovery(control)
    again: list[Txn] = []
    lost: dict[Txn, str] = {}
    while recovery is not None and (txn := control.seals.head().upper) <= recovery.ends:
        why = _decide_again(pipeline, attempt, txn, recovery, progress)
        if why:
            lost[txn] = why
        else:
            again.append(txn)
        appended += _bring_up(pipeline, without=found.damaged)
    epoch = control.recoveries.head().epoch
    if again or lost:
        detail = {"epoch": str(epoch), "run": attempt.owner.run_id}
        txns = tuple(sorted([*again, *lost]))
        note_all(pipeline, Event.RECOVERED, txns=txns, token=attempt.token, detail=detail)
    logs: dict[ShardId, tuple[Txn, ...]] = {}
    for shard, txns in appended:
        logs[shard] = (*logs.get(shard, ()), *txns)
    began = epoch > found.epoch
    return Recovered(epoch, began, tuple(again), lost, logs, found.damaged)


def _begin(pipeline: Pipeline, attempt: Attempt, epoch: int, *, restored: bool, adopted: str) -> None:
    """Raise the epoch, bind the lost transactions and adopt an address, by one put. `Determinate` where
    another recovery was first. Puts nothing where the history is no longer behind."""
    control, token = pipeline.control, attempt.token

    def decide(head: Head) -> Put[Any, Any] | Recovery | Overtaken | None:
        before = newest_recovery(control)
        if before is not None and before.token == token:
            return before  # Its reply was lost.
        made = _planned(pipeline, head).plan
        if head.epoch == epoch and not made.is_needed and not restored and not adopted:
            return None
        bound = last_binding(pipeline, Head(head.version, {UPPER: _uppers(control)[1]}))
        return decide_recovery(
            head=head,
            epoch=epoch,
            before=before,
            plan=replace(made, adopted=adopted),
            token=token,
            last=bound,
            nothing=_nothing_after(pipeline, bound),
            configuration=bound.configuration if bound is not None else pipeline.configuration,
        )

    ledger = cast("Ledger[Recovery | Binding]", control.recoveries)
    outcome = settle(ledger, decide, what="the beginning of a recovery")
    if isinstance(outcome, Overtaken):
        raise Determinate(
            f"another recovery has begun epoch {outcome.epoch} meanwhile",
            hint="wait for it; if its process died, `tidemark recover PIPELINE --yes` resumes it",
        )


def _nothing_after(pipeline: Pipeline, last: Binding | None) -> Step:
    if isinstance(pipeline.source, BindsNothing):
        return pipeline.source.nothing_after(last, lost=True)
    return Step(last.upper if last is not None else Frontier())


def _decide_again(
    pipeline: Pipeline, attempt: Attempt, txn: Txn, recovery: Recovery, progress: Progress
) -> str:
    """Decide the next transaction of a recovery; returns why it is lost, empty when it is not."""
    binding = binding_at(pipeline, txn)
    if binding.lost:
        return _put_lost(pipeline, attempt, binding, f"its binding is lost (epoch {recovery.number})")
    if not recovery.was_decided(txn):
        finish(pipeline, attempt, txn, progress=progress)
        return ""
    if binding.promotes:
        _require_not_replaced(pipeline, txn)
        why = f"its decision is lost, and generation {binding.promotes} can only be promoted again"
        return _put_lost(pipeline, attempt, binding, why)
    overruled = _noted(pipeline.control, txn, Event.SKIPPED, Event.ACCEPTED)
    reason = overruled[-1].detail.get("reason", "") if overruled else ""
    if overruled and overruled[-1].event is Event.SKIPPED:
        watermark = watermark_below(pipeline.control, txn)
        skip = skip_of(
            txn,
            token=overruled[-1].token,
            generation=pipeline.generation,
            reason=reason,
            binding=binding.link,
            watermark=watermark,
        )
        put_seal(pipeline, skip)
        return ""
    evidence = gather_open(pipeline, attempt, txn, progress=progress)
    if evidence is None:
        return ""  # Another process was first.
    if evidence.staged is None:
        return _put_lost(pipeline, attempt, binding, f"its decision is lost, and its input: {evidence.gone}")
    progress(txn, "validate")
    gated = open_case(pipeline, attempt, evidence).gated
    same = _as_logged(pipeline, evidence.staged)
    if same is None:
        why = "its decision is lost, and its input now yields other rows than the logs have"
        return _put_lost(pipeline, attempt, binding, why)
    progress(txn, "upsert")
    commit_staged(pipeline, attempt, same, gated, reason=reason)
    return ""


def _require_not_replaced(pipeline: Pipeline, txn: Txn) -> None:
    """`InvariantViolation` where a log was begun anew by a promotion whose decision is lost: without it, the
    settings in charge are those from before, and don't fit the log."""
    control = pipeline.control
    replaced = [shard for shard in control.shards() if begins_at(control.log(shard).head()) == txn]
    if replaced:
        raise InvariantViolation(
            f"transaction {txn} has replaced shard {', '.join(replaced)}, and its decision is lost",
            hint="restore `_control/history` from a newer copy; nothing was decided",
        )


def _as_logged(pipeline: Pipeline, staged: Staged) -> Staged | None:
    """The staged work, with its parts replaced by those that logs already have of the transaction; None where
    the logs have other rows."""
    control, shards = pipeline.control, dict(staged.shards)
    moved: dict[ShardId, list[Part]] = {}
    for shard in control.shards():
        log = control.log(shard)
        if log.head().upper <= staged.txn:
            continue
        files = [file.part for file in covering(log.files(), staged.txn)]
        entry = next(iter(log.read(staged.txn, staged.txn + 1)), None)
        if shard not in shards or not shards[shard].parts:
            if entry is not None:
                return None
            continue
        moved[shard] = files
        if entry is not None and sum(part.rows for part in entry.parts) == shards[shard].digest.count:
            shards[shard] = replace(shards[shard], parts=entry.parts)
    compared = replace(staged, shards={shard: staged.shards[shard] for shard in moved})
    found = pipeline.plane.read_back(compared, moved=moved) if moved else {}
    if any(found[shard_endpoint(shard)] != staged.shards[shard].digest for shard in moved):
        return None
    return replace(staged, shards=shards)


def _put_lost(pipeline: Pipeline, attempt: Attempt, binding: Binding, why: str) -> str:
    """Seal a transaction as lost, with the rows that logs have of it."""
    control, txn = pipeline.control, binding.txn
    entries: dict[ShardId, LogEntry] = {}
    for shard in control.shards():
        log = control.log(shard)
        if log.head().upper > txn:
            entries.update((shard, one) for one in log.read(txn, txn + 1))
    # The parts' own token, so that a sweep does not delete them.
    token = next((one.token for one in entries.values()), attempt.token)
    kept = {shard: _counted(one) for shard, one in entries.items()}
    whole = {shard: one for shard, one in kept.items() if not pipeline.plane.damaged(shard, one.parts)}
    found = pipeline.plane.read_back(Staged(txn, token, Digest(), whole, "")) if whole else {}
    kept |= {shard: replace(one, digest=found[shard_endpoint(shard)]) for shard, one in whole.items()}
    rows = ", ".join(f"{shard} has {one.digest.count} rows of it" for shard, one in kept.items())
    reason = f"{why}; {rows or 'no log has rows of it'}"
    seal = lost_of(
        binding,
        token=token,
        generation=pipeline.generation,
        reason=reason,
        shards=kept,
        watermark=watermark_below(control, txn),
    )
    put_seal(pipeline, seal)
    return reason


def _counted(entry: LogEntry) -> ShardParts:
    """The parts of a log's entry, with a digest that has only the number of rows."""
    return ShardParts(entry.parts, Digest(sum(part.rows for part in entry.parts)))


def _bring_up(pipeline: Pipeline, *, without: Collection[ShardId]) -> list[tuple[ShardId, tuple[Txn, ...]]]:
    """Append what is sealed to the logs, also where a log was set back below a released transaction."""
    appended: list[tuple[ShardId, tuple[Txn, ...]]] = []
    pipeline.control.seals.head()
    for shard, upper in list(_lagging(pipeline.control)):
        if shard in without:
            continue
        report = bring_up_log(pipeline, shard, lower=upper)
        appended.append((shard, report.appended))
        while isinstance(report.end, Paused) and _was_released(pipeline.control, report.end.txn, shard):
            report = bring_up_log(pipeline, shard, lower=upper, release=report.end.txn)
            appended.append((shard, report.appended))
    return [(shard, txns) for shard, txns in appended if txns]
