"""Named leases: a reader's hold on a `txn`, and the floor that all holds impose on maintenance.

A lease means "this reader needs every part from this `txn` on". Maintenance removes only what is below the
floor, the lowest `txn` that is needed (Invariant 12: maintenance asks the leases first).

Leases are records of one ledger; the last record of a name is the current lease, and each write has its own
*epoch*, the record's number. The same ledger carries the mark `since`, the first `txn` that is kept. Raising
`since` and taking a lease are commits on one head, so one of two that race is decided again: no reader gets a
hold on something that is about to be removed.

Expiry is *observed non-renewal*: clocks of two machines are never compared. An observer considers a lease
expired once it has seen one epoch unchanged for longer than its ttl on its own clock. One look counts for
half a ttl at most, and for nothing if the clock went back: after a jump or a sleep it needs two more looks,
and a live holder renews in the meantime. Renew every third of a ttl, look every quarter.

The holder's deadline is stricter: it counts from *before* its last write, so the holder gives up before
another process may take its lease. From then on `Tenure.check` and a renewal raise `LeaseLost`, taken or not.

A *consumer's* lease is named `<consumer>/<shard>`, and its `txn` is the consumer's frontier. The conditional
commit that renews the hold also moves the frontier, so a process that has lost the lease can't move it. The
frontier counts even while no process holds the lease, until the consumer is forgotten; the next holder
continues exactly there.

Each renewal is a record. From time to time a commit adds a `LeaseSummary` of all leases that are needed, and
moves a mark to it. A process that opens the ledger begins there, so its cost does not grow with the past.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, Literal, NewType, TypeVar

from tidemark.core.errors import Determinate, InvalidUsage, InvariantViolation
from tidemark.core.ids import TXN_FIRST, TXN_NONE, Txn, checked_name
from tidemark.core.ledger import UPPER, Head, Put

HolderToken = NewType("HolderToken", str)
T = TypeVar("T")

SINCE: Final = "since"
SUMMARY: Final = "summary"
LEASE_MARKS: Final = (UPPER, SINCE, SUMMARY)
SUMMARY_RECORDS_MIN: Final = 256


class LeaseState(StrEnum):
    """The state of a lease. An ended lease needs nothing any more, unless it is a consumer's."""

    LIVE = "live"
    RELEASED = "released"
    EXPIRED = "expired"
    FORGOTTEN = "forgotten"


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease. `name` is the reader's and outlives its processes; `holder` is the token of one process.

    `planned` is the upper of the last batch that a consumer received and may have processed; 0 for none.
    `link` is that of the transaction before `txn`, the last that a consumer received; 0 if it received
    none. `accepted` is the transaction whose replacement of the shard a consumer has agreed to."""

    name: str
    holder: HolderToken
    txn: Txn
    epoch: int
    ttl_seconds: float
    state: LeaseState = LeaseState.LIVE
    planned: Txn = TXN_NONE
    link: int = 0
    accepted: Txn = TXN_NONE

    def __post_init__(self) -> None:
        for name in self.name.split("/", 1):
            checked_name(name, what="lease")
        if not self.holder or self.txn < TXN_FIRST or self.epoch < 1:
            raise InvalidUsage(f"lease with no holder, or with txn {self.txn}, epoch {self.epoch} below 1")
        if not (self.ttl_seconds > 0 and math.isfinite(self.ttl_seconds)):
            raise InvalidUsage(f"lease {self.name!r}: ttl_seconds {self.ttl_seconds} is not a positive time")

    @property
    def number(self) -> int:
        return self.epoch

    @property
    def key(self) -> str:
        return self.name

    @property
    def is_live(self) -> bool:
        return self.state is LeaseState.LIVE

    @property
    def is_kept(self) -> bool:
        """Whether its `txn` is needed: while it is held and, for a consumer, until it is forgotten."""
        return self.is_live or ("/" in self.name and self.state is not LeaseState.FORGOTTEN)


@dataclass(frozen=True, slots=True)
class LeaseSummary:
    """All leases that were needed at one version of the ledger, and the position at which each was taken
    anew. Records before it need not be read."""

    number: int
    leases: tuple[Lease, ...]
    began: Mapping[str, Txn]

    def __post_init__(self) -> None:
        names = [lease.name for lease in self.leases if lease.is_kept and lease.epoch < self.number]
        if sorted(names) != sorted(self.began) or len(names) != len(self.leases):
            raise InvalidUsage(f"the summary {self.number} of leases has others than it began: {names}")

    @property
    def key(self) -> str:
        return ""


LeaseRecord = Lease | LeaseSummary


def with_summary(
    *, head: Head, put: Put[LeaseRecord, T], leases: Mapping[str, Lease], began: Mapping[str, Txn]
) -> Put[LeaseRecord, T]:
    """The put with a summary, if one is due. `leases` and `began` are those at this head: the last record of
    each name, and where it was taken anew.

    One is due when twice as many records follow the last one as it would have, so that summaries take no more
    room than leases."""
    upper = put.marks.get(UPPER, head.upper)
    after, first = dict(leases), dict(began)
    for lease in put.records:
        if isinstance(lease, Lease):
            follow(lease, last=after, began=first)
    needed = tuple(lease for lease in after.values() if lease.is_kept)
    follows = upper - head.marks.get(SUMMARY, 0)
    if not put.records or follows < max(SUMMARY_RECORDS_MIN, 2 * len(needed)):
        return put
    summary = LeaseSummary(upper, needed, {lease.name: first[lease.name] for lease in needed})
    marks = {**put.marks, UPPER: upper + 1, SUMMARY: upper}
    return Put(marks, (*put.records, summary), put.result)


def follow(lease: Lease, *, last: dict[str, Lease], began: dict[str, Txn]) -> None:
    """Take in one more record of the ledger."""
    before = last.get(lease.name)
    if before is None or not before.is_kept:
        began[lease.name] = lease.txn
    last[lease.name] = lease


class LeaseLost(Determinate):
    """The holder's lease is past its deadline, taken or ended; the intended action did not happen.

    It is not a lost race: the holder was promised its parts, and must stop at once."""

    def __init__(self, lease: Lease, why: str) -> None:
        super().__init__(
            f"lease {lease.name!r} of {lease.holder} at txn {lease.txn} is lost: {why}",
            hint="discard what was not delivered, acquire the lease again, and continue after the last"
            " delivered transaction",
        )
        self.lease = lease
        self.why = why


@dataclass(frozen=True, slots=True)
class Tenure:
    """The holder's view: the lease it wrote last, and its monotonic time before that write."""

    lease: Lease
    written_after_seconds: float

    def check(self, *, now_seconds: float) -> None:
        """Call before each delivery. Raises `LeaseLost` once the deadline has passed."""
        age_seconds = now_seconds - self.written_after_seconds
        if age_seconds > self.lease.ttl_seconds:
            why = f"not renewed for {age_seconds:g} seconds, and it lasts {self.lease.ttl_seconds:g}"
            raise LeaseLost(self.lease, why)


