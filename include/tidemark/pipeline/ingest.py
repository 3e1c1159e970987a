"""Ingest: stage the parts of open transactions, and measure them while the data plane is there.

The seals' upper is read right before a transaction is staged, not at the start of the run, so a transaction
that was sealed meanwhile is dropped before it costs anything (Invariant 3). Staging twice wastes work and
does no harm: the seal decides. After the parts are written they are read back, and the user's expectations
are checked on them. A proof reads the recorded input and the sealed parts again. The results go on record
as evidence, from which the validate step judges without a data plane.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from types import TracebackType
from typing import Any, Final

from tidemark.core.binding import Binding
from tidemark.core.checksum import Digests
from tidemark.core.errors import InvalidUsage, TidemarkError
from tidemark.core.ids import Txn
from tidemark.core.ledger import Event, Head, Put
from tidemark.core.log import UpperRelation, classify
from tidemark.core.replay import judge, judge_replay, judge_skipped
from tidemark.core.seal import Decision, Evidence, Opinion, Seal, Staged, decide_evidence, newest_of
from tidemark.core.shape import NewColumns
from tidemark.pipeline.context import (
    Attempt,
    Pipeline,
    binding_at,
    follows_watermark,
    note,
    seal_at,
    sealed_binding,
    settle,
    stage_open,
)
from tidemark.pipeline.reclock import known_plan
from tidemark.pipeline.replay import as_sealed, read_sealed
from tidemark.pipeline.schema_change import configuration_of, fits, require_shapes, stage_growing

Progress = Callable[[Txn, str], None]
"""Called with a transaction and the phase that it enters, to show progress."""

_WHY: Final = "why"


def no_progress(txn: Txn, phase: str) -> None:
    """No-op progress callback."""


def upper_relation(pipeline: Pipeline, txn: Txn) -> UpperRelation:
    """The transaction's relation to the seals' upper, which is read now."""
    return classify(txn, pipeline.control.seals.head().upper)


def found_by(pipeline: Pipeline, attempt: Attempt) -> Sequence[Evidence]:
    """All evidence under the run's identity so far, in order."""
    pipeline.control.attempts.head()
    return pipeline.control.attempts.find(attempt.owner.identity)


def keep(pipeline: Pipeline, evidence: Evidence) -> None:
    """Put the evidence on record, exactly once, even when the first reply was lost."""
    attempts = pipeline.control.attempts
    first_upper: Txn | None = None

    def decide(head: Head) -> Put[Evidence, None] | None:
        nonlocal first_upper
        first_upper = head.upper if first_upper is None else first_upper
        return decide_evidence(head=head, found=attempts.read(first_upper, head.upper), new=evidence)

    settle(attempts, decide, what=f"the evidence on transaction {evidence.txn}")


def is_usable(pipeline: Pipeline, binding: Binding, evidence: Evidence | None) -> bool:
    """Whether an earlier try's work can be used: its files are still there, and they were made with a
    configuration that fits and from the watermark that they will follow."""
    if evidence is None or evidence.staged is None:
        return False
    staged = evidence.staged
    if evidence.replayed:
        return True
    lost = any(pipeline.plane.damaged(name, staged.shards[name].parts) for name in staged.shards)
    is_next = upper_relation(pipeline, staged.txn) is UpperRelation.AT
    if lost or (is_next and not follows_watermark(pipeline.control, staged)):
        return False
    return fits(pipeline, binding.under(staged.configuration).configuration)


def measure(pipeline: Pipeline, staged: Staged) -> tuple[Digests, Opinion]:
    """Read the staged parts back, and check the expectations. Where the rows differ from those written, the
    expectations are not checked."""
    found = pipeline.plane.read_back(staged)
    written = judge(staged.txn, recorded=staged.digests, found=found).passed
    return found, pipeline.gate.opinion(staged) if written else Opinion()


def measured(pipeline: Pipeline, evidence: Evidence, staged: Staged, *, round_min: int) -> Evidence:
    """The evidence with current measurements: its own, unless the run was cleared since, or the pipeline file
    has changed and may declare other expectations."""
    settings = pipeline.configuration.fingerprint
    if evidence.round >= round_min and evidence.settings == settings:
        return evidence
    found, opinion = measure(pipeline, staged)
    return replace(evidence, found=found, opinion=opinion, settings=settings)


