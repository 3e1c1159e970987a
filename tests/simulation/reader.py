"""A reader of one shard, and the maintenance that must never pull a part from under it.

Both are thin loops around the core's decisions: the account of parts, and the leases.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tests.support.memory.control import MemoryControl
from tests.support.memory.ledger import Chaos, Crash
from tidemark.core import reading
from tidemark.core.errors import Determinate
from tidemark.core.ids import ShardId, Txn
from tidemark.core.lease import (
    Acquired,
    HolderToken,
    Lease,
    Observation,
    Tenure,
    decide_acquire,
    decide_expire,
    decide_release,
    decide_renew,
    decide_since,
    floor,
    observe,
    since_of,
)
from tidemark.core.ledger import Head, Put
from tidemark.core.reading import ReadTxn
from tidemark.pipeline.context import settle
from tidemark.ports.control import Ledger

if TYPE_CHECKING:
    from tests.simulation.world import World

TTL_SECONDS = 20.0


def live_leases(records: Iterable[Lease]) -> tuple[Lease, ...]:
    """The last record of each name, without those that have ended."""
    last = {lease.name: lease for lease in sorted(records, key=lambda lease: lease.epoch)}
    return tuple(lease for _, lease in sorted(last.items()) if lease.is_live)


def current(leases: Ledger[Lease], name: str) -> Lease | None:
    found = leases.find(name)
    return found[-1] if found else None


class Reader:
    """Reads a shard transaction by transaction; its frontier survives its processes."""

    def __init__(self, world: World, shard: ShardId) -> None:
        self.world = world
        self.shard = shard
        self.delivered: list[ReadTxn] = []
        self.upper = Txn(1)
        self.fetched: set[str] = set()
        self.torn: list[str] = []
        self.missing: list[str] = []
        self.lives = 0

    def work(self) -> None:
        for _ in range(5):
            self.lives += 1
            try:
                self.read(self.world.scheduler, listings=3)
            except (Crash, Determinate):
                continue

    def catch_up(self) -> None:
        """Without faults, until everything is delivered."""
        self.lives += 1
        self.world.scheduler.now_seconds += 10 * TTL_SECONDS
        self.read(None, listings=1)

    def read(self, chaos: Chaos | None, *, listings: int) -> None:
        world = self.world
        control = MemoryControl(world.warehouse, chaos)
        holder = HolderToken(f"life{self.lives}")
        tenure = self.acquire(control, holder, chaos)
        account = reading.ReadAccount(start=self.upper, ahead_parts_max=4)
        listed = self.upper
        for _ in range(listings):
            head = control.log(self.shard).head()
            for entry in control.log(self.shard).read(listed, head.upper):
                account.listed(entry.txn, entry.parts)
                listed = Txn(entry.txn + 1)
            self.fetch(account, chaos)
            self.deliver(account, tenure)
            if chaos is not None:
                tenure = self.renew(control, tenure)
        lease = tenure.lease

        def release(head: Head) -> Put[Lease, Lease] | object:
            return decide_release(head=head, lease=lease, current=current(control.leases, lease.name))

        settle(control.leases, release, what="release")  # type: ignore[arg-type]

    def acquire(self, control: MemoryControl, holder: HolderToken, chaos: Chaos | None) -> Tenure:
        before = 0.0
        seen: Observation | None = None

        def decide(head: Head) -> Put[Lease, Acquired] | object:
            nonlocal seen, before
            lease = current(control.leases, "reader")
            while lease is not None and lease.is_live and (seen is None or not seen.expires(lease)):
                seen = observe(seen, lease, now_seconds=self.world.scheduler.monotonic())
                self.world.scheduler.now_seconds += TTL_SECONDS / 4
            before = self.world.scheduler.monotonic()
            return decide_acquire(
                head=head, current=lease, name="reader", holder=holder, start=self.upper,
                ttl_seconds=TTL_SECONDS, observation=seen,
            )  # fmt: skip

        acquired = settle(control.leases, decide, what="acquire")
        if not isinstance(acquired, Acquired):
            raise Determinate("someone else reads")
        return Tenure(acquired.lease, before)

    def renew(self, control: MemoryControl, tenure: Tenure) -> Tenure:
        before = self.world.scheduler.monotonic()

        def decide(head: Head) -> Put[Lease, Lease]:
            return decide_renew(
                head=head, tenure=tenure, current=current(control.leases, "reader"),
                now_seconds=self.world.scheduler.monotonic(), txn=self.upper,
            )  # fmt: skip

        return Tenure(settle(control.leases, decide, what="renew"), before)

    def fetch(self, account: reading.ReadAccount, chaos: Chaos | None) -> None:
        """Two workers: parts come in any order; a file that isn't there is missing."""
        flight = []
        while True:
            fetch = account.next_fetch("w")
            if fetch is not None:
                flight.append(fetch)
            if not flight:
                return
            if fetch is None or len(flight) >= 3 or self.world.rng.random() < 0.5:
                done = flight.pop(int(self.world.rng.random() * len(flight)))
                if chaos is not None:
                    self.world.scheduler.pause()
                if done.part.path in self.world.files:
                    self.fetched.add(done.part.path)
                    account.fetched(done)
                else:
                    account.missing(done, "no such file")
                    if done.txn >= self.upper:
                        self.missing.append(done.part.path)
            if self.world.scheduler.rng.random() < 0.3:
                self.take(account)

    def take(self, account: reading.ReadAccount) -> None:
        """Look at what could be delivered now: each transaction must be whole at that moment."""
        ready = account.deliverable()
        for txn in ready.txns if ready is not None else ():
            lacking = [part.path for part in txn.parts if part.path not in self.fetched]
            if lacking:
                self.torn.append(f"transaction {txn.txn} is deliverable without {lacking}")

    def deliver(self, account: reading.ReadAccount, tenure: Tenure) -> None:
        tenure.check(now_seconds=self.world.scheduler.monotonic())
        self.take(account)
        ready = account.deliverable()
        if ready is not None:
            self.delivered += ready.txns
            self.upper = ready.upper
            account.delivered(ready.upper)


def truncate(world: World) -> None:
    """Remove the files of transactions that nobody needs: leases first, then the mark, then files."""
    control = MemoryControl(world.warehouse, world.scheduler)
    seen: dict[str, Observation] = {}
    window = control.log(world.readers[0].shard).head().upper
    for _ in range(6):
        control.leases.head()
        for lease in live_leases(control.leases.read(0, 1 << 62)):
            seen[lease.name] = observe(seen.get(lease.name), lease, now_seconds=world.scheduler.monotonic())

            def expire(head: Head, lease: Lease = lease) -> Put[Lease, Lease] | object:
                now = current(control.leases, lease.name)
                if now is None or not now.is_live:
                    return None
                return decide_expire(head=head, current=now, observation=seen[lease.name])

            settle(control.leases, expire, what="expire")  # type: ignore[arg-type]
        world.scheduler.pause()
    consumers = {"reader": world.readers[0].upper}

    def decide(head: Head) -> Put[Lease, Txn] | Txn:
        leases = live_leases(control.leases.read(0, 1 << 62))
        return decide_since(head=head, floor=floor(leases, consumers=consumers, window=window))

    settle(control.leases, decide, what="since")
    since = since_of(control.leases.head())
    world.truncated_below = max(world.truncated_below, since)
    shard = world.readers[0].shard
    for path in [path for path in world.files if path.startswith(f"{shard}/")]:
        if int(path.split("/")[1]) < since:
            world.scheduler.pause()
            world.files.pop(path, None)
