"""The steps of one transaction, one by one, for tests of attempts that meet in between."""

from __future__ import annotations

from tidemark.core.ids import Txn
from tidemark.core.replay import InputGone, judge
from tidemark.core.seal import Lost, Staged
from tidemark.pipeline.context import Attempt, Pipeline, seal_at
from tidemark.pipeline.ingest import gather_open, measure
from tidemark.pipeline.validate import Case, Gated


def ingest(pipeline: Pipeline, attempt: Attempt, txn: Txn) -> Staged | Lost:
    """The parts that the ingest step stages, or the seal that was there before it."""
    evidence = gather_open(pipeline, attempt, txn)
    if evidence is None:
        return Lost(seal_at(pipeline, txn))
    if evidence.staged is None:
        raise InputGone(txn, what=evidence.gone)
    return evidence.staged


def validate(pipeline: Pipeline, staged: Staged) -> Gated:
    """What the gate says of the parts as they are now."""
    found, opinion = measure(pipeline, staged)
    finding = judge(staged.txn, recorded=staged.digests, found=found)
    return Case(finding, ((staged.txn, staged.digests, found),), staged, opinion).gated
