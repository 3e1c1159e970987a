"""Transactions and runs as reports, for the command, the pages in Airflow and the last line of a run's log.

Everything comes from the ledgers and the journal, so the answer does not depend on the process that did the
work, nor on the scheduler's database. Nothing here changes data or starts Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from tidemark.app.deployment import Deployment
from tidemark.app.status import waiting_input
from tidemark.core.binding import Binding
from tidemark.core.errors import TidemarkError
from tidemark.core.ids import ShardId, Txn, WriterToken
from tidemark.core.ledger import Event
from tidemark.core.seal import Evidence, Seal
from tidemark.core.text import (
    Proof,
    RunFacts,
    applied_in,
    plain,
    quarantined_in,
    run_sentence,
    waiting_text,
)
from tidemark.pipeline.announce import announcement_of
from tidemark.pipeline.context import Attempt, Pipeline, attempts_at, attempts_of, binding_at
from tidemark.pipeline.ingest import found_by
from tidemark.pipeline.reclock import owned_txns
from tidemark.pipeline.replay import bound_range
from tidemark.pipeline.timeline import refused_since, times_of, written_at
from tidemark.pipeline.validate import judged_in

Row = dict[str, Any]
STEPS_SHARDS_MAX: Final = 20


def every(row: Row) -> bool:
    """Leaves no transaction out."""
    return True


def listed(
    deployment: Deployment, *, lower: int, upper: int, wanted: Callable[[Row], bool] = every
) -> tuple[list[Row], dict[Txn, Seal]]:
    """The wanted transactions in [lower, upper), the newest first, and the seals of all that have one.
    `wanted` sees a row without its times and tries, which are looked up for wanted rows only."""
    control = deployment.control
    control.bindings.head()
    control.seals.head()
    control.journal.head()
    seals = {seal.txn: seal for seal in control.seals.read(lower, upper)}
    bound = control.bindings.read(lower, upper)
    rows = {one.txn: _row(deployment, one, seals.get(one.txn)) for one in reversed(bound)}
    left = [one for one in reversed(bound) if wanted(rows[one.txn])]
    tries = attempts_of(deployment.pipeline, left) if left else {}
    stories = (_story(deployment, one, seals.get(one.txn), tries[one.txn]) for one in left)
    return [{**rows[one.txn], **story} for one, story in zip(left, stories, strict=True)], seals


def _row(deployment: Deployment, binding: Binding, seal: Seal | None) -> Row:
    """What the records of a transaction say themselves."""
    verdicts = [
        {"verdict": judged_in(entry).gated.word, "replayed": entry.event is Event.VERIFIED}
        for entry in deployment.control.journal.find(str(binding.txn))
        if entry.event in (Event.JUDGED, Event.VERIFIED)
    ]
    replays = [one["verdict"] for one in verdicts if one["replayed"]]
    shards = seal.shards if seal is not None else {}
    return {
        "txn": binding.txn,
        "decision": str(seal.decision) if seal is not None else "open",
        "read": seal.source.count if seal is not None else None,
        "quarantined": quarantined_in(seal) if seal is not None else None,
        "applied": applied_in(seal) if seal is not None else None,
        "rows": {shard: parts.digest.count for shard, parts in shards.items()},
        "deletes": {shard: parts.deletes for shard, parts in shards.items() if parts.deletes is not None},
        "run": binding.owner.run_id,
        "verdict": replays[-1] if replays else "",
        "verdicts": verdicts,
    }


def _story(deployment: Deployment, binding: Binding, seal: Seal | None, tries: Sequence[Evidence]) -> Row:
    """A transaction's times and steps, and who won and who lost its seal."""
    times = times_of(deployment.control, binding.txn)
    staged = {one.token: one.owner.run_id for one in tries if not one.replayed and one.staged is not None}
    won = seal.token if seal is not None else ""
    return {
        "bound_at": times.bound,
        "sealed_at": times.sealed,
        "seconds": times.seconds,
        "steps": _seconds_of(_moments(deployment, binding, seal, tries)),
        "won": {"token": won, "run": staged.get(WriterToken(won), "")} if won else None,
        "lost": [{"token": one, "run": run} for one, run in staged.items() if won and one != won],
    }


