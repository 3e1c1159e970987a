"""Mutants: old mistakes of trusted systems, made again by substituting one decision each.

The product has no switch for them; a mutant patches the decision for the length of a test. Each
must make the simulation fail, or the simulation would not notice the real mistake either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import greenlet

from tidemark.core import checkpoint, log
from tidemark.core.checkpoint import Acknowledged, FlushPosition
from tidemark.core.ids import ShardId
from tidemark.core.ledger import Committed, Put
from tidemark.core.log import Appended, UpperMismatch
from tidemark.core.replay import Finding, Verdict
from tidemark.core.seal import Lost, Sealed
from tidemark.pipeline import ingest, upsert


@contextmanager
def restash_below_upper() -> Iterator[None]:
    """Keep what is below the upper and try it again, until it fits: which is never."""
    put_entry = upsert.put_entry

    def insist(*args: Any, **kwargs: Any) -> Any:
        while True:
            outcome = put_entry(*args, **kwargs)
            if isinstance(outcome, Appended):
                return outcome

    with patch.object(upsert, "put_entry", insist):
        yield


@contextmanager
def upper_read_once() -> Iterator[None]:
    """Decide on the head that was read at the start, and commit that whatever has happened since."""

    def settle_once(ledger: Any, decide: Callable[..., Any], *, what: str) -> Any:
        decision = decide(ledger.head())
        while isinstance(decision, Put):
            head = ledger.head()
            marks = {name: max(value, head.marks.get(name, 0)) for name, value in decision.marks.items()}
            if isinstance(ledger.commit(head, replace(decision, marks=marks)), Committed):
                return decision.result
        return decision

    with patch.object(upsert, "settle", settle_once):
        yield


@contextmanager
def append_decides_without_a_seal() -> Iterator[None]:
    """Each attempt appends its own parts, whoever has won the seal."""
    mine: dict[tuple[object, int], Any] = {}
    commit_staged, entry_of = upsert.commit_staged, log.entry_of

    def remember(pipeline: Any, attempt: Any, staged: Any, finding: Any, **kwargs: Any) -> Any:
        mine[(greenlet.getcurrent(), staged.txn)] = upsert.seal_of(staged, generation=0, held={})
        outcome = commit_staged(pipeline, attempt, staged, finding, **kwargs)
        return Sealed(outcome.winner) if isinstance(outcome, Lost) else outcome

    def own_entry(seal: Any, shard_id: ShardId) -> Any:
        own = mine.get((greenlet.getcurrent(), seal.txn), seal)
        return entry_of(own if own.touches(shard_id) else seal, shard_id)

    with (
        patch.object(upsert, "commit_staged", remember),
        patch.object(log, "entry_of", own_entry),
        patch.object(upsert, "drop_lost", lambda *args: None),
    ):
        yield


@contextmanager
def delete_own_parts_after_losing_an_append() -> Iterator[None]:
    """Take a lost append for a lost transaction, and clean up what is in everybody's table."""
    put_entry = upsert.put_entry

    def tidy_up(pipeline: Any, shard_id: ShardId, **kwargs: Any) -> Any:
        outcome = put_entry(pipeline, shard_id, **kwargs)
        if isinstance(outcome, UpperMismatch):
            pipeline.plane.discard(kwargs["entry"].txn, kwargs["entry"].token)
        return outcome

    with patch.object(upsert, "put_entry", tidy_up):
        yield


@contextmanager
def flushes_reported_before_the_commit_fragment() -> Iterator[None]:
    """Take a shard's flush for the flush of the whole source transaction it stands in."""

    class Eager(checkpoint.FlushTracker):
        def flushed(
            self, shard: ShardId, position: FlushPosition, *, now_seconds: float
        ) -> Acknowledged | None:
            report = super().flushed(shard, position, now_seconds=now_seconds)
            return report if self.lagging() else Acknowledged(position.txn, position)

    with patch.object(checkpoint, "FlushTracker", Eager):
        yield


@contextmanager
def replay_commits_at_batch_ends() -> Iterator[None]:
    """Read on to the end of what is there, instead of to the recorded boundary."""
    sealed_binding = ingest.sealed_binding

    def too_far(pipeline: Any, seal: Any) -> Any:
        bindings = pipeline.control.bindings
        found = bindings.read(1, bindings.head().upper)
        end = found[-1].upper
        return replace(sealed_binding(pipeline, seal), upper=end)

    with patch.object(ingest, "sealed_binding", too_far):
        yield


@contextmanager
def skipped_append_trusted_without_comparing() -> Iterator[None]:
    """Someone else has sealed this number, so it must be the same data."""

    def trust(seal: Any, staged: Any) -> Finding:
        return Finding(seal.txn, Verdict.IDENTICAL)

    with patch.object(upsert, "judge_loser", trust):
        yield


MUTANTS = (
    restash_below_upper,
    upper_read_once,
    append_decides_without_a_seal,
    delete_own_parts_after_losing_an_append,
    flushes_reported_before_the_commit_fragment,
    replay_commits_at_batch_ends,
    skipped_append_trusted_without_comparing,
)