def gather_one(
    pipeline: Pipeline,
    attempt: Attempt,
    txn: Txn,
    *,
    replayed: bool,
    found: Sequence[Evidence] | None = None,
    prefetch: Prefetch | None = None,
    progress: Progress = no_progress,
) -> Evidence:
    """The evidence on one transaction: from an earlier try, or made now. `found` is the run's evidence so
    far; without it, it is read now."""
    known = found_by(pipeline, attempt) if found is None else found
    own = [one for one in known if one.owner.is_run_of(attempt.owner)]
    before = newest_of(own, txn, replayed=replayed, round_min=attempt.round)
    if replayed:
        if before is not None and before.staged is not None:
            return before
        return _replayed(pipeline, attempt, seal_at(pipeline, txn), progress)
    binding = binding_at(pipeline, txn)
    if before is None or before.staged is None or not is_usable(pipeline, binding, before):
        return _staged(pipeline, attempt, binding, prefetch, progress)
    made = measured(pipeline, before, before.staged, round_min=attempt.round)
    if made is not before:
        keep(pipeline, made)
    return made


def _replayed(pipeline: Pipeline, attempt: Attempt, seal: Seal, progress: Progress) -> Evidence:
    """Read the input of a sealed transaction again and, where it is unchanged, the sealed parts."""
    progress(seal.txn, "replay")
    if seal.decision is Decision.CORRECTED:
        # A promotion has no input; its parts are what can be proven.
        corrected = as_sealed(seal)
        found = read_sealed(pipeline, seal) if seal.shards else {}
        return _made(pipeline, attempt, seal.txn, replayed=True, staged=corrected, found=found)
    binding = sealed_binding(pipeline, seal)
    gone = pipeline.source.inspect(binding)
    if gone:
        return _made(pipeline, attempt, seal.txn, replayed=True, gone=gone)
    staged = pipeline.plane.replay(binding)
    proves_parts = seal.shards and judge_replay(seal, staged).passed
    found = read_sealed(pipeline, seal) if proves_parts else {}
    return _made(pipeline, attempt, seal.txn, replayed=True, staged=staged, found=found)


def _staged(
    pipeline: Pipeline, attempt: Attempt, binding: Binding, prefetch: Prefetch | None, progress: Progress
) -> Evidence:
    """Stage the parts of an open transaction and measure them. Missing input is evidence too."""
    progress(binding.txn, "ingest")
    require_shapes(pipeline, configuration_of(pipeline, binding))
    gone = pipeline.source.inspect(binding)
    if gone:
        return _made(pipeline, attempt, binding.txn, gone=gone)
    if prefetch is not None:
        staged = prefetch.stage(binding)
    else:
        staged = stage_growing(pipeline, binding, attempt.token)
    progress(binding.txn, "read back")
    found, opinion = measure(pipeline, staged)
    settings = pipeline.configuration.fingerprint
    return _made(
        pipeline, attempt, binding.txn, staged=staged, found=found, opinion=opinion, settings=settings
    )


def _made(pipeline: Pipeline, attempt: Attempt, txn: Txn, **found: Any) -> Evidence:
    """New evidence of this attempt, put on record."""
    evidence = Evidence(0, txn, attempt.owner, attempt.round, attempt.token, **found)
    keep(pipeline, evidence)
    return evidence


def gather_open(
    pipeline: Pipeline,
    attempt: Attempt,
    txn: Txn,
    *,
    found: Sequence[Evidence] | None = None,
    prefetch: Prefetch | None = None,
    progress: Progress = no_progress,
) -> Evidence | None:
    """The evidence on an open transaction; None when another attempt has decided it. A losing attempt's parts
    may be deleted while it writes or reads them: that is a lost race, not an error (Invariant 4). An error of
    an attempt that has not lost is noted, and raised."""
    ahead = prefetch is not None and prefetch.has(txn)
    if not ahead and upper_relation(pipeline, txn) is UpperRelation.BELOW:
        return None
    try:
        return gather_one(
            pipeline, attempt, txn, replayed=False, found=found, prefetch=prefetch, progress=progress
        )
    except (TidemarkError, OSError) as error:
        if upper_relation(pipeline, txn) is UpperRelation.BELOW:
            return None
        note_refusal(pipeline, attempt, txn, error)
        raise


