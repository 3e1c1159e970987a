"""A power cut, a restored copy or a hand: what it does to a table's log never passes unseen."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from tests.contract.helpers import put_next
from tests.delta.helpers import log_entries, open_journal
from tidemark.core.errors import InvariantViolation
from tidemark.core.ledger import Put

if TYPE_CHECKING:
    from pathlib import Path


def filled(folder: Path, count: int) -> Path:
    writer = open_journal(folder)
    for _ in range(count):
        put_next(writer)
    return folder


@pytest.mark.parametrize("kept", [0, 1, 0.5, 0.99])
def test_an_entry_that_is_empty_or_cut_short_stops_readers_and_writers(tmp_path: Path, kept: float) -> None:
    """Other readers take an empty entry for a commit that did nothing, and go on above it."""
    folder = filled(tmp_path / "journal", 3)
    live = open_journal(folder)
    put_next(live)
    newest = log_entries(folder)[-1]
    newest.write_bytes(newest.read_bytes()[: int(kept if kept == 1 else kept * newest.stat().st_size)])
    with pytest.raises(InvariantViolation, match=r"entry 4 of the log of .*journal is lost"):
        open_journal(folder).head()
    with pytest.raises(InvariantViolation, match=r"is lost|set back or replaced"):
        put_next(live)
    assert len(log_entries(folder)) == 5


def test_lines_that_an_entry_has_lost_as_a_whole_are_missed(tmp_path: Path) -> None:
    folder = filled(tmp_path / "journal", 2)
    newest = log_entries(folder)[-1]
    newest.write_text("".join(line + "\n" for line in newest.read_text().splitlines()[:-1]))
    with pytest.raises(InvariantViolation, match="don't agree with its checksum"):
        open_journal(folder).head()


def test_a_process_that_lives_through_a_restore_commits_nothing_on_its_old_head(tmp_path: Path) -> None:
    folder = filled(tmp_path / "journal", 2)
    shutil.copytree(folder, tmp_path / "backup")
    live = open_journal(folder)
    put_next(live)
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "backup", folder)
    entries = len(log_entries(folder))
    with pytest.raises(InvariantViolation, match="set back or replaced"):
        live.commit(live.head(), Put({}, (), None))
    assert len(log_entries(folder)) == entries


def test_a_process_notices_that_the_entry_below_it_is_another_one(tmp_path: Path) -> None:
    """Restored, and brought to the same version by somebody else: the number alone doesn't tell."""
    folder = filled(tmp_path / "journal", 2)
    shutil.copytree(folder, tmp_path / "backup")
    live = open_journal(folder)
    put_next(live)
    live.head()
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "backup", folder)
    put_next(open_journal(folder))
    with pytest.raises(InvariantViolation, match="set back or replaced"):
        live.commit(live.head(), Put({}, (), None))


@pytest.mark.parametrize("damaged", ["checkpoint", "pointer", "both"])
@pytest.mark.parametrize("content", [b"", b"PAR1 and then nothing"])
def test_an_emptied_checkpoint_is_passed_over_and_mended(
    tmp_path: Path, damaged: str, content: bytes
) -> None:
    """A checkpoint only repeats what the entries say, and they are all there."""
    folder = filled(tmp_path / "journal", 70)
    log = folder / "_delta_log"
    [checkpoint] = log.glob("*.checkpoint.parquet")
    for path in (checkpoint, log / "_last_checkpoint"):
        if damaged in ("both", "checkpoint" if path == checkpoint else "pointer"):
            path.write_bytes(content)
    assert open_journal(folder).head().upper == 71
    filled(folder, 70)
    newest = open_journal(folder)
    assert (newest.head().upper, len(newest.read(1, 999))) == (141, 140)
    assert all(path.stat().st_size > 100 for path in log.glob("*.checkpoint.parquet"))


def test_a_log_without_its_beginning_is_not_taken_for_no_table(tmp_path: Path) -> None:
    folder = filled(tmp_path / "journal", 3)
    log_entries(folder)[0].unlink()
    with pytest.raises(InvariantViolation, match=r"begins with 0+1\.json"):
        open_journal(folder).head()


def test_an_entry_that_a_checkpoint_has_may_go(tmp_path: Path) -> None:
    folder = filled(tmp_path / "journal", 3)
    live = open_journal(folder)
    live.head()
    DeltaTable(str(folder)).create_checkpoint()
    for entry in log_entries(folder):
        entry.unlink()
    put_next(live)
    newest = open_journal(folder)
    assert (newest.head().upper, len(newest.read(1, 9))) == (5, 4)
