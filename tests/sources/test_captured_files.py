"""Captured files are durable when they are put: their bytes, their names, and the folders that have them."""

from __future__ import annotations

import errno
import os
from itertools import count
from pathlib import Path

import pytest

from tidemark.core.errors import Determinate
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
    # Written anew: after a sync that has failed, another sync of the same name proves nothing.
    assert (synced[0], synced[2]) == (tmp_path, files.folder)
    assert synced[1].name.endswith(".tmp")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_full_or_broken_disk_is_named_and_the_same_file_is_there_after_a_retry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, nth: int
) -> None:
    """The error comes while the file is written, or while its name is made durable."""
    files = ChangeFiles(str(tmp_path / "_captured"))
    calls = count(1)
    sync = os.fsync

    def failing(file: int) -> None:
        if next(calls) == nth:
            raise OSError(number, os.strerror(number))
        sync(file)

    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", failing)
        with pytest.raises(Determinate, match=f"no change is captured to .*{os.strerror(number)}"):
            files.put("a", [b"one\n"], 0)
    assert not list(tmp_path.rglob("*.tmp")), "nothing half written is left"
    found = ChangeFiles(str(tmp_path / "_captured")).put("a", [b"one\n"], 0)
    assert [path.name for path in files.folder.iterdir()] == [found.name]
