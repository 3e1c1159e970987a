"""Reading a shard transaction by transaction: consumers, what a reader has delivered, and why it is frozen.

A consumer reads under a name, with a durable frontier: the `txn` of its lease (`core.lease`). One record
holds how far the consumer is, which process reads for it, and which batch that received. So nothing can get
out of step, and a process that has lost its lease can't move the frontier.

A reader lists the parts of each `txn` in order, fetches them with several workers in any order, and delivers
whole transactions in order. `ReadAccount` decides; the reader around it waits, fetches and locks (every call
under one lock).

Promise:

- Invariant 11: a missing part freezes the frontier at that part's `txn`. Everything before it is delivered,
  later parts that arrive don't move it, and the report names file, `txn` and size.
- Invariant 12: a fetch is in flight until it has ended. So a reader that releases files and lease only when
  no fetch is in flight never releases a file that is being read. A shutdown advances nothing.
- Every `txn` is delivered whole, once, in order; a stopped reader continues at `delivered_upper`.

Terms:

- *frontier*: the first `txn` that isn't completely fetched; every one below it can be delivered.
- *fetch*: one assignment of one part to one worker. It ends once, as fetched, missing or abandoned.

Restrictions: transactions are listed in order; listing `n` implies that all below `n` are listed, so an
untouched `txn` needs no call.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tidemark.core.errors import InvalidUsage, InvariantViolation
from tidemark.core.ids import TXN_FIRST, ShardId, Txn, checked_name, next_txn
from tidemark.core.lease import Lease, LeaseState
from tidemark.core.ledger import UPPER, Event, Head, JournalEntry, Put
from tidemark.core.seal import Part

CANDIDATE: Final = "candidate"
"""The first part of the names of leases that hold input for candidate generations."""


def lease_name(consumer: str, shard: ShardId) -> str:
    """The name of the lease that holds a consumer's frontier in a shard."""
    if consumer == CANDIDATE:
        raise InvalidUsage(
            f"{CANDIDATE!r} can't be the name of a consumer",
            hint="it is that of the leases of candidate generations: choose another name",
        )
    return f"{checked_name(consumer, what='consumer')}/{checked_name(shard, what='shard')}"


def consumer_of(lease: Lease) -> tuple[str, ShardId] | None:
    """The consumer and the shard whose frontier a lease holds; None for a temporary reader's lease."""
    consumer, of_shard, shard = lease.name.partition("/")
    return (consumer, ShardId(shard)) if of_shard and consumer != CANDIDATE else None


def effect_key(pipeline: str, consumer: str, shard: ShardId, *, epoch: int = 0) -> str:
    """The key of a consumer's effects; for Delta, the application id. After a recovery a number may stand for
    another transaction than before, so each epoch has its own key."""
    key = f"tidemark/{pipeline}/{shard}/{consumer}"
    return f"{key}/epoch-{epoch}" if epoch else key


def batch_fence(lease: Lease) -> Txn | None:
    """The upper that the next batch must have: that of a batch that was handed out and may have been
    processed. None if there is no such batch.

    So an effect that is keyed by its batch's last transaction is done either for all of a repeated batch or
    for none of it, also by a process that has lost the lease and does not know it yet. A longer batch would
    have the effect twice; so would a shorter one, whose effect does not keep a longer one from coming
    later."""
    return lease.planned if lease.planned > lease.txn else None


def decide_forget(*, head: Head, current: Lease | None, name: str) -> Put[Lease, Lease]:
    """Forget a consumer: maintenance no longer waits for it. `InvalidUsage` while a process reads for it."""
    if current is None or not current.is_kept:
        raise InvalidUsage(f"there is no consumer {name!r}", hint="see `tidemark consumers list`")
    if current.is_live:
        raise InvalidUsage(f"consumer {name!r} is being read by {current.holder}", hint="stop it first")
    gone = replace(current, epoch=int(head.upper), state=LeaseState.FORGOTTEN)
    return Put(marks={UPPER: gone.epoch + 1}, records=(gone,), result=gone)


