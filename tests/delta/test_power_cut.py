"""A power cut on a disk that had not kept what it said it had: real tables and files, the newest log entries
of a run emptied or gone. Nothing goes on above the loss (scenario W1)."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

import pytest

from tests.crash.race import pipeline_at, write_round
from tests.support.light import SHARD
from tests.support.tables import rows_of
from tidemark.app.deployment import new_token
from tidemark.core.binding import Owner
from tidemark.core.errors import InvariantViolation
from tidemark.pipeline.context import Attempt
from tidemark.pipeline.run import run

if TYPE_CHECKING:
    from pathlib import Path

TABLES = ("_control/history", "_control/checkpoints", f"{SHARD}/log")
LOSSES = [lost for count in (1, 2, 3) for lost in combinations(TABLES, count)]


def work(root: Path, number: int) -> None:
    pipeline = pipeline_at(root)
    write_round(root, number)
    run(pipeline, Attempt(Owner(f"run-{number}"), new_token()))


def newest(root: Path, table: str) -> Path:
    return max((root / "wh" / "race" / table / "_delta_log").glob("*.json"))


def files(root: Path) -> dict[str, int]:
    return {str(path): path.stat().st_size for path in (root / "wh").rglob("*") if path.is_file()}


@pytest.mark.parametrize("lost", LOSSES, ids=" ".join)
def test_w1_emptied_entries_stop_the_next_runs_by_name_and_nothing_is_written(
    tmp_path: Path, lost: tuple[str, ...]
) -> None:
    """Readers that take an empty entry for a commit that did nothing go on above it, and rows are missing."""
    for number in (1, 2):
        work(tmp_path, number)
    for table in lost:
        newest(tmp_path, table).write_bytes(b"")
    before = files(tmp_path)
    for number in (3, 4):
        with pytest.raises(InvariantViolation, match=r"entry \d+ of the log of .* is lost: it is empty"):
            work(tmp_path, number)
    assert files(tmp_path) == before


@pytest.mark.parametrize("lost", LOSSES, ids=" ".join)
def test_w1_entries_that_are_gone_stop_the_next_run_or_leave_no_trace(
    tmp_path: Path, lost: tuple[str, ...]
) -> None:
    for number in (1, 2):
        work(tmp_path, number)
    for table in lost:
        newest(tmp_path, table).unlink()
    before = files(tmp_path)
    can_be_derived = lost in (TABLES[1:2], TABLES[1:], TABLES)
    if not can_be_derived:
        with pytest.raises(InvariantViolation, match="newest commits are lost"):
            work(tmp_path, 3)
        assert files(tmp_path) == before
        return
    work(tmp_path, 3)
    values = {value for (value,) in rows_of(tmp_path / "wh" / "race" / SHARD / "log", ["value"])}
    assert {value.split("/")[0] for value in values} == {"1", "2", "3"}
