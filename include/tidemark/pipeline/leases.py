"""Leases over a pipeline's ledger: taken, renewed, released and expired by one process.

`Leases` is one process's view. It reads the records since its last look, decides by `core.lease`, and
commits on the head that it decided on. All code that reads or removes parts uses it: a reader takes its
lease *before* it lists what there is, and maintenance announces `since` before it removes anything
(Invariant 12). Restriction: like the ledger below it, a `Leases` is for one thread at a time.

`Hold` is a lease that is held: renewed in the background, checked before each delivery, released at the
end. The renewing thread and the reading thread share the ledger's handle, so one lock guards each call. A
renewal that fails because the store doesn't answer is retried. Once the deadline has passed, or another
process has the lease, the hold is lost for good, and each later call raises `LeaseLost`.

Known limitation: a process that hangs while its renewing thread lives keeps its lease. Limit the time that
a batch may take by the scheduler's own timeout.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from tidemark.core.errors import Determinate, Indeterminate
from tidemark.core.ids import TXN_NONE, Txn
from tidemark.core.lease import (
    SUMMARY,
    Acquired,
    AlreadyEnded,
    Floor,
    HeldByOther,
    HolderToken,
    Lease,
    LeaseLost,
    LeaseRecord,
    Observation,
    Tenure,
    decide_acquire,
    decide_expire,
    decide_keep,
    decide_release,
    decide_renew,
    decide_since,
    floor,
    follow,
    observe,
    since_of,
    with_summary,
)
from tidemark.core.ledger import Head, Put
from tidemark.core.reading import decide_accept, decide_forget, holders_of
from tidemark.pipeline.context import settle
from tidemark.ports.control import Ledger

TTL_SECONDS: Final = 120.0
LOOKS_PER_TTL: Final = 4
RENEWALS_PER_TTL: Final = 3
WATCHED_TTL_SECONDS_MAX: Final = 600.0

# A lease must expire while its machine is suspended: use a clock that counts that time, where there is one.
_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def monotonic_seconds() -> float:
    """Seconds on this machine's clock that never goes back. It counts while the machine sleeps, where the
    system has such a clock."""
    return time.clock_gettime(_CLOCK)


class Leases:
    """The leases of one pipeline, as one process reads and changes them."""

    def __init__(
        self, ledger: Ledger[LeaseRecord], *, clock: Callable[[], float] = monotonic_seconds
    ) -> None:
        self._ledger = ledger
        self._clock = clock
        self._last: dict[str, Lease] = {}
        self._began: dict[str, Txn] = {}
        self._read_upper = 1
        self._seen: dict[str, Observation] = {}

    def latest(self) -> tuple[Lease, ...]:
        """The last record of each name, including ended leases."""
        return self._latest(self._ledger.head())

    def since(self) -> Txn:
        """The first `txn` that maintenance has retained."""
        return since_of(self._ledger.head())

    def current(self, name: str) -> Lease | None:
        """The last record of this name; None when there is none."""
        self.latest()
        return self._last.get(name)

    def began_at(self, name: str) -> Txn | None:
        """The position at which the lease of this name was taken anew: a consumer that is still there has
        confirmed nothing. None when there is no such lease."""
        self.latest()
        return self._began.get(name)

    def take(
        self, name: str, holder: HolderToken, *, start: Txn | None, ttl_seconds: float = TTL_SECONDS
    ) -> Tenure | HeldByOther:
        """Take a lease. A new one begins at `start`, or at the first retained transaction; an existing one
        goes on where it is. A lease of another holder is taken once this process has observed it without a
        renewal for longer than its TTL; each call is one observation."""
        self.look()
        began = self._clock()

        def decide(head: Head) -> Put[Lease, Any] | HeldByOther:
            nonlocal began
            self._latest(head)
            began = self._clock()
            return decide_acquire(
                head=head,
                current=self._last.get(name),
                name=name,
                holder=holder,
                start=since_of(head) if start is None else start,
                ttl_seconds=ttl_seconds,
                observation=self._seen.get(name),
            )

        outcome: Any = self._settle(decide, what=f"lease {name!r}")
        match outcome:
            case Acquired(lease):
                return Tenure(lease, began)
            case _:
                return HeldByOther(outcome.current)

    def renew(
        self,
        tenure: Tenure,
        *,
        txn: Txn | None = None,
        planned: Txn | None = None,
        link: int = 0,
        accepted: Txn = TXN_NONE,
    ) -> Tenure:
        """A new deadline, or `LeaseLost`. `txn` releases everything below it, and `link` is the link of the
        last transaction there; `planned` records a batch, `accepted` an agreement to a replacement."""
        began = self._clock()

        def decide(head: Head) -> Put[Lease, Lease] | Lease:
            nonlocal began
            self._latest(head)
            began = self._clock()
            return decide_renew(
                head=head,
                tenure=tenure,
                current=self._last.get(tenure.lease.name),
                now_seconds=began,
                txn=txn,
                planned=planned,
                link=link,
                accepted=accepted,
            )

        return Tenure(self._settle(decide, what=f"lease {tenure.lease.name!r}"), began)

    def accept(self, name: str, txn: Txn) -> Lease:
        """Record that a consumer agrees to the replacement of its shard."""

        def decide(head: Head) -> Put[Lease, Lease] | Lease:
            self._latest(head)
            return decide_accept(head=head, current=self._last.get(name), name=name, txn=txn)

        accepted: Lease = self._settle(decide, what=f"consumer {name!r}")
        return accepted

    def release(self, lease: Lease) -> None:
        """End our own lease; one that has ended already is left as it is."""

        def decide(head: Head) -> Put[Lease, Lease] | Lease | AlreadyEnded:
            self._latest(head)
            return decide_release(head=head, lease=lease, current=self._last.get(lease.name))

        self._settle(decide, what=f"lease {lease.name!r}")

    def look(self) -> None:
        """Look at every live lease. Repeated looks add up to the observation that a lease is not renewed."""
        now = self._clock()
        self._seen = {
            lease.name: observe(self._seen.get(lease.name), lease, now_seconds=now)
            for lease in self.latest()
            if lease.is_live
        }

    def expire(self) -> tuple[Lease, ...]:
        """Look, and end the leases that this process has observed without a renewal for longer than their
        TTL."""
        self.look()
        due = [name for name, seen in self._seen.items() if seen.expires(self._last[name])]
        ended = [self._expired(name, self._seen[name]) for name in due]
        return tuple(lease for lease in ended if lease is not None)

    def _expired(self, name: str, seen: Observation) -> Lease | None:
        def decide(head: Head) -> Put[Lease, Any] | HeldByOther | None:
            self._latest(head)
            # One that has ended may be left out of a summary.
            current = self._last.get(name)
            if current is None or not current.is_live:
                return None
            return decide_expire(head=head, current=current, observation=seen)

        outcome: Any = self._settle(decide, what=f"lease {name!r}")
        return outcome if isinstance(outcome, Lease) else None

    def keep(self, name: str, holder: HolderToken) -> Lease:
        """Hold everything that is retained under a consumer's name until it is forgotten, in one commit, so
        that a process that dies leaves no lease that another one has to wait for."""

        def decide(head: Head) -> Put[Lease, Lease] | Lease:
            self._latest(head)
            current = self._last.get(name)
            return decide_keep(head=head, current=current, name=name, holder=holder, ttl_seconds=TTL_SECONDS)

        kept: Lease = self._settle(decide, what=f"lease {name!r}")
        return kept

    def forget(self, name: str) -> Lease:
        """Remove a consumer's frontier, for good."""

        def decide(head: Head) -> Put[Lease, Lease] | Lease:
            self._latest(head)
            return decide_forget(head=head, current=self._last.get(name), name=name)

        forgotten: Lease = self._settle(decide, what=f"consumer {name!r}")
        return forgotten

    def floor(self, *, consumers: Mapping[str, Txn], window: Txn) -> Floor:
        """The floor, by the current leases, consumers and the retention window; everything below it may be
        removed."""
        return floor(self.latest(), consumers=consumers, window=window)

    def announce(self, *, consumers: Mapping[str, Txn], window: Txn) -> Floor:
        """Raise `since` to the floor, on the head that the floor was computed on. After that, it is safe to
        remove everything below `since`. `consumers` and `window` must not rise while this runs."""
        found = self.floor(consumers=consumers, window=window)

        def decide(head: Head) -> Put[Lease, Txn] | Txn:
            nonlocal found
            found = floor(self._latest(head), consumers=consumers, window=window)
            return decide_since(head=head, floor=found)

        self._settle(decide, what="the floor of the kept transactions")
        return found

    def _latest(self, head: Head) -> tuple[Lease, ...]:
        # Records never change, so only those added since the last look are read, or since the last summary.
        summary = head.marks.get(SUMMARY, 0)
        for record in self._ledger.read(max(self._read_upper, summary), head.upper):
            if isinstance(record, Lease):
                follow(record, last=self._last, began=self._began)
            elif record.number >= self._read_upper:
                self._last = {lease.name: lease for lease in record.leases}
                self._began = dict(record.began)
        self._read_upper = max(self._read_upper, head.upper)
        return tuple(self._last.values())

    def _settle(self, decide: Callable[[Head], Put[Any, Any] | Any], *, what: str) -> Any:
        """Decide and commit, with a summary where one is due."""

        def summed(head: Head) -> Any:
            found = decide(head)
            if not isinstance(found, Put):
                return found
            return with_summary(head=head, put=found, leases=self._last, began=self._began)

        return settle(self._ledger, summed, what=what)


