"""Power cuts and failing syncs under the product's own code, on real tables (scenario W5).

Each seed runs a pipeline, cuts the power at some call to the disk, and goes on with what a disk that keeps
only what was synced has kept: un-synced contents and names are lost one by one. Some syncs fail, too, and
some processes are killed, so that another one goes on from names that nobody has synced, and some clocks are
set by hours meanwhile. With syncing on, nobody ever has to recover: the next runs end with the right tables,
and what was sealed stays.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import pytest

from tests.crash.race import pipeline_at, write_round
from tests.simulation.disk import Disk, Killed, PowerCut
from tests.support.light import SHARD, SyncingPlane
from tests.support.tables import rows_of
from tidemark.app.deployment import new_token
from tidemark.core.binding import Owner
from tidemark.core.errors import Determinate, Indeterminate, TidemarkError
from tidemark.delta import ledger
from tidemark.delta.checkpoint import make_checkpoint
from tidemark.delta.store import Store, _sync
from tidemark.pipeline.context import Attempt
from tidemark.pipeline.history import losses
from tidemark.pipeline.run import run

SEEDS = 40
MUTANT_SEEDS_MAX = 300
ROUNDS = 3
CALLS_MAX = 200
TRIES_MAX = 8
HOUR_NS = 3_600 * 10**9


class Clock:
    """A clock that somebody sets, by hours, while processes work."""

    def __init__(self, rng: random.Random, *, often: float) -> None:
        self._rng, self._often, self._ahead_ns = rng, often, 0

    def __call__(self) -> int:
        if self._rng.random() < self._often:
            self._ahead_ns += self._rng.choice((-3, -1, 1, 3)) * HOUR_NS
        return time.time_ns() + self._ahead_ns


class Machine:
    """A machine that works at a pipeline until a seed turns it off."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.rng = random.Random(seed)
        self.folder, self.home = folder, folder / "work"
        self.sealed: dict[int, int] = {}
        self.clock = Clock(self.rng, often=self.rng.choice((0.0, 0.0, 0.02)))
        self.cut = self.failed = self.lost = self.killed = 0
        for name in ("wh", "in"):
            (self.home / name).mkdir(parents=True)

    def work(self) -> None:
        for number in range(1, ROUNDS + 1):
            write_round(self.home, number)
            if self.rng.random() < 0.8:
                self.fall(number)
            self.finish(number)

    def fall(self, number: int) -> None:
        """A run on a disk that fails, until the power goes."""
        cut_at = self.rng.randint(1, CALLS_MAX)
        fails = self.rng.choice((0.0, 0.0, 0.03))
        kill_at = self.rng.choice((0, self.rng.randint(1, CALLS_MAX // 2)))
        shadow = self.folder / f"disk-{number}"
        disk = Disk(self.home / "wh", shadow, self.rng, cut_at=cut_at, fails=fails, kill_at=kill_at)
        with disk.watched(), suppress(PowerCut):
            for _ in range(3):
                with suppress(Determinate, Indeterminate, Killed):
                    self.run(number)
                self.killed += disk.dead
                disk.start_again()
            disk.cut()  # After the last run everything un-synced may still be lost.
        self.cut, self.failed, self.lost = self.cut + 1, self.failed + disk.failed, self.lost + disk.lost
        disk.restart()

    def finish(self, number: int) -> None:
        """The next run, without faults; it needs nobody."""
        for _ in range(TRIES_MAX):
            with suppress(Determinate, Indeterminate):
                self.run(number)
                return
        raise AssertionError(f"round {number} does not end")

    def run(self, number: int) -> None:
        pipeline = pipeline_at(self.home, clock_ns=self.clock)
        plane = SyncingPlane(self.home / "wh" / "race", self.home / "in")
        run(replace(pipeline, plane=plane), Attempt(Owner(f"run-{number}"), new_token()))
        upper = pipeline.control.seals.head().upper
        self.sealed |= {seal.txn: seal.link for seal in pipeline.control.seals.read(1, upper)}  # type: ignore[arg-type]

    def check(self) -> None:
        control = pipeline_at(self.home).control
        upper = control.seals.head().upper
        assert {one.txn: one.link for one in control.seals.read(1, upper)} == self.sealed  # type: ignore[arg-type]
        assert not losses(control, (SHARD,))
        log = self.home / "wh" / "race" / SHARD / "log"
        rows = rows_of(log, ["_txn", "_ordinal", "id", "value"])
        assert {key: value for *_, key, value in sorted(rows)} == wanted()


def wanted() -> dict[int, str]:
    """The last value of each key, by the input files alone."""
    found: dict[int, str] = {}
    for number in range(1, ROUNDS + 1):
        rng = random.Random(number)
        found |= {rng.randrange(40): f"{number}/{n}" for n in range(12)}
    return found


def check(seed: int, folder: Path) -> Machine:
    machine = Machine(seed, folder / str(seed))
    try:
        machine.work()
        machine.check()
    except (TidemarkError, AssertionError) as wrong:
        raise AssertionError(f"seed {seed}: {wrong!r}") from wrong
    return machine


@contextmanager
def often() -> Iterator[None]:
    """Checkpoints and log clean-up at every few commits."""
    kept = {**ledger.CONFIGURATION, "delta.logRetentionDuration": "interval 0 seconds"}
    with (
        patch("tidemark.delta.head.CHECKPOINT_BYTES_MIN", 30_000),
        patch.object(ledger, "CONFIGURATION", kept),
    ):
        yield


def check_alone(seed: int) -> None:
    """One seed in a folder of its own, for `make simulate`."""
    with often(), TemporaryDirectory() as folder:
        check(seed, Path(folder))


@pytest.fixture(autouse=True)
def _often() -> Iterator[None]:
    with often():
        yield


def test_w5_a_power_cut_needs_no_recovery_and_loses_nothing(tmp_path: Path) -> None:
    found = [check(seed, tmp_path) for seed in range(SEEDS)]
    assert min(sum(one.cut for one in found), sum(one.lost for one in found)) > SEEDS
    assert sum(one.failed for one in found) > SEEDS / 10
    assert sum(one.killed for one in found) > SEEDS / 3


def nothing(*_: object) -> None:
    pass


def write(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def as_it_is(store: Store, path: str) -> tuple[bytes, bool]:
    return store.get(path), False


def sync_again(target: Path, _: bytes) -> None:
    _sync(target.parent)


def clean_first(store: Store, options: Mapping[str, str], *, now_ms: int) -> int:
    """Log clean-up by a checkpoint that is not synced yet."""
    with patch.object(Store, "sync_files", nothing), patch.object(Store, "sync_folders", nothing):
        return make_checkpoint(store, options, now_ms=now_ms)


MUTANTS = {
    "contents are not synced": ("tidemark.delta.store._write_synced", write),
    "folders are not synced": ("tidemark.delta.store._sync", nothing),
    "what is visible is taken for durable": ("tidemark.delta.store.Store.get_lasting", as_it_is),
    "a failed sync is made again": ("tidemark.delta.store._write_again", sync_again),
    "clean-up before the checkpoint is synced": ("tidemark.delta.table.make_checkpoint", clean_first),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_power_cuts_notice_a_mistake(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*MUTANTS[name])
    with pytest.raises(AssertionError, match="seed"):
        deque((check(seed, tmp_path) for seed in range(MUTANT_SEEDS_MAX)), maxlen=0)
