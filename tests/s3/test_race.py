"""Four processes decide, append and publish the same transactions on an S3 server: one wins each, nothing is
lost or doubled."""

from __future__ import annotations

import json
import multiprocessing
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import polars as pl
import pytest

from tests.crash.race import SECONDS_MAX
from tests.s3.race import Told, pipeline_on, race, spec_at
from tests.support.keyed_log import digest_of
from tests.support.light import SHARD
from tests.support.s3 import AtomicStore
from tidemark.core.checksum import Digest
from tidemark.core.ids import Txn
from tidemark.ports.control import Control

pytestmark = [pytest.mark.s3, pytest.mark.slow]

WRITERS = 4
ROUNDS = 30


def test_four_processes_race_through_seals_logs_and_publishes_on_an_object_store(
    atomic_s3: AtomicStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invariants 1 to 4: dense seals, each transaction once in the log, every other attempt lost; and the
    state has the last row of each key, by publishes that one process each has made."""
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
        told: list[Told] = [reports.get(timeout=SECONDS_MAX * 3) for _ in processes]
    finally:
        for process in processes:
            process.join(SECONDS_MAX)
            process.kill()
    assert [error for one in told for error in one.errors] == []
    staged = [pair for one in told for pair in one.staged]

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
    _check_state(control, tmp_path, place, told)


def _check_state(control: Control, root: Path, place: str, told: Sequence[Told]) -> None:
    ledger = control.publishes(SHARD)
    records = list(ledger.read(1, ledger.head().upper))
    assert Counter(one.commit.token for one in records) == Counter(
        token for one in told for token in one.published
    )
    for numbers in ([one.txn for one in records], [one.version for one in records]):
        assert numbers == sorted(set(numbers))
    assert records[-1].txn == ROUNDS
    assert sum(one.lost_publishes for one in told) > 0
    wanted: dict[int, str] = {}
    for file in sorted((root / "in").glob("*.json")):
        wanted |= {row["id"]: row["value"] for row in map(json.loads, file.read_text().splitlines())}
    rows = pl.read_delta(spec_at(place).state).rows()
    assert sorted(rows) == sorted(wanted.items())
    assert records[-1].commit.digest == Digest.of(map(digest_of, rows))
