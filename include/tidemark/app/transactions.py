"""Transactions as records for people: one line each, or one whole. For the command and the pages in Airflow.
Changes nothing and starts no Spark.

What a run has done, gathered from durable facts: for the last line of its log, its page, the command.

Whoever asks gets the same answer, whichever process did the work; nothing is taken from a scheduler's memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from tidemark.app.deployment import Deployment
from tidemark.app.status import waiting_input
from tidemark.core.binding import Binding
from tidemark.core.errors import TidemarkError
from tidemark.core.ids import ShardId, Txn
from tidemark.core.journal import Event
from tidemark.core.seal import Seal
from tidemark.core.summary import Proof, RunFacts, quarantined_in, run_sentence, waiting_text
from tidemark.core.text import plain
from tidemark.pipeline.announce import announcement_of
from tidemark.pipeline.context import Attempt, Pipeline, attempts_at, binding_at
from tidemark.pipeline.ingest import found_by
from tidemark.pipeline.reclock import owned_txns
from tidemark.pipeline.replay import bound_range
from tidemark.pipeline.timeline import refused_since, times_of, written_at

Row = dict[str, Any]
STEPS_SHARDS_MAX: Final = 20


def listed(deployment: Deployment, *, lower: int, upper: int) -> tuple[list[Row], dict[Txn, Seal]]:
    """The transactions in [lower, upper), the newest first, and the seals of those that have one."""
    control = deployment.control
    control.bindings.head()
    control.seals.head()
    control.journal.head()
    seals = {seal.txn: seal for seal in control.seals.read(lower, upper)}
    bound = [record for record in control.bindings.read(lower, upper) if isinstance(record, Binding)]
    return [_row(deployment, binding, seals.get(binding.txn)) for binding in reversed(bound)], seals


def _row(deployment: Deployment, binding: Binding, seal: Seal | None) -> Row:
    times = times_of(deployment.control, binding.txn)
    verdicts = [
        entry.detail["verdict"]
        for entry in deployment.control.journal.find(str(binding.txn))
        if entry.event is Event.VERIFIED
    ]
    shards = seal.shards if seal is not None else {}
    return {
        "txn": binding.txn,
        "decision": str(seal.decision) if seal is not None else "open",
        "bound_at": times.bound,
        "sealed_at": times.sealed,
        "seconds": times.seconds,
        "read": seal.source.count if seal is not None else None,
        "quarantined": quarantined_in(seal) if seal is not None else None,
        "rows": {shard: parts.digest.count for shard, parts in shards.items()},
        "deletes": {shard: parts.deletes for shard, parts in shards.items() if parts.deletes is not None},
        "run": binding.owner.run_id,
        "verdict": verdicts[-1] if verdicts else "",
    }


def recent(deployment: Deployment, *, limit: int) -> list[Row]:
    """What the newest sealed transactions have read, and how long they were open, the oldest first."""
    control = deployment.control
    control.bindings.head()
    upper = control.seals.head().upper
    return [
        {
            "txn": seal.txn,
            "read": seal.source.count,
            "quarantined": quarantined_in(seal),
            "seconds": times_of(control, seal.txn).seconds,
        }
        for seal in control.seals.read(max(1, upper - limit), upper)
    ]


def steps_of(deployment: Deployment, binding: Binding, seal: Seal | None) -> list[Row]:
    """When a transaction came through each of its steps, and how long each took, by the records that they
    left: of the try that was sealed, else of the last one. A step that left none has no time of its own."""
    logs = {f"in the log of {shard}": _appended(deployment, shard, binding.txn) for shard in _shards(seal)}
    moments = {**_moments(deployment, binding, seal), **logs}
    rows: list[Row] = []
    before = moments["bound"]
    for step, at in moments.items():
        if at is not None and before is not None:
            took = max(0.0, (at - before).total_seconds())
            rows.append({"step": step, "at": at, "seconds": took if step != "bound" else None})
            before = before if step.startswith("in the log") else at
    return rows


def step_seconds(deployment: Deployment, binding: Binding, seal: Seal) -> dict[str, float]:
    """How long each step took up to the seal, by the step's name, and all of it as `transaction`."""
    named = {"staged": "ingest", "judged": "validate", "sealed": "upsert"}
    found: dict[str, float] = {}
    moments = _moments(deployment, binding, seal)
    first = before = moments["bound"]
    for moment, at in moments.items():
        if at is not None and before is not None and moment in named:
            found[named[moment]] = max(0.0, (at - before).total_seconds())
            before = at
    if first is not None and before is not None and moments["sealed"] is not None:
        found["transaction"] = max(0.0, (before - first).total_seconds())
    return found


