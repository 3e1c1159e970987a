"""Reclock: find the run's transactions, or bind new ones, and plan the run's work.

The first attempt of a run binds. Its transactions, or the fact that there were none, belong to the run for
good. The source is asked again whenever something else was bound meanwhile, so an attempt that comes second
adopts what is there and binds only what is still missing (Invariant 1). A pipeline file that does not fit
the warehouse is refused before anything is bound, also where there is nothing new to bind (Invariant 17).
"""

from __future__ import annotations

from collections.abc import Sequence

from tidemark.core.binding import BindingRecord, Owned, Step, decide_mint, owned_in
from tidemark.core.errors import Determinate
from tidemark.core.generation import PromotionOpen, Superseded
from tidemark.core.history import SEALED
from tidemark.core.ids import TXN_FIRST, Txn
from tidemark.core.ledger import Head, Put
from tidemark.core.replay import RunPlan, plan_run
from tidemark.core.seal import is_fenced
from tidemark.pipeline.context import Attempt, Pipeline, last_binding, settle, undecided_promotion
from tidemark.pipeline.history import require_logs
from tidemark.pipeline.schema_change import require_named, require_shapes


def mint(pipeline: Pipeline, attempt: Attempt) -> Owned:
    """The transactions that the run owns: found, or bound now from the steps that the source offers."""
    owned = pipeline.control.owned
    offered: dict[Txn, Sequence[Step]] = {}

    def decide(head: Head) -> Put[BindingRecord, Owned] | Owned:
        found = owned.find(attempt.owner.identity)
        decided = owned_in(found)
        if decided is not None:
            return decided
        require_logs(pipeline.control)
        last = last_binding(pipeline, head)
        sealed_upper = max(TXN_FIRST, owned.mark(SEALED))
        if is_fenced(pipeline.generation, newest=head.generation, sealed_upper=sealed_upper):
            raise Superseded(generation=pipeline.generation, newest=head.generation)
        undecided = undecided_promotion(pipeline.control, last)
        if undecided is not None:
            raise PromotionOpen(undecided)
        require_shapes(pipeline, pipeline.configuration)
        # A conflict with a seal leaves the bindings as they were, so the source's offer is still valid.
        if head.upper not in offered:
            offered[head.upper] = pipeline.source.offer(last)
        # After the source, which may raise a better error: it may have discovered more tables meanwhile.
        require_named(pipeline)
        return decide_mint(
            head=head,
            last=last,
            found=found,
            steps=offered[head.upper],
            owner=attempt.owner,
            configuration=pipeline.configuration,
        )

    return settle(owned, decide, what=f"minting for {attempt.owner.identity}")


def reclock(pipeline: Pipeline, attempt: Attempt) -> RunPlan:
    """The run's work: open transactions to finish, in order, and sealed ones to prove."""
    return _plan(pipeline, attempt, mint(pipeline, attempt))


def known_plan(pipeline: Pipeline, attempt: Attempt) -> RunPlan:
    """The run's remaining work; its transactions were decided when it was reclocked. `Determinate` when it
    was not."""
    owned = _owned(pipeline, attempt)
    if owned is None:
        hint = "retry; if it stays so, clear the reclock task"
        raise Determinate(f"{attempt.owner.identity} was not reclocked yet", hint=hint)
    return _plan(pipeline, attempt, owned)


def _plan(pipeline: Pipeline, attempt: Attempt, owned: Owned) -> RunPlan:
    sealed_upper = pipeline.control.seals.head().upper
    head = pipeline.control.bindings.head()
    undecided = undecided_promotion(pipeline.control, last_binding(pipeline, head))
    # A promotion has no input: whoever promotes decides it, or it is skipped.
    bound_upper = head.upper if undecided is None else undecided.txn
    return plan_run(
        owned=owned.txns, cleared=attempt.proves(owned), sealed_upper=sealed_upper, bound_upper=bound_upper
    )


def owned_txns(pipeline: Pipeline, attempt: Attempt) -> tuple[Txn, ...]:
    """The transactions that the run has bound."""
    owned = _owned(pipeline, attempt)
    return owned.txns if owned is not None else ()


def only_proves(pipeline: Pipeline, attempt: Attempt) -> bool:
    """Whether the run was cleared after its transactions were bound: then it requests no new input. A cleared
    run that never bound anything binds as a first attempt does."""
    return attempt.cleared and _owned(pipeline, attempt) is not None


def _owned(pipeline: Pipeline, attempt: Attempt) -> Owned | None:
    pipeline.control.owned.head()
    return owned_in(pipeline.control.owned.find(attempt.owner.identity))
