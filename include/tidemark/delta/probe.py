"""Ask a store whether put-if-absent holds on it.

Everything that Tidemark decides, it decides by creating the next Delta commit if it is absent. A store that
lets two writers create the same commit (some network disks, an object store without conditional puts) loses
decisions without a word, so it is asked before it is trusted.

Several operating-system processes open one scratch table, meet at a barrier and each try to create the next
commit, round after round. In every round exactly one may win, and the commit that is read back must be the
winner's. The scratch table is removed at the end, whatever happened.

Known limitation: a passed probe is evidence, not proof. A store may break its promise only under load, or
between machines; a failed probe, on the other hand, is final.
"""

from __future__ import annotations

import multiprocessing
import shutil
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from queue import Empty
from threading import BrokenBarrierError
from typing import Any

from tidemark.core.errors import Determinate
from tidemark.delta.store import local_path

SCRATCH_PREFIX = "_tidemark_probe"


@dataclass(frozen=True)
class Round:
    """One commit that all writers wanted: who says that it won, and whose commit is there."""

    version: int
    winners: tuple[int, ...]
    stored: int | None

    @property
    def holds(self) -> bool:
        """Exactly one winner, and the stored commit is its own."""
        return self.winners == (self.stored,)


@dataclass(frozen=True)
class ProbeResult:
    """What the probe saw on one store."""

    uri: str
    writers: int
    rounds: tuple[Round, ...]

    @property
    def holds(self) -> bool:
        """Whether put-if-absent held in every round."""
        return bool(self.rounds) and all(one.holds for one in self.rounds)

    def describe(self) -> str:
        """One sentence: what was raced and how it ended."""
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
    """Race `writers` processes for `rounds` commits of a scratch table below `uri`.

    `uri` is a folder or an object-store address; `storage_options` go to delta-rs. Raises `Determinate` where
    the race could not be run at all: a store that can't be reached, a writer that died, `seconds_max` passed.
    A store on which put-if-absent does not hold is a result, not an exception.
    """
    options = dict(storage_options or {})
    root = str(uri).rstrip("/")
    table = f"{root}/{SCRATCH_PREFIX}-{uuid.uuid4().hex}"
    try:
        try:
            _create(table, options)
            claims = _race(table, options, writers=writers, rounds=rounds, seconds_max=seconds_max)
            stored = _stored_writers(table, options)
        except (OSError, ValueError, _delta_error()) as error:
            raise Determinate(
                f"the store at {root} can't be probed: {error}", hint="check the address and the credentials"
            ) from error
    finally:
        _remove(table, options)
    return ProbeResult(
        uri=root,
        writers=writers,
        rounds=tuple(
            Round(
                version=version,
                winners=tuple(sorted(writer for writer, won in claims if won == version)),
                stored=stored.get(version),
            )
            for version in range(1, rounds + 1)
        ),
    )


def _race(
    table: str, options: Mapping[str, str], *, writers: int, rounds: int, seconds_max: float
) -> list[tuple[int, int]]:
    """Run the writers; return every claim (writer, version won)."""
    context = multiprocessing.get_context("spawn")  # a fork would copy delta-rs's threads half alive
    barrier = context.Barrier(writers)
    reports = context.Queue()
    processes: list[BaseProcess] = [
        context.Process(
            target=_writer, args=(table, options, writer, rounds, seconds_max, barrier, reports), daemon=True
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
    table: str,
    options: dict[str, str],
    writer: int,
    rounds: int,
    seconds_max: float,
    barrier: Any,
    reports: Any,
) -> None:
    """One process: try every round, then report (writer, versions won, failure)."""
    won = []
    try:
        for version in range(1, rounds + 1):
            if _attempt(table, options, writer, version, lambda: barrier.wait(seconds_max)):
                won.append(version)
            # Nobody opens the next snapshot before everybody is through with this one.
            barrier.wait(seconds_max)
    except BrokenBarrierError:
        reports.put((writer, won, "another writer stopped"))
    except Exception as error:
        barrier.abort()
        reports.put((writer, won, f"{type(error).__name__}: {error}"))
    else:
        reports.put((writer, won, ""))


def _attempt(
    table: str, options: dict[str, str], writer: int, version: int, at_the_line: Callable[[], object]
) -> bool:
    """Try to create `version`, on a snapshot that was opened before the starting line."""
    from deltalake import CommitProperties, DeltaTable
    from deltalake.exceptions import CommitFailedError

    snapshot = DeltaTable(table, version=version - 1, storage_options=options)
    at_the_line()
    try:
        snapshot.create_write_transaction(
            actions=[],
            mode="append",
            schema=snapshot.schema(),
            commit_properties=CommitProperties(custom_metadata={"writer": str(writer)}, max_commit_retries=0),
        )
    except CommitFailedError:
        return False
    return True


def _create(table: str, options: dict[str, str]) -> None:
    """Commit 0: an empty table with one column."""
    from deltalake import DeltaTable, Field, Schema
    from deltalake.schema import PrimitiveType

    local = local_path(table)
    if local is not None:
        local.mkdir(parents=True)
    DeltaTable.create(
        table, schema=Schema([Field("probe", PrimitiveType("string"))]), storage_options=options
    )


def _stored_writers(table: str, options: dict[str, str]) -> dict[int, int]:
    """version -> the writer whose commit is stored there."""
    from deltalake import DeltaTable

    history = DeltaTable(table, storage_options=options).history()
    return {int(one["version"]): int(one["writer"]) for one in history if "writer" in one}


def _remove(table: str, options: dict[str, str]) -> None:
    """Take the scratch table away; what can't be removed is small, hidden, and not worth failing for."""
    local = local_path(table)
    if local is not None:
        shutil.rmtree(local, ignore_errors=True)
        return
    from deltalake.fs import DeltaStorageHandler

    with suppress(OSError, ValueError, _delta_error()):
        DeltaStorageHandler(table, options).delete_dir("")


def _delta_error() -> type[Exception]:
    from deltalake.exceptions import DeltaError

    return DeltaError