def decide_accept(*, head: Head, current: Lease | None, name: str, txn: Txn) -> Put[Lease, Lease] | Lease:
    """Record that a consumer agrees to the replacement of its shard at a transaction."""
    if current is None or not current.is_kept:
        raise InvalidUsage(f"there is no consumer {name!r}", hint="see `tidemark consumers list`")
    if current.accepted >= txn:
        return current
    known = replace(current, epoch=int(head.upper), accepted=txn)
    return Put(marks={UPPER: known.epoch + 1}, records=(known,), result=known)


class ShardReplaced(InvalidUsage):
    """A promotion has replaced the shard at a transaction that the consumer does not have: what comes from
    there on has another key, type or order than what it has had. It stops until it agrees to a snapshot."""

    def __init__(self, consumer: str, shard: ShardId, txn: Txn, *, pipeline: str, accepted: bool) -> None:
        hint = "call snapshot(): it gives the whole new state; replace with it all that the consumer has"
        if not accepted:
            hint = (
                f"`tidemark consumers accept {pipeline} {shard} {consumer} {txn}`, or `accept={txn}` for the"
                f" Consumer, says that its target takes the new shape; then {hint}"
            )
        super().__init__(
            f"transaction {txn} replaced shard {shard!r} by one with another key, type or order, and"
            f" consumer {consumer!r} has not had it",
            hint=hint,
        )
        self.consumer, self.shard, self.txn, self.accepted = consumer, shard, txn, accepted


@dataclass(frozen=True, slots=True)
class Freeze:
    """Why a reader is frozen. Everything before `txn` was delivered; nothing from it on will be until this is
    repaired.

    `last` is the last transaction that is lost with it: a merged file has several. `path` is empty if the
    listing itself can't be read, and `is_named` is whether the log still names the file. `since` is the first
    transaction that maintenance has kept; `holders` are the live leases at the time. `in_snapshot` means that
    a snapshot needs the part, wherever the consumer is; then it can't be skipped."""

    consumer: str
    shard: ShardId
    txn: Txn
    last: Txn
    why: str
    since: Txn
    path: str = ""
    bytes: int = 0
    holders: tuple[str, ...] = ()
    is_named: bool = True
    in_snapshot: bool = False

    @property
    def removed_by(self) -> str:
        """What is known about the removal. Maintenance removes a file from the log before it deletes it."""
        if self.txn < self.since:
            return f"maintenance may delete transactions below {self.since}"
        if self.path and self.is_named:
            return "the log still lists it, and maintenance deletes only files that no log lists"
        return "it is not known what deleted it"

    def __str__(self) -> str:
        what = f"part {self.path} ({self.bytes} bytes)" if self.path else "the list of its log"
        together = f" with all transactions up to {self.last}" if self.last > self.txn else ""
        held = f"held by {', '.join(self.holders)}" if self.holders else "held by no lease"
        return (
            f"consumer {self.consumer!r} is frozen at txn {self.txn} of shard {self.shard!r}: "
            f"{what}{together} can't be read: {self.why}; {self.removed_by}; {held}"
        )


class Frozen(InvariantViolation):
    """A reader's frontier can't move until the part is repaired or its `txn` is skipped."""

    def __init__(self, freeze: Freeze, *, pipeline: str) -> None:
        at = f"{pipeline} --from {freeze.txn} --to {freeze.txn}"
        to = f" --to {freeze.last}" if freeze.last > freeze.txn else ""
        skip = f"{pipeline} {freeze.shard} {freeze.consumer} {freeze.txn}{to}"
        hint = "restore the table's files from a backup, then read again"
        if freeze.path:
            hint = f"restore it with `tidemark replay {at} --mode repair` and read again"
        if freeze.path and not freeze.in_snapshot:
            hint += (
                ", or skip what is lost, for this consumer only, with "
                f'`tidemark consumers skip {skip} --reason "..."`'
            )
        super().__init__(str(freeze), hint=hint)
        self.freeze = freeze


def open_freeze(
    entries: Sequence[JournalEntry], *, consumer: str, shard: ShardId
) -> Mapping[str, str] | None:
    """The details of a consumer's freeze, from the journal of one transaction; None once it was resolved.

    A repair resolves a freeze for all consumers, a skip for one."""
    freeze: Mapping[str, str] | None = None
    for entry in entries:
        mine = {"consumer": consumer, "shard": str(shard)}.items() <= entry.detail.items()
        if mine and entry.event is Event.FROZEN:
            freeze = entry.detail
        elif entry.event is Event.REPAIRED or (mine and entry.event is Event.PASSED_OVER):
            freeze = None
    return freeze


