"""A lease that is held: renewed in the background, checked before each delivery, released at the end.

The thread that renews and the one that reads share the ledger's handle, so each call is made under one lock.
A renewal that fails because the store doesn't answer is tried again; once the deadline has passed, or
another has the lease, the hold is lost for good, and everybody who asks gets `LeaseLost`.

Known limitation: a process that hangs while its renewing thread lives keeps its lease. Bound the work that
is done with a batch by the scheduler's own timeout.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from tidemark.core.errors import Determinate, Indeterminate
from tidemark.core.freeze import holders_of
from tidemark.core.ids import Txn
from tidemark.core.lease import HeldByOther, HolderToken, Lease, LeaseLost, Tenure
from tidemark.pipeline.leasing import LOOKS_PER_TTL, RENEWALS_PER_TTL, TTL_SECONDS, Leases, monotonic_seconds

# Between looks at a lease that is held by somebody else.
LOOK_SECONDS_MAX: Final = 15.0


class Hold:
    """One process's hold on one name, from `taken` to `release`."""

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
        """Whether nothing was ever delivered under this name."""
        with self._lock:
            return self._leases.began_at(self.lease.name) == self.lease.txn

    def check(self) -> None:
        """Raise `LeaseLost` if what we read may not be ours any more."""
        with self._lock:
            self._check()

    def advance(self, txn: Txn, *, link: int) -> None:
        """Everything below `txn` is delivered, durably: it is never delivered again. `link` is that of the
        last transaction."""
        # A batch that was cut short was given up to its planned end before, and may have been done.
        self._renew(txn=txn, planned=max(txn, self.lease.planned), link=link)

    def plan(self, upper: Txn) -> None:
        """Note the end of the batch that is about to be given."""
        self._renew(planned=upper)

    def standing(self) -> tuple[Txn, tuple[str, ...]]:
        """The first transaction that was kept, and who holds leases now."""
        with self._lock:
            standing = self._leases.standing()
            return self._leases.since(), holders_of(standing)

    def release(self) -> None:
        """Let go; what was lost already is left to whoever has it, and what can't be told now expires."""
        self._ended.set()
        self._keeper.join()
        with self._lock, suppress(Determinate, Indeterminate):
            self._leases.release(self.lease)

    def _check(self) -> None:
        if self._lost is not None:
            raise self._lost
        self._tenure.check(now_seconds=self._clock())

    def _renew(self, *, txn: Txn | None = None, planned: Txn | None = None, link: int = 0) -> None:
        with self._lock:
            self._check()
            self._tenure = self._leases.renew(self._tenure, txn=txn, planned=planned, link=link)

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
                # The store may answer the next time; if it doesn't, the deadline tells.
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
    """Take a lease, waiting for one that somebody else holds until it is released or stands still.

    Without `start` a new name holds everything that is kept."""
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
        hint="one process reads for a consumer at a time: stop the other, wait for it, or use another name",
    )