def gather(pipeline: Pipeline, attempt: Attempt, *, progress: Progress = no_progress) -> tuple[Evidence, ...]:
    """Stage every open transaction of the run's plan, and replay those that it has to prove.

    Missing input is evidence too: the gate reports it, and later transactions are not staged. A skipped
    transaction has nothing to prove, and its input may be unreadable."""
    plan = known_plan(pipeline, attempt)
    found = found_by(pipeline, attempt)
    gathered: list[Evidence] = []
    for txn in plan.finish:
        evidence = gather_open(pipeline, attempt, txn, found=found, progress=progress)
        if evidence is None:
            continue
        gathered.append(evidence)
        if evidence.gone:
            break
    proofs = [txn for txn in plan.prove if judge_skipped(seal_at(pipeline, txn)) is None]
    return (
        *gathered,
        *(
            gather_one(pipeline, attempt, txn, replayed=True, found=found, progress=progress)
            for txn in proofs
        ),
    )


# Permanent staging failures. A schedule tries such a transaction again and again, so a reason is noted once
# until another one replaces it. A note has no values of rows: `error.recordable` is the text without them.


def note_refusal(pipeline: Pipeline, attempt: Attempt, txn: Txn, error: Exception) -> None:
    """Note why a transaction was refused, unless a retry may help or the transaction is decided. A journal
    that can't be written must not hide the error itself."""
    if not isinstance(error, InvalidUsage):
        return
    with suppress(TidemarkError, OSError):
        if (
            upper_relation(pipeline, txn) is UpperRelation.AT
            and refusal_of(pipeline, txn) != error.recordable
        ):
            note(pipeline, Event.REFUSED, txn=txn, token=attempt.token, detail={_WHY: error.recordable})


def refusal_of(pipeline: Pipeline, txn: Txn) -> str:
    """The reason of an open transaction's last refusal; empty when there was none."""
    journal = pipeline.control.journal
    journal.head()
    found = [entry.detail[_WHY] for entry in journal.find(str(txn)) if entry.event is Event.REFUSED]
    return found[-1] if found else ""


class Prefetch:
    """Stages the next transaction of a backlog while the one before is measured and committed: at most one
    ahead, and none without an executor.

    The two are independent: parts are invisible until their seal, and the seals still come in order, each
    after its own gate. The staging thread uses the data plane only; all ledgers stay with the main thread.
    Restriction: a transaction's watermark is final once the one before is sealed, so nothing is staged ahead
    where records can be too late."""

    def __init__(
        self, pipeline: Pipeline, attempt: Attempt, txns: Sequence[Txn], background: Executor | None
    ) -> None:
        self._pipeline, self._attempt, self._background = pipeline, attempt, background
        self._following = dict(pairwise(txns))
        self._begun: tuple[Txn, Future[Staged]] | None = None

    def has(self, txn: Txn) -> bool:
        """Whether the transaction is being staged ahead, or was."""
        return self._begun is not None and self._begun[0] == txn

    def stage(self, binding: Binding) -> Staged:
        """The parts of a transaction, staged ahead or staged now. Then begins to stage the following one."""
        staged = self._taken(binding.txn) or stage_growing(self._pipeline, binding, self._attempt.token)
        following = self._following.get(binding.txn)
        if self._background is not None and following is not None and staged.watermark is None:
            self._begin(self._background, binding_at(self._pipeline, following))
        return staged

    def _begin(self, background: Executor, binding: Binding) -> None:
        """Begin to stage a transaction, unless its input is gone or its settings don't fit: that is reported
        when its turn comes."""
        self._drop()
        settings = configuration_of(self._pipeline, binding)
        if fits(self._pipeline, settings) and not self._pipeline.source.inspect(binding):
            staging = background.submit(stage_open, self._pipeline, binding, self._attempt.token)
            self._begun = (binding.txn, staging)

    def _taken(self, txn: Txn) -> Staged | None:
        """The transaction that was staged ahead, or None; raises the error that its staging raised."""
        if self._begun is None or self._begun[0] != txn:
            return None
        (_, staging), self._begun = self._begun, None
        try:
            return staging.result()
        except NewColumns:
            return None  # The columns go on record when its turn comes.

    def __enter__(self) -> Prefetch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Drop what was staged ahead. A process that is being killed leaves its parts to the sweep."""
        if kind is None or issubclass(kind, Exception):
            self._drop()

    def _drop(self) -> None:
        """Remove the parts of a transaction that was staged ahead and not used."""
        if self._begun is not None:
            (txn, staging), self._begun = self._begun, None
            if staging.exception() is None:
                self._pipeline.plane.discard(txn, self._attempt.token)
