"""Several processes publish one state at once, without a lock."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.delta.state_racing import SHARED, audited
from tests.support.indexed import Indexed
from tests.support.state_table import Hand

PROCESSES = 4
ROUNDS = 12


@pytest.mark.slow
def test_four_processes_lose_no_update_and_leave_no_second_row(tmp_path: Path) -> None:
    state = Indexed(tmp_path)
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.delta.state_racing", str(tmp_path), str(name), str(ROUNDS)],
            stderr=subprocess.PIPE,
        )
        for name in range(1, PROCESSES + 1)
    ]
    failures = [process.communicate()[1].decode() for process in started]
    assert [process.returncode for process in started] == [0] * PROCESSES, failures
    expected = {SHARED: str(PROCESSES * ROUNDS)} | dict.fromkeys(range(1, PROCESSES + 1), str(ROUNDS))
    assert Hand(tmp_path / "state").by_delta_rs() == expected
    head = state.table.head()
    assert (head.version, head.rows) == (PROCESSES * ROUNDS, PROCESSES + 1)
    assert audited(state.table) == []
    named = {file.location for file in head.files.values()} | {one.location for one in head.removed.values()}
    there = {path for path in state.table.store.listed() if path.endswith(".parquet")}
    assert there == named
