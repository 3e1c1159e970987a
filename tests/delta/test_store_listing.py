"""What a store lists is all that is there, or an error; never a part of it in silence."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from obstore.store import MemoryStore

from tidemark.delta.store import Store

FILES = {"a/b/c": b"12", "a/e": b"1", "d": b""}


@pytest.fixture(params=["disk", "objects"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    memory = MemoryStore()
    monkeypatch.setattr("tidemark.config.storage.open_objects", lambda *_: memory)
    made = Store(str(tmp_path / "table") if request.param == "disk" else "s3://lake/table", {})
    for path, data in FILES.items():
        made.put_synced(path, data)
    return made


def test_every_file_is_listed_with_its_size_and_every_folder_of_the_root(store: Store) -> None:
    assert store.listed() == {path: len(data) for path, data in FILES.items()}
    assert store.folders() == ["a"]


def test_a_file_that_is_gone_is_told_as_such(store: Store) -> None:
    assert (store.has("a/e"), store.get("a/e")) == (True, b"1")
    for _ in range(2):
        store.delete("a/e")
    assert not store.has("a/e")
    for ask in (store.get, store.size):
        with pytest.raises(FileNotFoundError):
            ask("a/e")
    store.remove_quietly("a/e")
    assert store.listed() == {"a/b/c": 2, "d": 0}


def test_a_table_that_is_not_there_has_no_files(tmp_path: Path) -> None:
    assert (Store(str(tmp_path / "none"), {}).listed(), Store(str(tmp_path / "none"), {}).folders()) == (
        {},
        [],
    )


def test_a_folder_that_cannot_be_listed_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep would take what is missing from a list for what nobody has."""
    store = Store(str(tmp_path), {})
    store.put_synced("a/b", b"1")
    scandir: Callable[..., Iterator[Any]] = os.scandir

    def refused(path: Any) -> Iterator[Any]:
        if str(path).endswith("/a"):
            raise PermissionError(13, "refused")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refused)
    with pytest.raises(PermissionError):
        store.listed()
