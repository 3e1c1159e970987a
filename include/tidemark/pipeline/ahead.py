"""Staging ahead: the next transaction of a backlog is staged while the one before is validated and committed.

Spark's work on a transaction and the control plane's work on the one before have nothing to wait for in each
other: parts are invisible until their seal, and the seals still come in order, each after its own gate. Only
the thread that stages is new, and it touches the data plane alone; every ledger stays with its one thread.

Restriction: a transaction's watermark is final once the one before is sealed, so where records can be too
late nothing is staged ahead.
"""

from __future__ import annotations

from concurrent.futures import Executor, Future
from types import TracebackType

from tidemark.core.ids import Txn
from tidemark.core.seal import Staged
from tidemark.core.shape import NewColumns
from tidemark.pipeline.context import Attempt, Pipeline, binding_at, stage_open
from tidemark.pipeline.fit import configuration_of, fits


class Ahead:
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

    def __enter__(self) -> Ahead:
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
