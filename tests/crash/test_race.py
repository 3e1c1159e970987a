"""Many processes on one shard at once: nothing lost, nothing twice, nothing left lying about.

The rounds of `test_four_processes…` use the light data plane (`tests/support/light.py`): real Parquet parts,
the real control plane on delta-rs, no Spark. `test_two_spark_workers…` is the same race with real Spark
workers.
"""

from __future__ import annotations

import json
import multiprocessing
from collections import Counter
from pathlib import Path

import pytest

from tests.crash.campaign import Bench, feed
from tests.crash.race import MEET_EVERY, SECONDS_MAX, pipeline_at, race
from tests.crash.worker import DONE, NONE, report_of
from tests.support.light import SHARD
from tests.support.tables import bodies_of, rows_of
from tidemark.pipeline.maintain import sweep

WRITERS = 4

pytestmark = pytest.mark.slow


def run_race(root: Path, rounds: int) -> tuple[list[tuple[int, str]], list[str]]:
    """The attempts that have staged, and what went wrong."""
    context = multiprocessing.get_context("spawn")
    barrier, reports = context.Barrier(WRITERS), context.Queue()
    processes = [
        context.Process(target=race, args=(str(root), writer, rounds, barrier, reports))
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
    return [pair for _, staged, _ in told for pair in staged], [e for _, _, errors in told for e in errors]


def last_of_each_key(root: Path) -> Counter[tuple[object, ...]]:
    """What the log must have: per file (a transaction each) the last line of each key, by hand."""
    wanted: Counter[tuple[object, ...]] = Counter()
    for number, path in enumerate(sorted((root / "in").glob("*.json"))):
        records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        folded = {record["id"]: (record["value"], n) for n, record in enumerate(records)}
        wanted.update((key, value, number + 1, number, n) for key, (value, n) in folded.items())
    return wanted


@pytest.mark.parametrize("rounds", [20, pytest.param(100, marks=pytest.mark.sweep)])
def test_four_processes_race_for_one_shard_and_each_loss_is_on_record_with_its_winner(
    tmp_path: Path, rounds: int
) -> None:
    """Invariants 1 to 4: zero rows lost, zero twice, zero orphan parts, every lost race with its winner."""
    staged, errors = run_race(tmp_path, rounds)
    assert errors == []
    home = tmp_path / "wh" / "race"
    rows = Counter(rows_of(home / SHARD / "log", ("id", "value", "_txn", "_offset", "_ordinal")))
    assert rows == last_of_each_key(tmp_path)

    pipeline = pipeline_at(tmp_path)
    sweep(pipeline)
    seals = {body["txn"]: body for body in bodies_of(home / "_control" / "history", "seal")}
    assert sorted(seals) == list(range(1, rounds + 1))
    named = {part["path"] for seal in seals.values() for part in seal["shards"][SHARD]["parts"]}
    log = home / SHARD / "log"
    assert {str(path.relative_to(log)) for path in log.glob("_txn-*/*/*")} == named

    lost = [body for body in bodies_of(home / "_control" / "journal") if body["event"] == "lost"]
    for entry in lost:
        assert entry["detail"]["winner"] == seals[entry["txn"]]["token"] != entry["token"]
        assert entry["detail"]["verdict"] == "identical"
    won = {(txn, seal["token"]) for txn, seal in seals.items()}
    assert {(entry["txn"], entry["token"]) for entry in lost} == set(staged) - won
    assert len(lost) == len(staged) - rounds
    raced = [txn for txn, attempts in Counter(txn for txn, _ in staged).items() if attempts == WRITERS]
    assert set(raced) >= set(range(1, rounds + 1, MEET_EVERY))


@pytest.mark.spark
def test_two_spark_workers_race_for_every_seal_and_one_wins_each(bench: Bench, tmp_path: Path) -> None:
    """Invariants 2 and 4, scenario M8: both have staged before either may seal."""
    feed(tmp_path, seed=7, first=0, files=4)
    jobs = [bench.start(tmp_path, f"run-{n}", meet_at_seal=2, publish=NONE) for n in range(2)]
    assert [bench.status(job) for job in jobs] == [DONE, DONE]
    bench.finish(tmp_path, "publish")
    bench.check(tmp_path)
    decided = [report_of(job).decided for job in jobs]
    won = {txn for outcomes in decided for txn, ours in outcomes if ours}
    lost = [txn for outcomes in decided for txn, ours in outcomes if not ours]
    assert won == set(lost) == {1, 2}
    entries = bodies_of(tmp_path / "wh" / "trade" / "_control" / "journal")
    assert sorted(entry["txn"] for entry in entries if entry["event"] == "lost") == sorted(lost)
