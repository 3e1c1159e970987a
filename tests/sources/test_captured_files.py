"""Captured files are durable when they are put: their bytes, their names, and the folders that have them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tidemark.sources.postgres.change_files import ChangeFiles


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """What was made durable, in order."""
    found: list[Path] = []
    monkeypatch.setattr(os, "fsync", lambda file: found.append(Path(f"/proc/self/fd/{file}").readlink()))
    return found


def test_the_names_of_new_folders_are_durable_once(tmp_path: Path, synced: list[Path]) -> None:
    files = ChangeFiles(str(tmp_path / "wh" / "p" / "_captured"))
    files.put("a", [b"one\n"], 0)
    folders = [path for path in synced if path.is_dir()]
    assert sorted(folders[:-1]) == [tmp_path, tmp_path / "wh", tmp_path / "wh" / "p"]
    assert folders[-1] == files.folder
    synced.clear()
    files.put("b", [b"two\n"], 1)
    assert [path for path in synced if path.is_dir()] == [files.folder]


def test_regression_a_file_that_was_there_already_has_a_durable_name_when_it_is_put(
    tmp_path: Path, synced: list[Path]
) -> None:
    first = ChangeFiles(str(tmp_path / "_captured")).put("a", [b"one\n"], 0)
    synced.clear()
    files = ChangeFiles(str(tmp_path / "_captured"))
    assert files.put("a", [b"one\n"], 0) == first
    assert synced == [tmp_path, files.folder]
