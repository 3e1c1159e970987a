"""Scenario V1: several runs at once over one Spark Connect server."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.spark.connect_runs import SHARDS
from tests.support.spark import connect_client
from tidemark.spark.connect_server import Server

pytestmark = [pytest.mark.spark, pytest.mark.server, pytest.mark.slow, pytest.mark.sweep]


CLIENTS, ROUNDS, ROUNDS_PER_PROCESS = 4, 20, 2


def test_v1_runs_at_once_over_one_server_write_the_right_tables(
    connect_server: Server, tmp_path: Path
) -> None:
    def client(name: str, *rounds: int) -> str:
        words = (connect_server.url, str(tmp_path), name, *map(str, rounds))
        done = connect_client("tests.spark.connect_runs", *words, folder=tmp_path)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    def every_round(name: str) -> None:
        for first in range(0, ROUNDS, ROUNDS_PER_PROCESS):
            client(name, first, first + ROUNDS_PER_PROCESS)

    names = [f"client{number}" for number in range(CLIENTS)]
    with ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(every_round, names))
    found = json.loads(client("check", 0, 0).splitlines()[-1])
    assert found["verdicts"] == {"identical": found["checkpoint"]}
    rows = [[f"{name}-{number}", number] for name in names for number in range(ROUNDS)]
    expected = sorted([*rows, *([name, ROUNDS - 1] for name in names)])
    assert found["tables"] == dict.fromkeys(SHARDS, expected)
