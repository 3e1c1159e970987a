"""Consume: deliver a shard's transactions in order, each exactly once, in batches, under a lease.

One round of a reader, always under its lease:

1. *List*: which files make up each transaction from the frontier on, by the seals and the log together.
2. *Fetch*: check every file of the next batch. Files complete in any order; accounts are kept per `txn`.
3. *Plan*: record the batch's end in the lease, then hand the batch out. A batch that was handed out and not
   confirmed is handed out again with the same end, to any later reader, so an effect that is keyed by it
   happens once.
4. *Deliver*: once the consumer has processed the batch, move the frontier to its end, by one conditional
   commit.

A part that is missing, truncated or damaged freezes the frontier at its `txn`: everything before it is
delivered and nothing from it on, until it is repaired or a person skips it for this consumer with a reason
(Invariant 11). A batch that was handed out and not confirmed is handed out again whole or not at all: if a
part of it can't be read, the frontier stays before the batch. Its parts are read whole, because something
went wrong with it before.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tidemark.core.errors import Determinate, InvalidUsage, InvariantViolation
from tidemark.core.ids import TXN_NONE, ShardId, Txn, WriterToken, next_txn
from tidemark.core.log import (
    BeforeReplacement,
    Condition,
    Limits,
    ListedTxn,
    NotYet,
    cut_batch,
    list_txns,
    plan_read,
)
from tidemark.core.publish import published_txn
from tidemark.core.reading import (
    Frozen,
    MissingPart,
    ReadAccount,
    ShardReplaced,
    batch_fence,
)
from tidemark.core.seal import Decision, Part
from tidemark.pipeline.context import Pipeline
from tidemark.pipeline.freezes import Freezer
from tidemark.pipeline.history import epoch_of, link_of, replaced_at, require_known, require_replacement
from tidemark.pipeline.leases import Hold
from tidemark.pipeline.listing import Listed, fetch_all, listing, readable_upper
from tidemark.pipeline.publish import published_as_of
from tidemark.ports.control import PartFiles

FETCH_WORKERS: Final = 8


@dataclass(frozen=True, slots=True)
class Range:
    """The transactions in [lower, upper), whole: the files to read, and the transactions that are skipped,
    for this consumer or because they are lost. For a snapshot, `tail` is the first transaction that it needs
    from the log, because the state does not have it. `epoch` is that of the last transaction."""

    lower: Txn
    upper: Txn
    parts: tuple[Part, ...] = ()
    skipped: Mapping[Txn, str] = field(default_factory=dict)
    tail: Txn | None = None
    epoch: int = 0

    @property
    def txn(self) -> Txn:
        """The last transaction; effects of this batch are keyed by it."""
        return Txn(self.upper - 1)


@dataclass(frozen=True, slots=True)
class Reading:
    """A consumer of a shard, the rows that it wants, and the limits of a batch."""

    consumer: str
    shard: ShardId
    token: WriterToken
    conditions: tuple[Condition, ...] = ()
    keys: tuple[str, ...] = ()
    limits: Limits = field(default_factory=Limits)


class ShardReader:
    """Reads one shard for one consumer, from its lease's frontier on. Not thread-safe."""

    def __init__(
        self,
        pipeline: Pipeline,
        files: PartFiles,
        hold: Hold,
        reading: Reading,
        *,
        name: str,
        stop: threading.Event | None = None,
    ) -> None:
        self._pipeline = pipeline
        self._files = files
        self._hold = hold
        self._reading = reading
        self._freezer = Freezer(pipeline, hold, reading.consumer, reading.shard, reading.token, name)
        self._stop = stop or threading.Event()
        self._listed: Listed | None = None

    @property
    def frontier(self) -> Txn:
        """The first transaction that is not delivered yet."""
        return self._hold.lease.txn

    def next_range(self) -> Range | None:
        """The next batch, recorded as handed out; None when there is nothing more now, or the reader is
        stopped.

        Raises `Frozen` when the transaction at the frontier can't be read, and `LeaseLost`."""
        while not self._stop.is_set():
            self._hold.check()
            try:
                self._require_not_replaced()
                self._require_known()
                listed = self._list()
                found = self._fetched(listed) if self.frontier < listed.upper else None
            except Frozen:
                raise
            except InvariantViolation as error:
                raise self._freezer.frozen(self.frontier, str(error)) from error
            if listed.upper <= self.frontier:
                return None
            if found is None:
                continue
            if not found.parts and not found.skipped:
                # Nothing in it is for this consumer, so no confirmation is needed.
                self._advance(found.upper)
                continue
            self._hold.plan(found.upper)
            return found
        return None

    def plan_snapshot(self, as_of: Txn | None) -> Range:
        """Record that everything up to and including `as_of` (by default: now) is handed out as one batch of
        rows.

        Raises `Frozen` when the log has lost a part of it that the state does not have."""
        control, shard = self._pipeline.control, self._reading.shard
        fence = batch_fence(self._hold.lease)
        try:
            self._require_known()
            upper = readable_upper(control, shard)
            begins = self._accepted_replacement(upper, as_of)
        except InvariantViolation as error:
            raise self._freezer.frozen(self.frontier, str(error)) from error
        if fence is not None and fence <= begins:
            fence = None  # What was handed out is part of what the snapshot replaces.
        wanted = Txn((fence or upper) - 1) if as_of is None else as_of
        # A snapshot that doesn't move the frontier would look like one that was confirmed.
        if wanted < self.frontier or (fence is not None and wanted != fence - 1):
            known = (
                f"{fence - 1} was delivered to it, and may be processed"
                if fence
                else f"it has {self.frontier - 1}"
            )
            raise InvalidUsage(
                f"consumer {self._reading.consumer!r} can't take a snapshot as of {wanted}: {known}",
                hint="leave as_of out, or use another consumer name",
            )
        planned = plan_read(as_of=wanted, since=self._hold.since_and_holders()[0], upper=upper)
        if isinstance(planned, NotYet):
            raise InvalidUsage(
                f"shard {shard!r} can't be read as of transaction {wanted} yet", hint=f"it has {upper - 1}"
            )
        published = control.publishes(shard)
        published.head()
        base = published_as_of(published, as_of=wanted)
        tail = max(next_txn(published_txn(base)), begins)
        self._check_tail(tail, planned.listen_from, whole=fence is not None)
        self._hold.plan(planned.listen_from)
        epoch = epoch_of(control, Txn(planned.listen_from - 1))
        return Range(self.frontier, planned.listen_from, tail=tail, epoch=epoch)

    def _accepted_replacement(self, upper: Txn, as_of: Txn | None) -> Txn:
        """The transaction that replaced the shard; 0 if none did. Raises `ShardReplaced` where the consumer
        has had something from before it and has not agreed, and `BeforeReplacement` for a snapshot below
        it."""
        control, shard = self._pipeline.control, self._reading.shard
        control.seals.head()
        replaced = replaced_at(control, shard)
        if replaced == TXN_NONE:
            return TXN_NONE
        if replaced >= upper:
            require_replacement(control, shard)
        if as_of is not None and as_of < replaced:
            raise BeforeReplacement(shard, as_of=as_of, begins=replaced)
        if self.frontier <= replaced and not self._takes(replaced):
            self._require_not_replaced()
        return replaced

    def _check_tail(self, lower: Txn, upper: Txn, *, whole: bool) -> None:
        """Raise `Frozen` if a part of the log in [lower, upper) can't be read."""
        while lower < upper:
            listed = self._listing(lower)
            if listed.log.begins > lower:
                raise Determinate(f"shard {self._reading.shard} is being replaced", hint="retry")
            txns = [one for one in self._txns(listed, lower=lower) if one.txn < upper]
            account = self._looked_at(txns, start=lower, end=min(upper, listed.upper), whole=whole)
            if account.frozen is None:
                lower = min(upper, listed.upper)
            elif not self._moved_on(account.frozen, self._listing(lower)):
                raise self._frozen_at(account.frozen, txns, in_snapshot=True)

    def delivered(self, given: Range) -> None:
        """Move the frontier to the batch's end. Call this once the batch's effects are durable."""
        if not self.frontier <= given.upper <= self._hold.lease.planned:
            raise InvalidUsage(
                f"the batch [{given.lower}, {given.upper}) is not the batch that was given last",
                hint="confirm the batch that was given last",
            )
        self._advance(given.upper)

    def _advance(self, upper: Txn) -> None:
        what = f"consumer {self._reading.consumer!r}"
        self._hold.advance(upper, link=link_of(self._pipeline.control, what, txn=Txn(upper - 1)))

    def _require_not_replaced(self, listed: Listed | None = None) -> None:
        """Raise `ShardReplaced` where a promotion has replaced the shard at or after the frontier."""
        control, shard = self._pipeline.control, self._reading.shard
        control.seals.head()
        begins = listed.log.begins if listed is not None else TXN_NONE
        replaced = max(replaced_at(control, shard), begins)
        if replaced < self.frontier:
            return
        raise ShardReplaced(
            self._reading.consumer,
            shard,
            replaced,
            pipeline=self._freezer.name,
            accepted=self._takes(replaced),
        )

    @property
    def needs_snapshot(self) -> bool:
        """Whether the shard was replaced at or after the frontier, and the consumer takes the snapshot."""
        try:
            self._require_not_replaced()
        except ShardReplaced as replaced:
            return replaced.accepted
        return False

    def _takes(self, replaced: Txn) -> bool:
        """Whether the consumer agrees to a replacement. One that has had nothing need not."""
        lease = self._hold.lease
        has_had = not self._hold.is_new or lease.planned != TXN_NONE
        return not has_had or lease.accepted >= replaced

    def _require_known(self) -> None:
        """Raise `HistoryLost` where the history lacks the consumer's last transaction, or has another one
        under its number: the next transaction there does not follow it."""
        lease = self._hold.lease
        if lease.link:
            what = f"consumer {self._reading.consumer!r}"
            require_known(self._pipeline.control, what, txn=Txn(lease.txn - 1), link=lease.link)

    def examine(self, given: Range) -> None:
        """After a batch has failed: raise `LeaseLost` or `Frozen` if the reader is the cause. Every part is
        read whole."""
        self._hold.check()
        if given.tail is not None:
            self._check_tail(given.tail, given.upper, whole=True)
            return
        account = ReadAccount(start=given.lower, ahead_parts_max=max(1, len(given.parts)))
        account.listed(given.lower, given.parts)
        fetch_all(account, self._look({}, whole=True), workers=FETCH_WORKERS)
        self._hold.check()
        lost = {missing.part.path: missing for missing in account.missing_parts}
        for one in self._chosen(self._list(), upper=given.upper)[0] if lost else ():
            for part in one.parts:
                if part.path in lost:
                    raise self._freezer.frozen(one.txn, lost[part.path].why, part, last=one.last)

    def _list(self) -> Listed:
        """The listing from the frontier on. One listing serves until it is used up."""
        if self._listed is None or not self._listed.lower <= self.frontier < self._listed.upper:
            listed = self._listing(self.frontier)
            # The files are listed last: the log may have been replaced meanwhile.
            self._require_not_replaced(listed)
            self._listed = listed
        return self._listed

    def _listing(self, lower: Txn) -> Listed:
        columns = [one.column for one in self._reading.conditions]
        control, shard = self._pipeline.control, self._reading.shard
        try:
            return listing(control, self._files, shard, lower=lower, columns=columns)
        except InvariantViolation as error:
            raise self._freezer.frozen(lower, str(error)) from error

    def _txns(
        self, listed: Listed, *, lower: Txn, conditions: Sequence[Condition] = ()
    ) -> tuple[ListedTxn, ...]:
        return list_txns(
            self._reading.shard,
            seals=listed.seals,
            files=listed.log.files,
            lower=lower,
            conditions=conditions,
            keys=self._reading.keys,
        )

    def _chosen(self, listed: Listed, *, upper: Txn | None = None) -> tuple[Sequence[ListedTxn], Txn]:
        fence = batch_fence(self._hold.lease)
        txns = self._txns(listed, lower=self.frontier, conditions=self._reading.conditions)
        return cut_batch(txns, upper=upper or listed.upper, limits=self._reading.limits, fence=fence)

    def _fetched(self, listed: Listed) -> Range | None:
        """The complete transactions of the next batch; None when the log has to be listed again."""
        chosen, upper = self._chosen(listed)
        fence = batch_fence(self._hold.lease)
        if fence is not None and upper < fence:
            self._listed = None
            if self._list().upper < fence:
                why = f"the batch up to {fence - 1} was given before, and is not there any more"
                raise self._freezer.frozen(upper, why)
            return None
        account = self._looked_at(chosen, start=self.frontier, end=upper, whole=fence is not None)
        if self._stop.is_set():
            return None
        if account.frozen is not None:
            self._listed = None
            if self._moved_on(account.frozen, self._list()):
                return None
        skipped = self._pass_over(account, chosen)
        ready = account.deliverable()
        if ready is None or (fence is not None and ready.upper < fence):
            raise self._frozen_at(account.frozen, chosen)
        parts = tuple(part for one in ready.txns if one.txn not in skipped for part in one.parts)
        given_up = {txn: reason for txn, reason in skipped.items() if txn < ready.upper}
        given_up |= {
            seal.txn: f"lost: {seal.reason}"
            for seal in listed.seals
            if seal.decision is Decision.LOST
            and ready.lower <= seal.txn < ready.upper
            and not seal.touches(self._reading.shard)
        }
        epoch = epoch_of(self._pipeline.control, Txn(ready.upper - 1))
        return Range(ready.lower, ready.upper, parts, given_up, epoch=epoch)

    def _looked_at(self, txns: Sequence[ListedTxn], *, start: Txn, end: Txn, whole: bool) -> ReadAccount:
        """The account of [start, end) with every part checked, unless the reader is stopped."""
        account = ReadAccount(start=start, ahead_parts_max=max(1, sum(len(one.parts) for one in txns)))
        for one in txns:
            account.listed(one.txn, one.parts)
        if not txns or txns[-1].txn < end - 1:
            account.listed(Txn(end - 1))
        lost = {part.path: one.lost for one in txns for part in one.parts if one.lost}
        fetch_all(account, self._look(lost, whole=whole), workers=FETCH_WORKERS, stop=self._stop)
        self._hold.check()
        return account

    def _pass_over(self, account: ReadAccount, chosen: Sequence[ListedTxn]) -> dict[Txn, str]:
        """The transactions that are skipped for this consumer, with the reasons. A file that was merged from
        several transactions is skipped only if each of them is: skipping the first does not cover the
        others."""
        skipped: dict[Txn, str] = {}
        for txn in sorted({missing.txn for missing in account.missing_parts}):
            last = next(one.last for one in chosen if one.txn == txn)
            reasons = {
                one.txn: self._freezer.passed_over(one.txn) for one in chosen if txn <= one.txn <= last
            }
            if all(reasons.values()):
                account.skipped(txn, reasons[txn])
                skipped |= reasons
        return skipped

    def _look(self, lost: Mapping[str, str], *, whole: bool) -> Callable[[Txn, Part], str]:
        shard, files = self._reading.shard, self._files

        def look(txn: Txn, part: Part) -> str:
            return lost.get(part.path) or files.fault(shard, part, whole=whole)

        return look

    def _moved_on(self, missing: MissingPart, listed: Listed) -> bool:
        """Whether the log no longer lists the missing part: maintenance may have replaced it. Growth of the
        log does not matter for a part that is still listed."""
        txns = self._txns(listed, lower=listed.lower)
        return missing.part.path not in {part.path for one in txns for part in one.parts}

    def _frozen_at(
        self, missing: MissingPart | None, chosen: Sequence[ListedTxn], *, in_snapshot: bool = False
    ) -> InvariantViolation:
        if missing is None:
            return InvariantViolation(f"transaction {self.frontier} is neither complete nor missing a part")
        listed = next(one for one in chosen if one.txn == missing.txn)
        return self._freezer.frozen(
            missing.txn,
            missing.why,
            missing.part,
            last=listed.last,
            is_named=not listed.lost,
            in_snapshot=in_snapshot,
        )
