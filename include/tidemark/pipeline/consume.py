"""What a frozen consumer tells, and what its journal says about going on without what is lost.

Consume: a shard's transactions in order, each exactly once, in batches, under a lease.

One round of a reader, always under its lease:

1. *List*: which files make up each transaction from the frontier on, by the seals and the log together.
2. *Fetch*: look at every file of the next batch; they complete in any order, accounts are kept per `txn`.
3. *Plan*: note the batch's end in the lease, then give it. A batch that was given and not confirmed is given
   again with the same end, whoever reads next, so an effect that is keyed by it is done once.
4. *Deliver*: once the consumer has done with it, move the frontier to its end. One conditional commit.

A part that is gone, cut or damaged freezes the frontier at its `txn`: everything before it is delivered, and
nothing from it on, until it is repaired or the consumer passes over it with a reason (Invariant 11). A batch
that is given again is looked at whole, because something went wrong with it before.

Pass over: what people may decide about a consumer that is frozen, with a reason that stays on record.

What is given up is said by number, and is exactly what the consumer is frozen at: one transaction, or all
that are lost with a file that was merged of several. Each of them has the reason in its journal.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from tidemark.core.errors import InvalidUsage, InvariantViolation, TidemarkError
from tidemark.core.ids import ShardId, Txn, WriterToken, next_txn
from tidemark.core.journal import Event
from tidemark.core.listing import Condition, Limits, ListedTxn, NotYet, cut_batch, list_txns, plan_read
from tidemark.core.publish import published_txn, state_as_of
from tidemark.core.reading import (
    Freeze,
    Frozen,
    MissingPart,
    ReadAccount,
    batch_fence,
    lease_name,
    open_freeze,
)
from tidemark.core.seal import Decision, Part
from tidemark.pipeline.context import Pipeline, note, note_all
from tidemark.pipeline.decide import checked_reason
from tidemark.pipeline.history import epoch_of, require_known
from tidemark.pipeline.leases import Hold, Leases
from tidemark.pipeline.listing import Listed, fetch_all, listing, readable_upper
from tidemark.ports.control import PartFiles


@dataclass(frozen=True, slots=True)
class Freezer:
    """The freezes of one consumer in one shard; `name` is the pipeline's, as commands take it."""

    pipeline: Pipeline
    hold: Hold
    consumer: str
    shard: ShardId
    token: WriterToken
    name: str

    def passed_over(self, txn: Txn) -> str:
        """Why this consumer passes over a transaction that it can't read; empty when it doesn't."""
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
        """The report, which the journal keeps once per part."""
        last = txn if last is None else last
        since, holders = self.hold.standing()
        path, size = (part.path, part.bytes) if part is not None else ("", 0)
        freeze = Freeze(
            self.consumer, self.shard, txn, last, why, since, path, size, holders, is_named, in_snapshot
        )
        mine = {"consumer": self.consumer, "shard": str(self.shard)}
        detail = {**mine, "part": path, "why": why, "last": str(last)}
        # What is lost may be the journal itself; that must not hide the report.
        with suppress(TidemarkError):
            journal = self.pipeline.control.journal
            journal.head()
            known = open_freeze(journal.find(str(txn)), consumer=self.consumer, shard=self.shard)
            if known != detail:
                note(self.pipeline, Event.FROZEN, txn=txn, token=self.token, detail=detail)
        return Frozen(freeze, pipeline=self.name)


FETCH_WORKERS: Final = 8


@dataclass(frozen=True, slots=True)
class Range:
    """The transactions in [lower, upper), whole: the files to read, and those that were passed over, by this
    consumer or because they are lost. For a snapshot, `tail` is the first transaction that it needs from the
    log, because the state hasn't got it. `epoch` is that of the last transaction."""

    lower: Txn
    upper: Txn
    parts: tuple[Part, ...] = ()
    skipped: Mapping[Txn, str] = field(default_factory=dict)
    tail: Txn | None = None
    epoch: int = 0

    @property
    def txn(self) -> Txn:
        """The last transaction: what an effect of this batch is keyed by."""
        return Txn(self.upper - 1)


@dataclass(frozen=True, slots=True)
class Reading:
    """Who reads what: a consumer of a shard, what it wants of it, and how much at once."""

    consumer: str
    shard: ShardId
    token: WriterToken
    conditions: tuple[Condition, ...] = ()
    keys: tuple[str, ...] = ()
    limits: Limits = field(default_factory=Limits)