def expire_stale(
    leases: Leases,
    *,
    name: str | None = None,
    ttl_seconds_max: float = WATCHED_TTL_SECONDS_MAX,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[Lease, ...]:
    """End the leases (the one of a name, or all) whose holders no longer renew. Returns early once every
    holder has renewed.

    Each lease is watched for a little longer than its TTL, and at most for twice the longest one; a lease
    with a TTL above `ttl_seconds_max` is not watched (Invariant 14)."""
    ended: list[Lease] = []
    live = [lease for lease in leases.latest() if lease.is_live and name in (None, lease.name)]
    watched = {lease.name: lease for lease in live if lease.ttl_seconds <= ttl_seconds_max}
    leases.look()
    for _ in range(2 * LOOKS_PER_TTL):
        quiet = [lease for one, lease in watched.items() if leases.current(one) == lease]
        if not quiet:
            break
        sleep(max(lease.ttl_seconds for lease in quiet) / LOOKS_PER_TTL)
        ended += leases.expire()
    return tuple(ended)


# Leases that are held.

# The pause between looks at a lease that another process holds.
LOOK_SECONDS_MAX: Final = 15.0


class Hold:
    """One process's hold on one lease, from `take_hold` to `release`."""

    def __init__(
        self, leases: Leases, tenure: Tenure, *, clock: Callable[[], float] = monotonic_seconds
    ) -> None:
        self._leases = leases
        self._tenure = tenure
        self._clock = clock
        self._lock = threading.Lock()
        self._lost: LeaseLost | None = None
        self._ended = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name=f"lease {tenure.lease.name}", daemon=True)
        self._keeper.start()

    @property
    def lease(self) -> Lease:
        """Our lease, as we wrote it last."""
        return self._tenure.lease

    @property
    def is_new(self) -> bool:
        """Whether nothing was ever confirmed under this name."""
        with self._lock:
            return self._leases.began_at(self.lease.name) == self.lease.txn

    def check(self) -> None:
        """Raise `LeaseLost` if the lease may not be ours any more."""
        with self._lock:
            self._check()

    def advance(self, txn: Txn, *, link: int) -> None:
        """Record that everything below `txn` is delivered: it is never delivered again. Precondition: the
        effects are durable. `link` is that of the last transaction."""
        # The planned end stays: the batch was handed out up to there, and may have been processed whole.
        self._renew(txn=txn, planned=max(txn, self.lease.planned), link=link)

    def plan(self, upper: Txn) -> None:
        """Record the end of the batch that is about to be handed out."""
        self._renew(planned=upper)

    def accept(self, txn: Txn) -> None:
        """Record that the consumer agrees to the replacement of its shard at a transaction."""
        self._renew(accepted=txn)

    def since_and_holders(self) -> tuple[Txn, tuple[str, ...]]:
        """The first retained transaction, and the current holders of leases."""
        with self._lock:
            return self._leases.since(), holders_of(self._leases.latest())

    def release(self) -> None:
        """Stop renewing, and end the lease. A lost lease is left to its new holder; one that can't be ended
        now expires."""
        self._ended.set()
        self._keeper.join()
        with self._lock, suppress(Determinate, Indeterminate):
            self._leases.release(self.lease)

    def _check(self) -> None:
        if self._lost is not None:
            raise self._lost
        self._tenure.check(now_seconds=self._clock())

    def _renew(
        self,
        *,
        txn: Txn | None = None,
        planned: Txn | None = None,
        link: int = 0,
        accepted: Txn = TXN_NONE,
    ) -> None:
        with self._lock:
            self._check()
            self._tenure = self._leases.renew(
                self._tenure, txn=txn, planned=planned, link=link, accepted=accepted
            )

    def _keep(self) -> None:
        pause = self.lease.ttl_seconds / RENEWALS_PER_TTL
        while not self._ended.wait(pause):
            try:
                self._renew()
                pause = self.lease.ttl_seconds / RENEWALS_PER_TTL
            except LeaseLost as lost:
                self._lost = lost
                return
            except Exception:
                # The store may answer the next time; if it doesn't, the deadline ends the hold.
                pause = min(1.0, pause)


def take_hold(
    leases: Leases,
    name: str,
    holder: HolderToken,
    *,
    start: Txn | None = None,
    ttl_seconds: float = TTL_SECONDS,
    wait_seconds: float = 2 * TTL_SECONDS,
    stop: threading.Event | None = None,
) -> Hold:
    """Take a lease. Waits for one that another process holds, until it is released or expires; `Determinate`
    when that takes longer than `wait_seconds`.

    Without `start`, a new name holds everything that is retained."""
    deadline = monotonic_seconds() + wait_seconds
    stop = stop or threading.Event()
    while True:
        outcome = leases.take(name, holder, start=start, ttl_seconds=ttl_seconds)
        if isinstance(outcome, Tenure):
            return Hold(leases, outcome)
        if monotonic_seconds() >= deadline or stop.is_set():
            raise _held(outcome)
        stop.wait(min(outcome.current.ttl_seconds / LOOKS_PER_TTL, LOOK_SECONDS_MAX))


def _held(outcome: HeldByOther) -> Determinate:
    current = outcome.current
    return Determinate(
        f"lease {current.name!r} is held by {current.holder}, at txn {current.txn}",
        hint="a consumer is read by one process at a time: stop the other, wait for it, or use another name",
    )
