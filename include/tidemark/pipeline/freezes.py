"""Freezes: what a consumer reports that can't read a transaction, and how a person lets it skip that one.

A skip names the transactions by number, and covers exactly those that the consumer is frozen at: one
transaction, or all that are lost with a file that was merged from several. The reason is in the journal of
each of them.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from tidemark.core.errors import InvalidUsage, TidemarkError
from tidemark.core.ids import ShardId, Txn, WriterToken, next_txn
from tidemark.core.ledger import Event
from tidemark.core.reading import Freeze, Frozen, batch_fence, lease_name, open_freeze
from tidemark.core.seal import Part
from tidemark.pipeline.context import Pipeline, note, note_all
from tidemark.pipeline.decide import checked_reason
from tidemark.pipeline.leases import Hold, Leases


@dataclass(frozen=True, slots=True)
class Freezer:
    """Reports and records the freezes of one consumer in one shard. `name` is the pipeline's name, as
    commands take it."""

    pipeline: Pipeline
    hold: Hold
    consumer: str
    shard: ShardId
    token: WriterToken
    name: str

    def passed_over(self, txn: Txn) -> str:
        """The reason why this consumer skips a transaction that it can't read; empty when it doesn't."""
        journal = self.pipeline.control.journal
        journal.head()
        mine = {"consumer": self.consumer, "shard": str(self.shard)}
        for entry in journal.find(str(txn)):
            if entry.event is Event.PASSED_OVER and mine.items() <= entry.detail.items():
                return entry.detail["reason"]
        return ""

    def frozen(
        self,
        txn: Txn,
        why: str,
        part: Part | None = None,
        *,
        last: Txn | None = None,
        is_named: bool = True,
        in_snapshot: bool = False,
    ) -> Frozen:
        """The error to raise. The journal records it once per part."""
        last = txn if last is None else last
        since, holders = self.hold.since_and_holders()
        path, size = (part.path, part.bytes) if part is not None else ("", 0)
        freeze = Freeze(
            self.consumer, self.shard, txn, last, why, since, path, size, holders, is_named, in_snapshot
        )
        mine = {"consumer": self.consumer, "shard": str(self.shard)}
        detail = {**mine, "part": path, "why": why, "last": str(last)}
        # The journal itself may be lost; that must not hide the report.
        with suppress(TidemarkError):
            journal = self.pipeline.control.journal
            journal.head()
            known = open_freeze(journal.find(str(txn)), consumer=self.consumer, shard=self.shard)
            if known != detail:
                note(self.pipeline, Event.FROZEN, txn=txn, token=self.token, detail=detail)
        return Frozen(freeze, pipeline=self.name)


def skip_for_consumer(
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
    """Skip the transactions from `txn` to `last`, whole, which a consumer can't read, for this consumer only.
    Returns those of them that touch the shard.

    The reason is on record before its effect: the consumer skips them when it reads next. A transaction that
    can be read is delivered all the same."""
    last = txn if last is None else last
    lease = leases.current(lease_name(consumer, shard))
    if lease is None or not lease.is_kept:
        raise InvalidUsage(
            f"shard {shard!r} has no consumer {consumer!r}", hint="see `tidemark consumers list`"
        )
    if not lease.txn <= txn < (batch_fence(lease) or next_txn(lease.txn)):
        raise InvalidUsage(
            f"consumer {consumer!r} is at transaction {lease.txn}, not {txn}",
            hint="only the transaction that it is frozen at can be skipped",
        )
    control = pipeline.control
    control.journal.head()
    frozen = open_freeze(control.journal.find(str(txn)), consumer=consumer, shard=shard)
    if frozen is None or not frozen["part"]:
        raise InvalidUsage(
            f"consumer {consumer!r} is not known to be frozen at a file of transaction {txn}",
            hint="let it read again; if it freezes, its error names the command",
        )
    if frozen["last"] != str(last):
        raise InvalidUsage(
            f"consumer {consumer!r} can't skip {txn} to {last}: {txn} to {frozen['last']} are lost together",
            hint=f"give all of them up with `--to {frozen['last']}`, or repair transaction {txn}",
        )
    control.seals.head()
    lost = tuple(seal.txn for seal in control.seals.read(txn, last + 1) if seal.touches(shard))
    detail = {"consumer": consumer, "shard": str(shard), "reason": checked_reason(reason)}
    note_all(pipeline, Event.PASSED_OVER, txns=lost, token=token, detail=detail)
    return lost