def _moments(deployment: Deployment, binding: Binding, seal: Seal | None) -> dict[str, datetime | None]:
    """When a transaction was bound, staged, judged and sealed."""
    control = deployment.control
    tries = [one for one in attempts_at(deployment.pipeline, binding) if not one.replayed]
    mine = [one for one in tries if seal is None or one.token == seal.token][-1:]
    control.journal.head()
    token = mine[0].token if mine else ""
    judged = [
        entry
        for entry in control.journal.find(str(binding.txn))
        if entry.event is Event.JUDGED and entry.token == token
    ]
    times = times_of(control, binding.txn)
    return {
        "bound": times.bound,
        "staged": written_at(control.attempts, mine[0].number) if mine else None,
        "judged": written_at(control.journal, judged[-1].number) if judged else None,
        "sealed": times.sealed,
    }


def decided_by(deployment: Deployment, attempt: Attempt) -> tuple[list[Seal], list[Seal]]:
    """The transactions that a run has staged in this round of it and that are sealed: those that it sealed
    itself, and those that another run sealed first."""
    staged = [
        one
        for one in found_by(deployment.pipeline, attempt)
        if one.staged is not None and not one.replayed and one.round == attempt.round
    ]
    seals = deployment.control.seals
    upper = seals.head().upper
    own = {(one.txn, one.token) for one in staged}
    tried = sorted({one.txn for one in staged if one.txn < upper})
    found = [seal for txn in tried for seal in seals.read(txn, txn + 1)]
    won = [seal for seal in found if (seal.txn, seal.token) in own]
    return won, [seal for seal in found if seal not in won]


def _shards(seal: Seal | None) -> Sequence[ShardId]:
    return sorted(seal.shards)[:STEPS_SHARDS_MAX] if seal is not None else ()


def _appended(deployment: Deployment, shard: ShardId, txn: Txn) -> datetime | None:
    log = deployment.unchecked.control.log(shard)
    log.head()
    return written_at(log, txn)


def whole(deployment: Deployment, txn: int) -> tuple[Binding, Seal | None, Sequence[Row], Row]:
    """One transaction: its binding, its seal, its journal with the time of each entry, and its times.
    `InvalidUsage` when it is not bound."""
    bound_range(deployment.pipeline, txn_from=txn, txn_to=txn)
    binding = binding_at(deployment.pipeline, Txn(txn))
    control = deployment.control
    control.seals.head()
    control.journal.head()
    seal = next(iter(control.seals.read(txn, txn + 1)), None)
    entries = control.journal.find(str(txn))
    times = times_of(control, Txn(txn))
    noted = [{"at": written_at(control.journal, entry.number), **plain(entry)} for entry in entries]
    return (
        binding,
        seal,
        noted,
        {"bound_at": times.bound, "sealed_at": times.sealed, "seconds": times.seconds},
    )


def sentence_of(pipeline: Pipeline, attempt: Attempt, *, asks_source: bool = True) -> str:
    """What the run of this attempt did, in one sentence. When that is nothing, the source is asked for what
    waits in it, unless it is not to be asked."""
    facts = run_facts(pipeline, attempt)
    return run_sentence(facts if facts != RunFacts() or not asks_source else idle(pipeline))


def run_facts(pipeline: Pipeline, attempt: Attempt) -> RunFacts:
    """What is on record of the run: of the transactions that it has bound, staged or proven.

    What it has begun to prove is told as a proof, with the verdict that it owes, and not as loaded again."""
    mine = [one for one in found_by(pipeline, attempt) if one.owner.is_run_of(attempt.owner)]
    tried = {(one.txn, one.token) for one in mine if not one.replayed}
    begun = {one.txn: one for one in mine if one.replayed}
    txns = sorted({*owned_txns(pipeline, attempt), *(one.txn for one in mine)})
    sealed_upper = pipeline.control.seals.head().upper
    journal = pipeline.control.journal
    journal.head()
    sealed = [txn for txn in txns if txn < sealed_upper]
    left = txns[len(sealed) :]
    found = pipeline.control.seals.read(sealed[0], sealed[-1] + 1) if sealed else ()
    wanted = set(sealed)
    seals = [seal for seal in found if seal.txn in wanted]
    proofs = []
    for seal in seals:
        if seal.txn in begun:
            entries = journal.find(str(seal.txn))
            told = announcement_of(seal, entries, attempt.owner.run_id, begun=begun[seal.txn])
            proofs.append(Proof(seal.txn, told.gate, told.overruled))
    return RunFacts(
        sealed=tuple(seal for seal in seals if seal.txn not in begun),
        own=frozenset(seal.txn for seal in seals if (seal.txn, seal.token) in tried),
        proofs=tuple(proofs),
        # Those above the first one wait for it, whatever else may be wrong with them.
        open={txn: _why_open(pipeline, txn) if txn == left[0] else "" for txn in left},
    )


def _why_open(pipeline: Pipeline, txn: Txn) -> str:
    stopped = refused_since(pipeline.control, txn)
    return stopped.why if stopped is not None else ""


def idle(pipeline: Pipeline) -> RunFacts:
    """A run that did nothing, and what waits. A source that can't be asked doesn't make a failure of it."""
    try:
        waiting = waiting_input(pipeline)
    except TidemarkError as error:
        return RunFacts(waiting=waiting_text(0, "", error.fact))
    return RunFacts(waiting=waiting_text(waiting.pieces, waiting.unit, waiting.trouble))
