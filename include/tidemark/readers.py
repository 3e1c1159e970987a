"""Who reads a pipeline's shards and how far they are, by its ledgers: for the command and the pages."""

from __future__ import annotations

from dataclasses import dataclass

from tidemark.assemble import Deployment
from tidemark.consume import leases_of
from tidemark.core.consumer import consumer_of
from tidemark.core.errors import InvariantViolation
from tidemark.core.freeze import open_freeze
from tidemark.core.ids import ShardId
from tidemark.core.lease import Lease
from tidemark.pipeline.listing import readable


@dataclass(frozen=True, slots=True)
class ConsumerStatus:
    """Where a consumer stands: its frontier, how many transactions are waiting for it (None where that can't
    be read), who reads for it now, and why it stands still, if it does."""

    consumer: str
    shard: str
    frontier: int
    lag: int | None
    reading: str
    frozen: str


def held_leases(deployment: Deployment) -> list[Lease]:
    """The leases that maintenance respects, the one that needs most first."""
    held = [lease for lease in leases_of(deployment).standing() if lease.is_kept]
    return sorted(held, key=lambda one: (one.txn, one.name))


def consumers_of(deployment: Deployment) -> list[ConsumerStatus]:
    """The pipeline's consumers, from their leases."""
    found: list[ConsumerStatus] = []
    for lease in held_leases(deployment):
        named = consumer_of(lease)
        if named is None:
            continue
        consumer, shard = named
        reading = lease.holder if lease.is_live else ""
        frozen = frozen_at(deployment, consumer, shard, lease.txn)
        try:
            lag = max(0, readable(deployment.control, shard).upper - lease.txn)
        except InvariantViolation as error:
            lag, frozen = None, frozen or error.fact
        found.append(ConsumerStatus(consumer, shard, lease.txn, lag, reading, frozen))
    return sorted(found, key=lambda one: (one.shard, one.consumer))


def frozen_at(deployment: Deployment, consumer: str, shard: ShardId, txn: int) -> str:
    """Why a consumer stands at a transaction, as its last note there says; empty once that is mended."""
    journal = deployment.control.journal
    journal.head()
    found = open_freeze(journal.find(str(txn)), consumer=consumer, shard=shard)
    return f"{found['part'] or 'its listing'}: {found['why']}" if found is not None else ""
