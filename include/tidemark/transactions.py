"""Transactions as records for people: one line each, or one whole. For the command and the pages in Airflow.
Changes nothing and starts no Spark."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from tidemark.assemble import Deployment
from tidemark.core.binding import Binding
from tidemark.core.ids import ShardId, Txn
from tidemark.core.journal import Event
from tidemark.core.seal import Seal
from tidemark.core.sentence import quarantined_in
from tidemark.core.text import plain
from tidemark.pipeline.context import attempts_at, binding_at
from tidemark.pipeline.replay import bound_range
from tidemark.pipeline.timeline import times_of, written_at

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
    moments = {
        "bound": times.bound,
        "staged": written_at(control.attempts, mine[0].number) if mine else None,
        "judged": written_at(control.journal, judged[-1].number) if judged else None,
        "sealed": times.sealed,
        **{f"in the log of {shard}": _appended(deployment, shard, binding.txn) for shard in _shards(seal)},
    }
    rows: list[Row] = []
    before = times.bound
    for step, at in moments.items():
        if at is not None and before is not None:
            took = max(0.0, (at - before).total_seconds())
            rows.append({"step": step, "at": at, "seconds": took if step != "bound" else None})
            before = before if step.startswith("in the log") else at
    return rows


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
