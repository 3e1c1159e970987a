"""Several shards at once: what Spark does for a small one is mostly planning, which one thread does alone.

Jobs of several threads share the executors; how many tasks run at once stays what it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

T = TypeVar("T")
R = TypeVar("R")

_AT_ONCE_MAX: Final = 4


def abreast(work: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """What `work` gives for each item, in the items' order.

    The first error in that order is raised when everything that had begun has ended, so that its traces can
    be removed; what had not begun then never does."""
    if len(items) <= 1:
        return [work(item) for item in items]
    pool = ThreadPoolExecutor(min(_AT_ONCE_MAX, len(items)), thread_name_prefix="shard")
    try:
        return list(pool.map(work, items))
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
