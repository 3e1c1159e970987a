"""Ingest: stage the parts of one open transaction.

The seals' upper is read right here, not at the start of the run: a transaction that someone has
sealed meanwhile is dropped before it costs anything, and one whose lower neighbours are open is
not begun (Invariant 3). Staging twice is waste, not danger: the seal decides.
"""

from __future__ import annotations

from tidemark.core.ids import Txn
from tidemark.core.replay import InputGone
from tidemark.core.seal import Lost, Staged, TooEarly
from tidemark.core.shard import Standing, classify
from tidemark.pipeline.context import Attempt, Pipeline, binding_at, seal_at
from tidemark.pipeline.fit import configuration_of, require_shapes
from tidemark.pipeline.growth import stage_growing


def standing(pipeline: Pipeline, txn: Txn) -> Standing:
    """Where the transaction stands against the seals, read now."""
    return classify(txn, pipeline.control.seals.head().upper)


def ingest(pipeline: Pipeline, attempt: Attempt, txn: Txn) -> Staged | Lost | TooEarly:
    """Stage one transaction, unless it is decided or not yet its turn."""
    match standing(pipeline, txn):
        case Standing.BELOW:
            return Lost(seal_at(pipeline, txn))
        case Standing.ABOVE:
            return TooEarly(pipeline.control.seals.head().upper)
        case Standing.AT:
            binding = binding_at(pipeline, txn)
            require_shapes(pipeline, configuration_of(pipeline, binding))
            gone = pipeline.source.inspect(binding)
            if gone:
                raise InputGone(txn, what=gone)
            return stage_growing(pipeline, binding, attempt.token)
