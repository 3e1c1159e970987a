"""Notes of readings, in a folder that maintenance clears at the same time."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemark.config.shard import ShardConfig
from tidemark.sources.files.bound_files import BoundFile, TableRead
from tidemark.sources.postgres import snapshot
from tidemark.sources.postgres.change_files import ChangeFiles
from tidemark.sources.postgres.snapshot import Snapshot, find_snapshot, noted_tables, put_note

SHARD = ShardConfig.model_validate({"name": "items", "schema": "id INT NOT NULL", "keys": ["id"]})
LSNS = (16, 32, 48)
GONE = BoundFile(0, "gone.json", 1, "", 0)


@pytest.fixture
def cleared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ChangeFiles:
    """Three readings of a table, without their rows. Once the note of one is read, all others are gone."""
    files = ChangeFiles(str(tmp_path / "captured"))
    for lsn in LSNS:
        put_note(files, Snapshot("public.items", TableRead(lsn), (GONE,), (1,)), SHARD)
    read = snapshot._from_json

    def read_and_clear(text: str) -> Snapshot:
        found = read(text)
        for note in files.folder.glob("*.json"):
            if not note.stem.endswith(f"{found.read.lsn:016x}"):
                note.unlink()
        return found

    monkeypatch.setattr(snapshot, "_from_json", read_and_clear)
    return files


def test_a_note_that_goes_while_notes_are_read_is_no_reading(cleared: ChangeFiles) -> None:
    assert find_snapshot(cleared, "public.items", SHARD, lsn_min=0, oid=7) is None


def test_a_table_whose_other_notes_go_meanwhile_is_still_known(cleared: ChangeFiles) -> None:
    assert noted_tables(cleared, lsn_min=0) == {"public.items"}