def recent(deployment: Deployment, *, limit: int) -> list[Row]:
    """The input of the newest sealed transactions, and how long they were open, the oldest first."""
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
    """The time and the duration of each step of a transaction, from the records that the steps left: of the
    sealed try, else of the last one. A step without a record is left out."""
    logs = {f"in the log of {shard}": _appended(deployment, shard, binding.txn) for shard in _shards(seal)}
    moments = {**_moments(deployment, binding, seal, attempts_at(deployment.pipeline, binding)), **logs}
    rows: list[Row] = []
    before = moments["bound"]
    for step, at in moments.items():
        if at is not None and before is not None:
            took = max(0.0, (at - before).total_seconds())
            rows.append({"step": step, "at": at, "seconds": took if step != "bound" else None})
            before = before if step.startswith("in the log") else at
    return rows


def step_seconds(deployment: Deployment, binding: Binding, seal: Seal) -> dict[str, float]:
    """The duration of each step up to the seal, by the step's name, and the whole as `transaction`."""
    return _seconds_of(_moments(deployment, binding, seal, attempts_at(deployment.pipeline, binding)))


def _seconds_of(moments: Mapping[str, datetime | None]) -> dict[str, float]:
    named = {"staged": "ingest", "judged": "validate", "sealed": "upsert"}
    found: dict[str, float] = {}
    first = before = moments["bound"]
    for moment, at in moments.items():
        if at is not None and before is not None and moment in named:
            found[named[moment]] = max(0.0, (at - before).total_seconds())
            before = at
    if first is not None and before is not None and moments["sealed"] is not None:
        found["transaction"] = max(0.0, (before - first).total_seconds())
    return found


def _moments(
    deployment: Deployment, binding: Binding, seal: Seal | None, tries: Sequence[Evidence]
) -> dict[str, datetime | None]:
    """When a transaction was bound, staged, judged and sealed."""
    control = deployment.control
    mine = [one for one in tries if not one.replayed and (seal is None or one.token == seal.token)][-1:]
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
    """The seals of the transactions that a run staged in this round: its own seals, and those of other runs
    that sealed first."""
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

    `InvalidUsage` if it is not bound."""
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


# Reports of runs.


def sentence_of(pipeline: Pipeline, attempt: Attempt, *, asks_source: bool = True) -> str:
    """The work of the attempt's run, in one sentence. If there was none, the sentence reports the input that
    waits in the source; `asks_source=False` leaves this out."""
    facts = run_facts(pipeline, attempt)
    return run_sentence(facts if facts != RunFacts() or not asks_source else idle(pipeline))


def run_facts(pipeline: Pipeline, attempt: Attempt) -> RunFacts:
    """The record of the transactions that the run has bound, staged or proven.

    A transaction that the run has begun to prove counts as a proof, also without a verdict, not as loaded."""
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
            announced = announcement_of(seal, entries, attempt.owner.run_id, begun=begun[seal.txn])
            proofs.append(Proof(seal.txn, announced.gate, announced.overruled))
    return RunFacts(
        sealed=tuple(seal for seal in seals if seal.txn not in begun),
        own=frozenset(seal.txn for seal in seals if (seal.txn, seal.token) in tried),
        proofs=tuple(proofs),
        # All others wait for the first one, so their own reasons don't matter yet.
        open={txn: _why_open(pipeline, txn) if txn == left[0] else "" for txn in left},
    )


def _why_open(pipeline: Pipeline, txn: Txn) -> str:
    stopped = refused_since(pipeline.control, txn)
    return stopped.why if stopped is not None else ""


def idle(pipeline: Pipeline) -> RunFacts:
    """The facts of a run without work: the waiting input. An error of the source is reported, not raised."""
    try:
        waiting = waiting_input(pipeline)
    except TidemarkError as error:
        return RunFacts(waiting=waiting_text(0, "", error.fact))
    return RunFacts(waiting=waiting_text(waiting.pieces, waiting.unit, waiting.trouble))