def holders_of(leases: Sequence[Lease]) -> tuple[str, ...]:
    """The live leases as text for a report."""
    return tuple(f"{lease.name} of {lease.holder} at txn {lease.txn}" for lease in leases if lease.is_live)


@dataclass(frozen=True, slots=True)
class Fetch:
    """One assignment of a part to a worker; `number` distinguishes it from earlier assignments of that
    part."""

    number: int
    worker: str
    txn: Txn
    part: Part


@dataclass(frozen=True, slots=True)
class MissingPart:
    """A part that can't be read, and why."""

    txn: Txn
    part: Part
    why: str

    def __str__(self) -> str:
        return f"part {self.part.path} of txn {self.txn} ({self.part.bytes} bytes) is missing: {self.why}"


@dataclass(frozen=True, slots=True)
class ReadTxn:
    """A complete transaction: its parts in listing order, or the reason why it was skipped."""

    txn: Txn
    parts: tuple[Part, ...]
    skipped: str = ""


@dataclass(frozen=True, slots=True)
class Deliverable:
    """The complete transactions in [lower, upper). Those not in `txns` don't touch the shard."""

    lower: Txn
    upper: Txn
    txns: tuple[ReadTxn, ...]


@dataclass(slots=True)
class _Account:
    parts: tuple[Part, ...]
    unfetched: int
    skipped: str = ""


