"""Replay: read a transaction's recorded input again and prove what was written. Writes no data."""

from __future__ import annotations

from tidemark.core.binding import Binding
from tidemark.core.ids import Txn
from tidemark.core.journal import Event
from tidemark.core.replay import Finding, ReplayStep, Verdict, judge_replay, plan_replay
from tidemark.core.seal import Seal
from tidemark.pipeline.context import Attempt, Pipeline, note


def replay_plan(pipeline: Pipeline, *, txn_from: Txn, txn_to: Txn) -> tuple[ReplayStep, ...]:
    """The steps of a replay, at the boundaries that the bindings recorded."""
    pipeline.control.bindings.head()
    sealed_upper = pipeline.control.seals.head().upper
    bindings = [
        record
        for record in pipeline.control.bindings.read(txn_from, txn_to + 1)
        if isinstance(record, Binding)
    ]
    seals = pipeline.control.seals.read(txn_from, min(txn_to + 1, sealed_upper))
    return plan_replay(txn_from=txn_from, txn_to=txn_to, bindings=bindings, seals=seals)


def verify(pipeline: Pipeline, attempt: Attempt, binding: Binding, seal: Seal) -> Finding:
    """Judge one sealed transaction against its input as it is now, and note the verdict."""
    gone = pipeline.source.inspect(binding)
    if gone:
        finding = Finding(binding.txn, Verdict.INPUT_GONE, why=gone)
    else:
        finding = judge_replay(seal, pipeline.plane.replay(binding))
    detail = {"verdict": str(finding.verdict), "finding": str(finding), "run": attempt.owner.run_id}
    note(pipeline, Event.VERIFIED, txn=finding.txn, token=attempt.token, detail=detail)
    return finding
