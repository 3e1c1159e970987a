"""Real operating-system processes on one table."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from pathlib import Path

import pytest

from tests.delta.helpers import log_entries, open_journal, put_next, record_files
from tests.delta.racing import SECONDS_MAX, race

ROUNDS = 100
WRITERS = 2


def run_race(folder: Path, rounds: int) -> dict[int, list[int]]:
    context = multiprocessing.get_context("spawn")
    barrier, reports = context.Barrier(WRITERS), context.Queue()
    processes = [
        context.Process(target=race, args=(str(folder), writer, rounds, barrier, reports))
        for writer in range(WRITERS)
    ]
    for process in processes:
        process.start()
    try:
        return dict(reports.get(timeout=SECONDS_MAX) for _ in processes)
    finally:
        for process in processes:
            process.join(SECONDS_MAX)
            process.kill()


@pytest.mark.slow
def test_m6_two_processes_and_one_expected_upper_make_exactly_one_commit_a_round(tmp_path: Path) -> None:
    """Invariant 2: put-if-absent between processes, from the table's creation on. The first round also
    races for the table itself."""
    folder = tmp_path / "journal"
    won = run_race(folder, ROUNDS)
    assert sorted(number for rounds in won.values() for number in rounds) == list(range(1, ROUNDS + 1))
    reader = open_journal(folder)
    assert reader.head().upper == ROUNDS + 1
    winner = {number: f"w{writer}" for writer, rounds in won.items() for number in rounds}
    assert {record.number: record.token for record in reader.read(0, ROUNDS + 1)} == winner
    # Nothing was overwritten: each version's entry is one whole commit, and no lost file stayed behind.
    text = [path.read_text() for path in log_entries(folder)]
    assert len({path.name for path in log_entries(folder)}) == reader.head().version + 1
    named = {
        line.split('"path":"')[1].split('"')[0]
        for one in text
        for line in one.splitlines()
        if '"add"' in line
    }
    assert {path.name for path in record_files(folder)} == named


@pytest.mark.slow
def test_a_process_that_used_the_ledger_exits_cleanly_and_never_loaded_pyarrow(tmp_path: Path) -> None:
    """Importing it, or what it brings along, costs more than all that a task does with the control plane."""
    put_next(open_journal(tmp_path / "journal"))
    code = (
        "import sys; from pathlib import Path; from tests.delta.helpers import open_journal, put_next\n"
        "ledger = open_journal(Path(sys.argv[1])); put_next(ledger); ledger.head()\n"
        "assert ledger.read(0, 9) and ledger.find('1')\n"
        "assert not {'numpy', 'pandas', 'pyarrow'} & sys.modules.keys()"
    )
    root = Path(__file__).parents[2]
    for _ in range(2):
        command = [sys.executable, "-c", code, str(tmp_path / "journal")]
        assert subprocess.run(command, check=False, timeout=SECONDS_MAX, cwd=root).returncode == 0
