"""The fetch stage: the parts of an account are looked at by several workers, and complete in any order.

`core.reading.ReadAccount` decides what is fetched next and how far the frontier is; here are the threads
and the lock around it. A part that turns out bad is told to the account, which freezes there; a part that
could not be asked for is given back, and the error is raised once every fetch has ended, so that nothing is
in flight when the lease is let go (Invariant 12).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from tidemark.core.ids import Txn
from tidemark.core.reading import ReadAccount
from tidemark.core.seal import Part

Look = Callable[[Txn, Part], str]
"""Why a part can't be read as what was sealed; empty when it can."""


def fetch_all(account: ReadAccount, look: Look, *, workers: int, stop: threading.Event | None = None) -> None:
    """Look at every listed part. Returns when all fetches have ended; `stop` hands out no more."""
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