class ReadAccount:
    """The progress of one reader of one shard, from `start` on.

    At most `ahead_parts_max` parts are in flight or fetched and undelivered. The frontier's own transaction
    is exempt, because without all of it nothing could be delivered."""

    def __init__(self, *, start: Txn = TXN_FIRST, ahead_parts_max: int) -> None:
        if start < TXN_FIRST or ahead_parts_max < 1:
            raise InvalidUsage(f"start {start} and ahead_parts_max {ahead_parts_max} must be 1 or more")
        self._ahead_parts_max = ahead_parts_max
        self._delivered_upper = start
        self._listed_upper = start
        self._accounts: dict[Txn, _Account] = {}  # listed, not delivered
        self._unready: deque[Txn] = deque()  # of those, from the frontier on
        self._ready: deque[Txn] = deque()  # of those, below the frontier
        self._paths: set[str] = set()  # of the parts of those
        self._pending: list[tuple[Txn, str, Part]] = []  # a heap; parts of a skipped txn are ignored
        self._in_flight: dict[int, Fetch] = {}
        self._missing: dict[str, MissingPart] = {}
        self._fetched_count = 0  # fetched, not delivered
        self._fetch_number = 0
        self._draining = False

    @property
    def frontier(self) -> Txn:
        """The first `txn` that isn't completely fetched."""
        return self._unready[0] if self._unready else self._listed_upper

    @property
    def delivered_upper(self) -> Txn:
        """The first `txn` that is not delivered; the next reader continues there."""
        return self._delivered_upper

    @property
    def missing_parts(self) -> tuple[MissingPart, ...]:
        """The missing parts, lowest `txn` first."""
        return tuple(sorted(self._missing.values(), key=lambda missing: (missing.txn, missing.part.path)))

    @property
    def frozen(self) -> MissingPart | None:
        """The lowest missing part: the frontier can't pass it unless its `txn` is skipped."""
        return next(iter(self.missing_parts), None)

    def listed(self, txn: Txn, parts: Sequence[Part] = ()) -> None:
        """List all parts of `txn`; transactions between it and the last listed one are untouched."""
        if txn < self._listed_upper:
            raise InvalidUsage(
                f"txn {txn} comes after {self._listed_upper - 1}", hint="pass each transaction once, in order"
            )
        paths = {part.path for part in parts}
        if len(paths) < len(parts) or paths & self._paths:
            raise InvariantViolation(
                f"txn {txn} lists a part twice, or one of another txn: {[part.path for part in parts]}",
                hint="a part belongs to one transaction; check the commits of the log",
            )
        self._listed_upper = next_txn(txn)
        self._accounts[txn] = _Account(tuple(parts), len(parts))
        self._unready.append(txn)
        self._paths |= paths
        for part in parts:
            self._put_back(txn, part)
        self._settle()

    def next_fetch(self, worker: str) -> Fetch | None:
        """The next part for this worker, lowest `txn` first; None if there is none, or while draining."""
        if self._draining:
            return None
        while self._pending and not self._is_wanted(self._pending[0][0]):
            heapq.heappop(self._pending)
        if not self._pending:
            return None
        ahead_parts = len(self._in_flight) + self._fetched_count
        if self._pending[0][0] > self.frontier and ahead_parts >= self._ahead_parts_max:
            return None
        txn, _, part = heapq.heappop(self._pending)
        self._fetch_number += 1
        fetch = Fetch(self._fetch_number, worker, txn, part)
        self._in_flight[fetch.number] = fetch
        return fetch

    def fetched(self, fetch: Fetch) -> bool:
        """The part was fetched. False if this fetch had already ended: a late result is dropped."""
        ended = self._end(fetch)
        if ended and self._is_wanted(fetch.txn):
            self._accounts[fetch.txn].unfetched -= 1
            self._fetched_count += 1
            self._settle()
        return ended

    def missing(self, fetch: Fetch, why: str) -> bool:
        """The file is missing or differs from the sealed one: freezes the frontier at its `txn`. Returns as
        `fetched`."""
        ended = self._end(fetch)
        if ended and self._is_wanted(fetch.txn):
            self._missing[fetch.part.path] = MissingPart(fetch.txn, fetch.part, why)
        return ended

    def abandoned(self, fetch: Fetch) -> bool:
        """The fetch ended without the part (cancelled, transient error): it is assigned again. Returns as
        `fetched`."""
        ended = self._end(fetch)
        if ended and self._is_wanted(fetch.txn):
            self._put_back(fetch.txn, fetch.part)
        return ended

    def skipped(self, txn: Txn, reason: str) -> None:
        """Skip the whole transaction: it is delivered without parts, with the reason."""
        lost = [path for path, missing in self._missing.items() if missing.txn == txn]
        if not lost or not reason.strip():
            raise InvalidUsage(
                f"txn {txn} can't be skipped with the reason {reason!r}",
                hint="only a txn with a missing part is skipped, and the reason is recorded",
            )
        for path in lost:
            del self._missing[path]
        account = self._accounts[txn]
        self._fetched_count -= len(account.parts) - account.unfetched
        self._paths -= {part.path for part in account.parts}
        self._accounts[txn] = _Account((), 0, reason)
        self._settle()

    def deliverable(self) -> Deliverable | None:
        """All complete transactions not yet delivered; the same again until `delivered`."""
        if self.frontier == self._delivered_upper:
            return None
        accounts = ((txn, self._accounts[txn]) for txn in self._ready)
        txns = tuple(ReadTxn(txn, account.parts, account.skipped) for txn, account in accounts)
        return Deliverable(self._delivered_upper, self.frontier, txns)

    def delivered(self, upper: Txn) -> None:
        """The consumer has everything below `upper`, durably; it is never delivered again."""
        if not self._delivered_upper <= upper <= self.frontier:
            raise InvalidUsage(
                f"upper {upper} is outside what can be delivered, {self._delivered_upper} to {self.frontier}",
                hint="deliver whole transactions, in order, once",
            )
        while self._ready and self._ready[0] < upper:
            parts = self._accounts.pop(self._ready.popleft()).parts
            self._fetched_count -= len(parts)
            self._paths -= {part.path for part in parts}
        self._delivered_upper = upper

    def drain(self) -> None:
        """Begin a shutdown: no new fetch is assigned."""
        self._draining = True

    def _is_wanted(self, txn: Txn) -> bool:
        account = self._accounts.get(txn)
        return account is not None and not account.skipped

    def _put_back(self, txn: Txn, part: Part) -> None:
        heapq.heappush(self._pending, (txn, part.path, part))

    def _end(self, fetch: Fetch) -> bool:
        return self._in_flight.pop(fetch.number, None) is not None

    def _settle(self) -> None:
        while self._unready and self._accounts[self._unready[0]].unfetched == 0:
            self._ready.append(self._unready.popleft())
