"""Consumers that are killed, stopped and woken while a writer appends; then what they have is counted."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.reading.worker import AFTER_EFFECT, BEFORE_EFFECT, DONE, LOST, STOP_BEFORE_EFFECT
from tests.support.shelf import Change, Shelf, expected
from tests.support.waiting import wait_for_file, wait_until

WAIT_SECONDS_MAX = 300


def start(
    root: Path, *, upper: int, consumer: str = "billing", txns_max: int = 3, fuse: str = ""
) -> subprocess.Popen[bytes]:
    arguments = [str(root), consumer, str(upper), str(txns_max), fuse]
    return subprocess.Popen([sys.executable, "-m", "tests.reading.worker", *arguments])


def ended(root: Path, worker: subprocess.Popen[bytes] | None = None, **how: Any) -> int:
    """How a worker ends that nobody stops. One that the machine has held up for longer than its lease lasts
    has lost it, as it must; it is started again."""
    worker = worker or start(root, **how)
    while (code := worker.wait(WAIT_SECONDS_MAX)) == LOST:
        worker = start(root, **how)
    return code


def stopped(root: Path, worker: subprocess.Popen[bytes] | None = None, **how: Any) -> subprocess.Popen[bytes]:
    """A worker that has stopped itself; the same of one that has lost its lease before."""
    worker = worker or start(root, **how)
    mark = root / "out" / "billing" / "stopped"

    def has_stopped() -> bool:
        nonlocal worker
        if worker.poll() == LOST:
            worker = start(root, **how)
        return mark.exists()

    wait_until(has_stopped, what="a worker that stops")
    mark.unlink()
    return worker


def until_marked(mark: Path) -> None:
    """Wait for what a process leaves when it has come so far."""
    wait_for_file(mark)
    mark.unlink()


def delivered(root: Path, written: dict[int, list[Change]], *, upper: int, consumer: str = "billing") -> None:
    """Every transaction below `upper` is in exactly one effect, whole, and with what was written."""
    files = sorted((root / "out" / consumer).glob("*.json"))
    ranges = [tuple(map(int, file.stem.split("-"))) for file in files]
    found = [row for file in files for row in json.loads(file.read_text(encoding="utf-8"))["rows"]]
    assert all(before[1] <= after[0] for before, after in pairwise(ranges)), ranges
    assert sorted(map(tuple, found)) == expected(written, 1, upper)


def campaign(root: Path, *, seed: int, txns: int, kills: int) -> dict[str, int]:
    """A writer appends `txns` transactions while a consumer is killed and stopped again and again."""
    rng = random.Random(seed)
    shelf = Shelf(root)
    told = {"killed": 0, "stopped": 0, "lost": 0}
    sleepers: list[subprocess.Popen[bytes]] = []
    fuses = [BEFORE_EFFECT, AFTER_EFFECT, STOP_BEFORE_EFFECT]
    rng.shuffle(fuses)
    step = max(1, txns // (kills + 1))

    def append() -> None:
        for _ in range(step):
            shelf.append([(f"k{rng.randrange(9)}", rng.randrange(99)) for _ in range(rng.randrange(4))])
        shelf.append([("end", len(shelf.written))])  # There is always something that touches the shard.

    for number in range(kills):
        fuse = fuses[number % len(fuses)]
        how: dict[str, Any] = {"upper": txns * 2, "txns_max": rng.randrange(1, 6), "fuse": fuse}
        worker = start(root, **how)
        append()
        if fuse == STOP_BEFORE_EFFECT:
            sleepers.append(stopped(root, worker, **how))
            told["stopped"] += 1
        else:
            assert ended(root, worker, **how) == -signal.SIGKILL
            told["killed"] += 1
    upper = len(shelf.written) + step + 2
    last = start(root, upper=upper, txns_max=4)
    append()
    assert ended(root, last, upper=upper, txns_max=4) == DONE
    for sleeper in sleepers:
        sleeper.send_signal(signal.SIGCONT)
        assert sleeper.wait(WAIT_SECONDS_MAX) == LOST
        told["lost"] += 1
    delivered(root, shelf.written, upper=upper)
    return told
