"""Pass over: what people may decide about a consumer that is frozen, with a reason that stays on record."""

from __future__ import annotations

from tidemark.core.consumer import lease_name
from tidemark.core.errors import InvalidUsage
from tidemark.core.ids import ShardId, Txn, WriterToken
from tidemark.core.journal import Event
from tidemark.pipeline.context import Pipeline, note
from tidemark.pipeline.leasing import Leases
from tidemark.pipeline.overrule import checked_reason


def pass_over(
    pipeline: Pipeline,
    leases: Leases,
    consumer: str,
    shard: ShardId,
    *,
    txn: Txn,
    reason: str,
    token: WriterToken,
) -> None:
    """Give up a transaction that a consumer can't read, for this consumer only, and whole.

    The reason is on record before its effect: the consumer passes over when it reads next. A transaction
    that can be read is delivered all the same."""
    lease = leases.current(lease_name(consumer, shard))
    if lease is None or not lease.is_kept:
        raise InvalidUsage(
            f"shard {shard!r} has no consumer {consumer!r}", hint="see `tidemark consumers list`"
        )
    if lease.txn != txn:
        raise InvalidUsage(
            f"consumer {consumer!r} is at transaction {lease.txn}, not {txn}",
            hint="only the transaction that it is frozen at can be passed over",
        )
    detail = {"consumer": consumer, "shard": str(shard), "reason": checked_reason(reason)}
    note(pipeline, Event.PASSED_OVER, txn=txn, token=token, detail=detail)
