"""List and fetch: which transactions of a shard can be read, and whether their parts are intact.

A listing is one look, under a lease that was taken before: the transactions that can be read, their seals,
and the files of the log at one version. It ends where one of these is lost. A listing that would begin
there raises `InvariantViolation`, which freezes the reader: everything before the loss is delivered.

The fetch stage checks the parts with several workers; they complete in any order.
`core.reading.ReadAccount` decides which part is fetched next and how far the frontier is; this module has
the threads and the lock. A bad part is reported to the account, which freezes there. A part that could not
be checked is given back, and the error is raised once every fetch has ended, so nothing is in flight when
the lease is released (Invariant 12).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from tidemark.core.errors import InvariantViolation
from tidemark.core.ids import TXN_NONE, ShardId, Txn
from tidemark.core.reading import ReadAccount
from tidemark.core.seal import Part, Seal, touch_mark
from tidemark.pipeline.history import require_known
from tidemark.ports.control import Control, LogListing, PartFiles

LISTED_TXNS_MAX: Final = 10_000
"""The most transactions that are listed at once, however far behind a consumer is."""


@dataclass(frozen=True, slots=True)
class Listed:
    """The content of [lower, upper): a seal for each transaction, and the log's files."""

    lower: Txn
    upper: Txn
    seals: Sequence[Seal]
    log: LogListing


@dataclass(frozen=True, slots=True)
class Readable:
    """The first transaction of a shard that can't be read. `lost` is the reason where it can never be read;
    empty where it is only not there yet."""

    upper: Txn
    lost: str = ""


def readable(control: Control, shard: ShardId) -> Readable:
    """How far a shard can be read.

    A shard that the last transactions don't touch has them too, unless its log waits at a held one. A log
    that lacks what a checkpoint has seen in it has lost commits, and does not count as waiting."""
    found = _readable(control, shard)
    # The loaded versions may be old ones, so look twice; a loss stays.
    return _readable(control, shard) if found.lost else found


def _readable(control: Control, shard: ShardId) -> Readable:
    # In this order, so that the checkpoint is older than the log's head.
    done_upper = control.checkpoints.head().upper
    head = control.log(shard).head()
    log_upper, sealed_upper = head.upper, control.seals.head().upper
    if sealed_upper < max(done_upper, log_upper):
        sealed_upper = control.seals.head().upper  # An old version.
    if log_upper <= sealed_upper:
        require_known(control, f"the log of shard {shard}", txn=Txn(log_upper - 1), link=head.link)
    # The mark of the last touch saves reading the seals for a shard that is idle for long.
    behind = log_upper <= control.seals.mark(touch_mark(shard))
    seals = control.seals.read(log_upper, sealed_upper) if behind else ()
    waiting = next((seal.txn for seal in seals if seal.touches(shard)), done_upper)
    if waiting < done_upper and not _may_wait(control, shard, waiting, done_upper):
        lost = f"the log of {shard!r} ends before txn {waiting}, and checkpoint {done_upper - 1} is past it"
        return Readable(waiting, lost)
    return Readable(max(log_upper, min(done_upper, waiting)))


def readable_upper(control: Control, shard: ShardId) -> Txn:
    """The first transaction of a shard that can't be read yet; `InvariantViolation` where it is lost."""
    found = readable(control, shard)
    if found.lost:
        raise _lost(found.lost)
    return found.upper


def _lost(what: str) -> InvariantViolation:
    return InvariantViolation(
        what, hint="commits are lost: run `tidemark recover PIPELINE`, or restore the table from a backup"
    )


def _may_wait(control: Control, shard: ShardId, txn: Txn, done_upper: Txn) -> bool:
    """Whether the checkpoint has the log as waiting, or as just released, at or before `txn`."""
    marks = [last.tables.get(shard) for last in control.checkpoints.read(done_upper - 1, done_upper)]
    return any(mark is not None and TXN_NONE < mark.waits_at <= txn for mark in marks)


def listing(
    control: Control, files: PartFiles, shard: ShardId, *, lower: Txn, columns: Sequence[str]
) -> Listed:
    """The readable transactions from `lower` on, up to a bounded number, or to the first that is lost;
    `InvariantViolation` if that is `lower`."""
    found = readable(control, shard)
    if found.lost and lower >= found.upper:
        raise _lost(found.lost)
    upper = min(found.upper, Txn(lower + LISTED_TXNS_MAX))
    # The files are listed after the upper was read, so the list is complete below it.
    log = files.listed(shard, lower=lower, upper=upper, columns=columns)
    seals = control.seals.read(lower, upper) if lower < upper else ()
    whole = [seal for txn, seal in enumerate(seals, start=lower) if seal.txn == txn]
    if lower < upper and not whole:
        raise _lost(f"the seal of transaction {lower} is not there")
    return Listed(lower, Txn(lower + len(whole)), whole, log)


# The fetch stage.

Look = Callable[[Txn, Part], str]
"""Returns why a part is not readable as sealed; empty when it is."""


def fetch_all(account: ReadAccount, look: Look, *, workers: int, stop: threading.Event | None = None) -> None:
    """Check every listed part. Returns when all fetches have ended; after `stop`, no new fetch begins."""
    lock = threading.Lock()

    def work(worker: str) -> None:
        while True:
            with lock:
                if stop is not None and stop.is_set():
                    account.drain()
                fetch = account.next_fetch(worker)
            if fetch is None:
                return
            try:
                why = look(fetch.txn, fetch.part)
            except BaseException:
                with lock:
                    account.abandoned(fetch)
                    account.drain()
                raise
            with lock:
                if why:
                    account.missing(fetch, why)
                else:
                    account.fetched(fetch)

    with ThreadPoolExecutor(workers, thread_name_prefix="fetch") as pool:
        ended = [pool.submit(work, f"worker {number}") for number in range(workers)]
    for one in ended:
        one.result()
