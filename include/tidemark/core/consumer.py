"""A consumer: who reads a shard transaction by transaction, under a name, with a frontier that lasts.

The frontier is the `txn` of the consumer's lease (`core.lease`): one record says how far the consumer is,
who reads for it now, and which batch it was given. So there is nothing to keep in step, and a process that
has lost its lease can't move the frontier.
"""

from __future__ import annotations

from dataclasses import replace

from tidemark.core.errors import InvalidUsage
from tidemark.core.ids import ShardId, Txn, checked_name
from tidemark.core.lease import Lease, LeaseState
from tidemark.core.ledger import UPPER, Head, Put


def lease_name(consumer: str, shard: ShardId) -> str:
    """The name of the lease that carries the frontier of a consumer in a shard."""
    return f"{checked_name(consumer, what='consumer')}/{checked_name(shard, what='shard')}"


def consumer_of(lease: Lease) -> tuple[str, ShardId] | None:
    """The consumer and the shard whose frontier a lease carries; None for a passing reader's."""
    consumer, of_shard, shard = lease.name.partition("/")
    return (consumer, ShardId(shard)) if of_shard else None


def effect_key(pipeline: str, consumer: str, shard: ShardId) -> str:
    """What a consumer's effects are counted under, in Delta's words the application's id."""
    return f"tidemark/{pipeline}/{shard}/{consumer}"


def batch_fence(lease: Lease) -> Txn | None:
    """The upper that the next batch must not pass: that of one which was given, and may have been done.

    An effect that is keyed by its batch's last transaction is then either done for all of a batch that is
    given again, or for none of it."""
    return lease.planned if lease.planned > lease.txn else None


def decide_forget(*, head: Head, current: Lease | None, name: str) -> Put[Lease, Lease]:
    """Let a consumer's frontier go: maintenance no longer waits for it. One that reads is not forgotten."""
    if current is None or not current.is_kept:
        raise InvalidUsage(f"there is no consumer {name!r}", hint="see `tidemark consumers`")
    if current.is_live:
        raise InvalidUsage(f"consumer {name!r} is being read by {current.holder}", hint="stop it first")
    gone = replace(current, epoch=int(head.upper), state=LeaseState.FORGOTTEN)
    return Put(marks={UPPER: gone.epoch + 1}, records=(gone,), result=gone)
