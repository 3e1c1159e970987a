"""Transactions as records for people: one line each, or one whole. For the command and the pages in Airflow.
Changes nothing and starts no Spark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidemark.assemble import Deployment
from tidemark.core.binding import Binding
from tidemark.core.ids import Txn
from tidemark.core.journal import Event
from tidemark.core.seal import Seal
from tidemark.core.sentence import quarantined_in
from tidemark.core.text import plain
from tidemark.pipeline.context import binding_at
from tidemark.pipeline.replay import bound_range
from tidemark.pipeline.timeline import times_of, written_at

Row = dict[str, Any]


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