class ShardReader:
    """The rounds of one consumer in one shard, from its lease's frontier on. For one thread."""

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
        """The first transaction that was not delivered."""
        return self._hold.lease.txn

    def next_range(self) -> Range | None:
        """The next batch, noted as given; None when there is nothing more now, or the reader is stopped.

        Raises `Frozen` when the transaction at the frontier can't be read, and `LeaseLost`."""
        while not self._stop.is_set():
            self._hold.check()
            try:
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
                # Nothing in it is for this consumer, so there is nothing to wait for.
                self._advance(found.upper)
                continue
            self._hold.plan(found.upper)
            return found
        return None

    def plan_snapshot(self, as_of: Txn | None) -> Range:
        """Note that everything up to and with `as_of` (now, by default) is given as one batch of rows.

        Raises `Frozen` when the log has lost some of it that the state hasn't got."""
        control, shard = self._pipeline.control, self._reading.shard
        fence = batch_fence(self._hold.lease)
        try:
            self._require_known()
            upper = readable_upper(control, shard)
        except InvariantViolation as error:
            raise self._freezer.frozen(self.frontier, str(error)) from error
        wanted = Txn((fence or upper) - 1) if as_of is None else as_of
        # One that doesn't move the frontier could not be told from one that was confirmed.
        if wanted < self.frontier or (fence is not None and wanted != fence - 1):
            known = f"it was given {fence - 1}, and may have it" if fence else f"it has {self.frontier - 1}"
            raise InvalidUsage(
                f"consumer {self._reading.consumer!r} can't take a snapshot as of {wanted}: {known}",
                hint="leave as_of out, or use another consumer name",
            )
        planned = plan_read(as_of=wanted, since=self._hold.standing()[0], upper=upper)
        if isinstance(planned, NotYet):
            raise InvalidUsage(
                f"shard {shard!r} can't be read as of transaction {wanted} yet", hint=f"it has {upper - 1}"
            )
        published = control.publishes(shard)
        base = state_as_of(published.read(1, published.head().upper), as_of=wanted)
        tail = next_txn(published_txn(base))
        self._check_tail(tail, planned.listen_from, whole=fence is not None)
        self._hold.plan(planned.listen_from)
        epoch = epoch_of(control, Txn(planned.listen_from - 1))
        return Range(self.frontier, planned.listen_from, tail=tail, epoch=epoch)

    def _check_tail(self, lower: Txn, upper: Txn, *, whole: bool) -> None:
        """Raise `Frozen` if a part of the log in [lower, upper) can't be read."""
        while lower < upper:
            listed = self._listing(lower)
            txns = [one for one in self._txns(listed, lower=lower) if one.txn < upper]
            account = self._looked_at(txns, start=lower, end=min(upper, listed.upper), whole=whole)
            if account.frozen is None:
                lower = min(upper, listed.upper)
            elif not self._moved_on(account.frozen, self._listing(lower)):
                raise self._frozen_at(account.frozen, txns, in_snapshot=True)

    def delivered(self, given: Range) -> None:
        """The consumer has done with a batch, durably: the frontier moves to its end."""
        if not self.frontier <= given.upper <= self._hold.lease.planned:
            raise InvalidUsage(
                f"the batch [{given.lower}, {given.upper}) was not given, or not last",
                hint="confirm the batch that was given last",
            )
        self._advance(given.upper)

    def _advance(self, upper: Txn) -> None:
        seals = self._pipeline.control.seals
        self._hold.advance(upper, link=next((one.link for one in seals.read(upper - 1, upper)), 0))

    def _require_known(self) -> None:
        """`HistoryLost` where the history has not, or not so, what this consumer has had: what comes next
        there is not what follows it."""
        lease = self._hold.lease
        if lease.link:
            what = f"consumer {self._reading.consumer!r}"
            require_known(self._pipeline.control, what, txn=Txn(lease.txn - 1), link=lease.link)

    def examine(self, given: Range) -> None:
        """After a batch has failed: raise what the reader is to blame for, `LeaseLost` or `Frozen`, if it
        is. Every part is looked at whole."""
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
        """What there is from the frontier on. One look serves until it is used up."""
        if self._listed is None or not self._listed.lower <= self.frontier < self._listed.upper:
            self._listed = self._listing(self.frontier)
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
        """The complete transactions of the next batch; None when the listing has to be made anew."""
        chosen, upper = self._chosen(listed)
        again = batch_fence(self._hold.lease) is not None
        account = self._looked_at(chosen, start=self.frontier, end=upper, whole=again)
        if self._stop.is_set():
            return None
        if account.frozen is not None:
            self._listed = None
            if self._moved_on(account.frozen, self._list()):
                return None
        skipped = self._pass_over(account, chosen)
        ready = account.deliverable()
        if ready is None:
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
        """The account of [start, end), every part looked at; unless the reader is stopped."""
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
        """The transactions that this consumer passes over, and why. A file that was merged of several is
        passed over only if every one of them is: giving up the first says nothing about the others."""
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
        """Whether the log no longer lists what we looked for: maintenance may have replaced it. That it has
        grown meanwhile says nothing about a part that it goes on listing."""
        txns = self._txns(listed, lower=listed.lower)
        return missing.part.path not in {part.path for one in txns for part in one.parts}

    def _frozen_at(
        self, missing: MissingPart | None, chosen: Sequence[ListedTxn], *, in_snapshot: bool = False
    ) -> InvariantViolation:
        if missing is None:
            return InvariantViolation(f"nothing is missing at txn {self.frontier}, and nothing is complete")
        listed = next(one for one in chosen if one.txn == missing.txn)
        return self._freezer.frozen(
            missing.txn,
            missing.why,
            missing.part,
            last=listed.last,
            is_named=not listed.lost,
            in_snapshot=in_snapshot,
        )


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
