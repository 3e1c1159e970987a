"""Four processes decide the same transactions on an S3 server: one wins each, nothing is lost or doubled."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from pathlib import Path

import pytest

from tests.crash.race import SECONDS_MAX
from tests.s3.race import pipeline_on, race
from tests.support.light import SHARD
from tests.support.s3 import AtomicStore
from tidemark.core.ids import Txn

pytestmark = [pytest.mark.s3, pytest.mark.slow]

WRITERS = 4
ROUNDS = 30


def test_four_processes_race_through_seals_and_logs_on_an_object_store(
    atomic_s3: AtomicStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invariants 1 to 4: dense seals, each transaction once in the log, every other attempt lost."""
    place = f"s3://{atomic_s3.bucket}/{tmp_path.name}"
    context = multiprocessing.get_context("spawn")
    barrier, reports = context.Barrier(WRITERS), context.Queue()
    processes = [
        context.Process(
            target=race,
            args=(str(tmp_path), place, atomic_s3.options, writer, ROUNDS, barrier, reports),
        )
        for writer in range(WRITERS)
    ]
    for process in processes:
        process.start()
    try:
        told = [reports.get(timeout=SECONDS_MAX * 3) for _ in processes]
    finally:
        for process in processes:
            process.join(SECONDS_MAX)
            process.kill()
    assert [error for _, _, errors in told for error in errors] == []
    staged = [pair for _, pairs, _ in told for pair in pairs]

    for name, value in atomic_s3.options.items():
        monkeypatch.setenv(name, value)
    control = pipeline_on(tmp_path, place).control
    upper = Txn(ROUNDS + 1)
    control.seals.head()
    seals = {seal.txn: seal for seal in control.seals.read(Txn(1), upper)}
    assert sorted(seals) == list(range(1, ROUNDS + 1))
    log = control.log(SHARD)
    assert log.head().upper == upper
    sealed = Counter(part.path for seal in seals.values() for part in seal.shards[SHARD].parts)
    assert Counter(file.part.path for file in log.files()) == sealed
    assert set(sealed.values()) == {1}
    assert {(txn, seal.token) for txn, seal in seals.items()} <= set(staged)
    control.journal.head()
    lost = [one for one in control.journal.read(0, 10_000) if one.event == "lost"]
    assert len(lost) == len(staged) - ROUNDS > 0
