"""A test whether a store supports put-if-absent.

Every decision of Tidemark is the conditional creation of the next Delta commit. A store that lets two writers
create the same commit (some network disks, an object store without conditional puts) loses decisions
silently, so it is tested before it is used.

In each round several processes wait at a barrier and then try to put the next log entry of a scratch folder,
by the same function as every commit (`Store.put_if_absent`). Exactly one process must win, and the stored
entry must be the winner's. The folder is removed at the end in any case.

Known limitation: a passed probe is evidence, not proof. A store may fail only under load or between machines.
A failed probe is conclusive.
"""

from __future__ import annotations

import multiprocessing
import shutil
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from queue import Empty
from threading import BrokenBarrierError
from typing import Any

from tidemark.core.errors import Determinate
from tidemark.delta.commit import entry_path
from tidemark.delta.store import Store

SCRATCH_PREFIX = "_tidemark_probe"


@dataclass(frozen=True)
class Round:
    """One round: the writers that report success, and the writer whose commit is stored."""

    version: int
    winners: tuple[int, ...]
    stored: int | None

    @property
    def holds(self) -> bool:
        """Exactly one winner, and the stored commit is its own."""
        return self.winners == (self.stored,)


@dataclass(frozen=True)
class ProbeResult:
    """The result for one store."""

    uri: str
    writers: int
    rounds: tuple[Round, ...]

    @property
    def holds(self) -> bool:
        """Whether put-if-absent held in every round."""
        return bool(self.rounds) and all(one.holds for one in self.rounds)

    def describe(self) -> str:
        """Describe the race and its result in one sentence."""
        raced = f"{self.writers} processes raced for {len(self.rounds)} commits"
        broken = [one for one in self.rounds if not one.holds]
        if not broken:
            return f"{raced}, one winner each"
        first = broken[0]
        return (
            f"{raced}, {len(broken)} went wrong (commit {first.version}: winners {list(first.winners)}, "
            f"stored {first.stored})"
        )


def probe_put_if_absent(
    uri: str | Path,
    storage_options: Mapping[str, str] | None = None,
    *,
    writers: int = 3,
    rounds: int = 5,
    seconds_max: float = 60.0,
) -> ProbeResult:
    """Race `writers` processes for `rounds` commits of a scratch folder below `uri`.

    `uri` is a folder or an object-store address, `storage_options` are those of its tables. Raises
    `Determinate` where the race could not be run at all: a store that can't be reached, a writer that died,
    `seconds_max` passed. A store on which put-if-absent does not hold is a result, not an exception.
    """
    options = dict(storage_options or {})
    root = str(uri).rstrip("/")
    scratch = f"{root}/{SCRATCH_PREFIX}-{uuid.uuid4().hex}"
    store = Store(scratch, options)
    try:
        try:
            # Before the race, so that a wrong address fails at once.
            store.put_if_absent(entry_path(0), b"probe")
            claims = _race(scratch, options, writers=writers, rounds=rounds, seconds_max=seconds_max)
            stored = {version: _stored(store, version) for version in range(1, rounds + 1)}
        except (OSError, ValueError) as error:
            raise Determinate(
                f"the store at {root} can't be probed: {error}",
                hint="check the address and the credentials, then retry",
            ) from error
    finally:
        _remove(store, rounds)
    return ProbeResult(
        uri=root,
        writers=writers,
        rounds=tuple(
            Round(
                version=version,
                winners=tuple(sorted(writer for writer, won in claims if won == version)),
                stored=stored[version],
            )
            for version in range(1, rounds + 1)
        ),
    )


def _race(
    scratch: str, options: Mapping[str, str], *, writers: int, rounds: int, seconds_max: float
) -> list[tuple[int, int]]:
    """Run the writers; return every claim (writer, version won)."""
    context = multiprocessing.get_context("spawn")  # a fork breaks the client's threads
    barrier = context.Barrier(writers)
    reports = context.Queue()
    processes: list[BaseProcess] = [
        context.Process(
            target=_writer,
            args=(scratch, options, writer, rounds, seconds_max, barrier, reports),
            daemon=True,
        )
        for writer in range(writers)
    ]
    try:
        for process in processes:
            process.start()
        claims: list[tuple[int, int]] = []
        for _ in processes:
            writer, won, failure = reports.get(timeout=seconds_max)
            if failure:
                raise Determinate(f"writer {writer} of the probe failed: {failure}", hint="check the store")
            claims += [(writer, version) for version in won]
        return claims
    except Empty:
        raise Determinate(
            f"the probe's writers did not answer within {seconds_max:g} s", hint="check the store's latency"
        ) from None
    finally:
        for process in processes:
            process.kill()
            process.join()


def _writer(
    scratch: str,
    options: dict[str, str],
    writer: int,
    rounds: int,
    seconds_max: float,
    barrier: Any,
    reports: Any,
) -> None:
    """One process: try every round, then report (writer, versions won, failure)."""
    won = []
    store = Store(scratch, options)
    try:
        for version in range(1, rounds + 1):
            barrier.wait(seconds_max)
            if store.put_if_absent(entry_path(version), str(writer).encode()):
                won.append(version)
    except BrokenBarrierError:
        reports.put((writer, won, "another writer stopped"))
    except Exception as error:
        barrier.abort()
        reports.put((writer, won, f"{type(error).__name__}: {error}"))
    else:
        reports.put((writer, won, ""))


def _stored(store: Store, version: int) -> int | None:
    """The writer whose commit is stored; None if there is none."""
    try:
        return int(store.get(entry_path(version)))
    except FileNotFoundError:
        return None


def _remove(store: Store, rounds: int) -> None:
    """Remove the scratch folder. Failures are ignored: leftovers are small and hidden."""
    if store.folder is not None:
        shutil.rmtree(store.folder, ignore_errors=True)
        return
    for version in range(rounds + 1):
        store.remove_quietly(entry_path(version))