@dataclass(frozen=True, slots=True)
class Observation:
    """One observer's knowledge of one lease: its epoch, and how long that was seen unchanged."""

    name: str
    epoch: int
    seen_at_seconds: float
    unchanged_seconds: float = 0.0

    def expires(self, lease: Lease) -> bool:
        """Whether this lease was seen unchanged for longer than its ttl."""
        same = (self.name, self.epoch) == (lease.name, lease.epoch)
        return same and lease.is_live and self.unchanged_seconds > lease.ttl_seconds


def observe(previous: Observation | None, lease: Lease, *, now_seconds: float) -> Observation:
    """Look again; `previous` is this observer's last look at the name, on the same clock."""
    if previous is None or (previous.name, previous.epoch) != (lease.name, lease.epoch):
        return Observation(lease.name, lease.epoch, now_seconds)
    step_seconds = min(max(now_seconds - previous.seen_at_seconds, 0.0), lease.ttl_seconds / 2)
    return replace(
        previous, seen_at_seconds=now_seconds, unchanged_seconds=previous.unchanged_seconds + step_seconds
    )


@dataclass(frozen=True, slots=True)
class Acquired:
    """The lease was acquired, at `lease.txn`; `taken_from` is the expired lease that it continues."""

    lease: Lease
    taken_from: Lease | None = None


@dataclass(frozen=True, slots=True)
class HeldByOther:
    """Another process holds the lease, and it has not expired."""

    current: Lease


@dataclass(frozen=True, slots=True)
class AlreadyEnded:
    """There was no lease of ours to end; `current` is the lease of that name, if any."""

    current: Lease | None


def since_of(head: Head) -> Txn:
    """The first `txn` that maintenance has kept."""
    return Txn(head.marks.get(SINCE, TXN_FIRST))


def decide_acquire(
    *,
    head: Head,
    current: Lease | None,
    name: str,
    holder: HolderToken,
    start: Txn,
    ttl_seconds: float,
    observation: Observation | None = None,
) -> Put[Lease, Acquired] | HeldByOther:
    """Acquire the name: at `start` if it is new, or at the `txn` of the expired or of our own lease.

    A kept lease keeps its `txn`, so the next reader continues exactly there. `current` is the last record of
    the name at this head."""
    planned, link, taken_from, since = TXN_NONE, 0, None, since_of(head)
    accepted = TXN_NONE
    if current is not None and current.is_kept:
        expired = observation is not None and observation.expires(current)
        if current.is_live and current.holder != holder and not expired:
            return HeldByOther(current)
        if current.txn < since:
            raise InvariantViolation(
                f"lease {name!r} holds txn {current.txn}, but the oldest retained transaction is {since}",
                hint="the table of leases may have been restored from a copy; use another name",
            )
        start, planned, link = current.txn, current.planned, current.link
        accepted = current.accepted
        taken_from = current if current.is_live and current.holder != holder else None
    elif start < since:
        raise InvalidUsage(
            f"lease {name!r} can't hold txn {start}: the oldest retained transaction is {since}",
            hint="take a snapshot, and hold the transaction after it",
        )
    lease = Lease(name, holder, start, head.upper, ttl_seconds, planned=planned, link=link, accepted=accepted)
    return Put(marks={UPPER: lease.epoch + 1}, records=(lease,), result=Acquired(lease, taken_from))


