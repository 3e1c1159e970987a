"""Captured rows are for their owner alone, whatever the umask; and a full disk leaves no half of a file."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tidemark.core.errors import Determinate
from tidemark.sources.postgres.change_files import ChangeFiles


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.fixture(autouse=True)
def common_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def test_regression_captured_files_are_not_readable_for_others(tmp_path: Path) -> None:
    files = ChangeFiles(str(tmp_path / "wh" / "_captured"))
    bound = files.put("a", [b"one\n"], 0)
    files.write(files.folder / "note.json", b"{}")
    files.replace(files.folder / "note.json", b"{}")
    modes = {path.name: mode_of(path) for path in files.folder.iterdir()}
    assert modes == {bound.name: 0o600, "note.json": 0o600}
    assert mode_of(files.folder) == 0o700


def test_a_folder_that_was_made_for_a_group_lets_the_group_read(tmp_path: Path) -> None:
    """A Spark of another user has to read them; nobody else does."""
    folder = tmp_path / "_captured"
    folder.mkdir(mode=0o755)
    files = ChangeFiles(str(folder))
    assert mode_of(folder / files.put("a", [b"one\n"], 0).name) == 0o640
    assert mode_of(folder) == 0o755


@contextmanager
def small_disk() -> Iterator[None]:
    """Within, no file gets larger than this, which a full disk looks like to who writes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_disk_that_is_full_leaves_no_captured_file_and_no_half_of_one(tmp_path: Path) -> None:
    files = ChangeFiles(str(tmp_path / "_captured"))
    with pytest.raises(Determinate, match="File too large"), small_disk():
        files.put("a", [os.urandom(5_000)], 0)
    assert list(files.folder.iterdir()) == []
    assert files.put("b", [b"one\n"], 0).name.startswith("b-")
