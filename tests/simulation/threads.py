"""Threads, locks, pools and clocks of the product, under the scheduler: each thread is an actor.

`simulated` puts them in the place of the standard library's in the modules that read under leases. A process
that dies takes its threads with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import greenlet

from tests.simulation.scheduler import Scheduler
from tests.support.memory.ledger import Crash
from tidemark.pipeline import consume, leases, listing


class Threads:
    """The threads of one simulated machine, by the process that has started them."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self._process_of: dict[object, object] = {}
        self._threads: dict[object, list[greenlet.greenlet]] = {}

    def start(self, work: Callable[[], None]) -> greenlet.greenlet:
        process = self._process()

        def living() -> None:
            with suppress(Crash):  # A thread that dies alone.
                work()

        thread = self.scheduler.spawn(living)
        self._process_of[thread] = process
        self._threads.setdefault(process, []).append(thread)
        return thread

    def _process(self) -> object:
        me = greenlet.getcurrent()
        return self._process_of.get(me, me)

    def kill(self) -> None:
        """End all threads of the process where they stand."""
        for thread in self._threads.pop(self._process(), []):
            if not thread.dead:
                thread.throw()

    def until(self, is_done: Callable[[], bool], *, seconds: float | None = None) -> bool:
        deadline = None if seconds is None else self.scheduler.now_seconds + seconds
        while not is_done():
            if deadline is not None and self.scheduler.now_seconds >= deadline:
                return False
            self.scheduler.pause()
        return True


class Lock:
    def __init__(self, threads: Threads) -> None:
        self._threads, self._held = threads, False

    def __enter__(self) -> None:
        self._threads.until(lambda: not self._held)
        self._held = True

    def __exit__(self, *_: object) -> None:
        self._held = False


class Event:
    def __init__(self, threads: Threads) -> None:
        self._threads, self._set = threads, False

    def set(self) -> None:
        self._set = True

    def is_set(self) -> bool:
        return self._set

    def wait(self, seconds: float) -> bool:
        return self._threads.until(self.is_set, seconds=seconds)


class Thread:
    def __init__(self, threads: Threads, target: Callable[[], None]) -> None:
        self._threads, self._target = threads, target

    def start(self) -> None:
        self._thread = self._threads.start(self._target)

    def join(self) -> None:
        self._threads.until(lambda: self._thread.dead)


class Pool:
    """An executor; its results are there once it is left."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._running: list[greenlet.greenlet] = []

    def __enter__(self) -> Pool:
        return self

    def submit(self, work: Callable[..., Any], *args: Any) -> Future[Any]:
        done: Future[Any] = Future()

        def working() -> None:
            try:
                done.set_result(work(*args))
            except BaseException as error:
                done.set_exception(error)

        self._running.append(self._threads.start(working))
        return done

    def __exit__(self, *_: object) -> None:
        self._threads.until(lambda: all(thread.dead for thread in self._running))


@contextmanager
def simulated(threads: Threads) -> Iterator[None]:
    scheduler = threads.scheduler
    library = SimpleNamespace(
        Lock=lambda: Lock(threads),
        Event=lambda: Event(threads),
        Thread=lambda *, target, name, daemon: Thread(threads, target),
    )
    clock = SimpleNamespace(clock_gettime=lambda _: scheduler.monotonic())
    with (
        patch.object(leases, "threading", library),
        patch.object(listing, "threading", library),
        patch.object(consume, "threading", library),
        patch.object(listing, "ThreadPoolExecutor", lambda *_, **__: Pool(threads)),
        patch.object(leases, "time", clock),
    ):
        yield