def decide_renew(
    *, head: Head, tenure: Tenure, current: Lease | None, now_seconds: float,
    txn: Txn | None = None, planned: Txn | None = None, link: int = 0, accepted: Txn = TXN_NONE,
) -> Put[Lease, Lease]:  # fmt: skip
    """Write a new epoch, or raise `LeaseLost`. With `txn`, advance the hold; `link` is that of the
    transaction before `txn`. A hold never goes back, and what was accepted stays so."""
    mine = tenure.lease
    tenure.check(now_seconds=now_seconds)
    if current is None or not current.is_live:
        raise LeaseLost(mine, "it is not there" if current is None else f"it was {current.state}")
    if current.holder != mine.holder:
        raise LeaseLost(mine, f"{current.holder} has taken it")
    # After a lost reply the hold may be further than the tenure knows.
    wanted = current.txn if txn is None else txn
    if wanted < current.txn:
        raise InvalidUsage(
            f"lease {mine.name!r} can't go back from txn {current.txn} to {wanted}",
            hint="released transactions may be deleted; use another name for an earlier transaction",
        )
    plan = current.planned if planned is None else planned
    known = current.link if txn is None else link
    agreed = max(accepted, current.accepted)
    lease = replace(mine, txn=wanted, epoch=int(head.upper), planned=plan, link=known, accepted=agreed)
    return Put(marks={UPPER: lease.epoch + 1}, records=(lease,), result=lease)


def decide_release(*, head: Head, lease: Lease, current: Lease | None) -> Put[Lease, Lease] | AlreadyEnded:
    """End our own lease. Releasing an ended lease is no error: a shutdown may come twice."""
    if current is None or not current.is_live or current.holder != lease.holder:
        return AlreadyEnded(current)
    ended = replace(current, epoch=int(head.upper), state=LeaseState.RELEASED)
    return Put(marks={UPPER: ended.epoch + 1}, records=(ended,), result=ended)


def decide_expire(*, head: Head, current: Lease, observation: Observation) -> Put[Lease, Lease] | HeldByOther:
    """End a lease that was observed to be expired. An earlier renewal makes this commit conflict."""
    if not observation.expires(current):
        return HeldByOther(current)
    ended = replace(current, epoch=int(head.upper), state=LeaseState.EXPIRED)
    return Put(marks={UPPER: ended.epoch + 1}, records=(ended,), result=ended)


def decide_keep(
    *, head: Head, current: Lease | None, name: str, holder: HolderToken, ttl_seconds: float
) -> Put[Lease, Lease] | Lease:
    """Hold everything that is retained under a consumer's name, without a process that has to live for it:
    until it is forgotten. What is held under this name already stays as it is."""
    if current is not None and current.is_kept:
        return current
    lease = Lease(name, holder, since_of(head), head.upper, ttl_seconds, LeaseState.RELEASED)
    return Put(marks={UPPER: lease.epoch + 1}, records=(lease,), result=lease)


@dataclass(frozen=True, slots=True)
class Need:
    """A need for every `txn` from this one on; a lease's need ends `ttl_seconds` after its last renewal."""

    txn: Txn
    kind: Literal["lease", "consumer", "window"]
    name: str
    holder: str = ""
    ttl_seconds: float = 0.0

    def __str__(self) -> str:
        by = f" of {self.holder}" if self.holder else ""
        return f"{self.kind} {self.name}{by} needs txn {self.txn}"


@dataclass(frozen=True, slots=True)
class Floor:
    """Everything below `txn` may be removed. `needs` are all needs, lowest first, for the dry run."""

    txn: Txn
    needs: tuple[Need, ...]

    @property
    def held_by(self) -> tuple[Need, ...]:
        """The needs that keep the floor from rising."""
        return tuple(need for need in self.needs if need.txn == self.txn)


def floor(leases: Sequence[Lease], *, consumers: Mapping[str, Txn], window: Txn) -> Floor:
    """The lowest `txn` that is needed by kept leases, consumers (a state's publisher) or the retention
    window.

    `leases` has the last record of each name. A lease counts until its end is recorded: expire it first."""
    needs = [Need(one.txn, "lease", one.name, one.holder, one.ttl_seconds) for one in leases if one.is_live]
    idle = {lease.name: lease.txn for lease in leases if lease.is_kept and not lease.is_live}
    needs += [Need(txn, "consumer", name) for name, txn in {**consumers, **idle}.items()]
    needs.append(Need(window, "window", "retention"))
    needs.sort(key=lambda need: (need.txn, need.kind, need.name))
    return Floor(needs[0].txn, tuple(needs))


def decide_since(*, head: Head, floor: Floor) -> Put[Lease, Txn] | Txn:
    """Announce what will be removed, before it is: compare-and-max. `floor` is computed from this head's
    leases."""
    if floor.txn <= since_of(head):
        return since_of(head)
    return Put(marks={SINCE: floor.txn}, records=(), result=floor.txn)
