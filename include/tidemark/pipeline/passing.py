"""Pass over: what people may decide about a consumer that is frozen, with a reason that stays on record.

What is given up is said by number, and is exactly what the consumer is frozen at: one transaction, or all
that are lost with a file that was merged of several. Each of them has the reason in its journal.
"""

from __future__ import annotations

from tidemark.core.consumer import lease_name
from tidemark.core.errors import InvalidUsage
from tidemark.core.freeze import open_freeze
from tidemark.core.ids import ShardId, Txn, WriterToken
from tidemark.core.journal import Event
from tidemark.pipeline.context import Pipeline, note_all
from tidemark.pipeline.leasing import Leases
from tidemark.pipeline.overrule import checked_reason


def pass_over(
    pipeline: Pipeline,
    leases: Leases,
    consumer: str,
    shard: ShardId,
    *,
    txn: Txn,
    last: Txn | None = None,
    reason: str,
    token: WriterToken,
) -> tuple[Txn, ...]:
    """Give up the transactions from `txn` to `last` that a consumer can't read, for this consumer only, and
    whole; returns those of them that touch the shard.

    The reason is on record before its effect: the consumer passes over when it reads next. A transaction
    that can be read is delivered all the same."""
    last = txn if last is None else last
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
    control = pipeline.control
    control.journal.head()
    frozen = open_freeze(control.journal.find(str(txn)), consumer=consumer, shard=shard)
    if frozen is None or not frozen["part"]:
        raise InvalidUsage(
            f"consumer {consumer!r} is not known to be frozen at a file of transaction {txn}",
            hint="let it read once more; if it can't, it says what to do",
        )
    if frozen["last"] != str(last):
        raise InvalidUsage(
            f"consumer {consumer!r} can't pass over {txn} to {last}:"
            f" {txn} to {frozen['last']} are lost together",
            hint=f"give all of them up with `--to {frozen['last']}`, or repair transaction {txn}",
        )
    control.seals.head()
    lost = tuple(seal.txn for seal in control.seals.read(txn, last + 1) if seal.touches(shard))
    detail = {"consumer": consumer, "shard": str(shard), "reason": checked_reason(reason)}
    note_all(pipeline, Event.PASSED_OVER, txns=lost, token=token, detail=detail)
    return lost
