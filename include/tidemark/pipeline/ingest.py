"""What can't be staged however often it is tried, in the journal, for who did not watch the run.

A schedule tries it again and again, so a reason is noted once until another one takes its place. A note has
no values of rows: an error knows what of itself may be kept (`TidemarkError.kept`).

Ingest: stage the parts of one open transaction.

The seals' upper is read right here, not at the start of the run: a transaction that someone has
sealed meanwhile is dropped before it costs anything, and one whose lower neighbours are open is
not begun (Invariant 3). Staging twice is waste, not danger: the seal decides.

Staging ahead: the next transaction of a backlog is staged while the one before is validated and committed.

Spark's work on a transaction and the control plane's work on the one before have nothing to wait for in each
other: parts are invisible until their seal, and the seals still come in order, each after its own gate. Only
the thread that stages is new, and it touches the data plane alone; every ledger stays with its one thread.

Restriction: a transaction's watermark is final once the one before is sealed, so where records can be too
late nothing is staged ahead.
"""

from __future__ import annotations

from concurrent.futures import Executor, Future
from contextlib import suppress
from types import TracebackType
from typing import Final

from tidemark.core.errors import InvalidUsage, TidemarkError
from tidemark.core.ids import Txn
from tidemark.core.journal import Event
from tidemark.core.replay import InputGone
from tidemark.core.seal import Lost, Staged, TooEarly
from tidemark.core.shape import NewColumns
from tidemark.core.shard import UpperRelation, classify
from tidemark.pipeline.context import Attempt, Pipeline, binding_at, note, seal_at, stage_open
from tidemark.pipeline.schema_change import configuration_of, fits, require_shapes, stage_growing

_WHY: Final = "why"


def note_rejection(pipeline: Pipeline, attempt: Attempt, txn: Txn, error: Exception) -> None:
    """Note why a transaction was refused, unless a retry may help or somebody has decided it. A journal that
    can't be written must not hide the error itself."""
    if not isinstance(error, InvalidUsage):
        return
    with suppress(TidemarkError, OSError):
        if upper_relation(pipeline, txn) is UpperRelation.AT and rejection_of(pipeline, txn) != error.kept:
            note(pipeline, Event.REFUSED, txn=txn, token=attempt.token, detail={_WHY: error.kept})


def rejection_of(pipeline: Pipeline, txn: Txn) -> str:
    """Why an open transaction was refused the last time; empty when it was not."""
    journal = pipeline.control.journal
    journal.head()
    found = [entry.detail[_WHY] for entry in journal.find(str(txn)) if entry.event is Event.REFUSED]
    return found[-1] if found else ""


def upper_relation(pipeline: Pipeline, txn: Txn) -> UpperRelation:
    """Where the transaction stands against the seals, read now."""
    return classify(txn, pipeline.control.seals.head().upper)


def ingest(pipeline: Pipeline, attempt: Attempt, txn: Txn) -> Staged | Lost | TooEarly:
    """Stage one transaction, unless it is decided or not yet its turn."""
    match upper_relation(pipeline, txn):
        case UpperRelation.BELOW:
            return Lost(seal_at(pipeline, txn))
        case UpperRelation.ABOVE:
            return TooEarly(pipeline.control.seals.head().upper)
        case UpperRelation.AT:
            binding = binding_at(pipeline, txn)
            require_shapes(pipeline, configuration_of(pipeline, binding))
            gone = pipeline.source.inspect(binding)
            if gone:
                raise InputGone(txn, what=gone)
            return stage_growing(pipeline, binding, attempt.token)


class Prefetch:
    """What one run has staged ahead: at most one transaction. Without an executor, none."""

    def __init__(self, pipeline: Pipeline, attempt: Attempt, background: Executor | None) -> None:
        self._pipeline, self._attempt, self._background = pipeline, attempt, background
        self._begun: tuple[Txn, Future[Staged]] | None = None

    def begin(self, txn: Txn | None, *, after: Staged) -> None:
        """Begin to stage a transaction beside the work on the one before it.

        One whose input is gone, or whose settings don't fit, is left alone: its own turn says so."""
        if self._background is None or txn is None or after.watermark is not None:
            return
        binding = binding_at(self._pipeline, txn)
        if fits(
            self._pipeline, configuration_of(self._pipeline, binding)
        ) and not self._pipeline.source.inspect(binding):
            staging = self._background.submit(stage_open, self._pipeline, binding, self._attempt.token)
            self._begun = (txn, staging)

    def take(self, txn: Txn) -> Staged | None:
        """The transaction as it was staged ahead, if it was; raises what its staging raised."""
        if self._begun is None or self._begun[0] != txn:
            return None
        (_, staging), self._begun = self._begun, None
        try:
            return staging.result()
        except NewColumns:
            return None  # They go on record when it has its turn.

    def __enter__(self) -> Prefetch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing stays behind of a transaction that was begun and never had its turn. Who is being killed
        leaves that to the sweep."""
        if self._begun is not None and (kind is None or issubclass(kind, Exception)):
            (txn, staging), self._begun = self._begun, None
            if staging.exception() is None:
                self._pipeline.plane.discard(txn, self._attempt.token)
