"""The files with the keys of a shard, kept for a sweep while others publish, truncate and clean up."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from tidemark.delta.parts import files_of_shard
from tidemark.sources.files.bound_files import Sweep
from tidemark.sources.postgres.change_files import ChangeFiles

SWEEP = Sweep("shard", ',"after":null}')


def put(table: Path, *keys: int, mode: str = "append") -> None:
    write_deltalake(str(table), pa.table({"k": keys}), mode=mode)  # type: ignore[call-overload]


def keys_in(files: list[Path]) -> list[int]:
    return sorted(key for path in files for key in pq.read_table(path)["k"].to_pylist())


@pytest.mark.parametrize("name", ["plain", "a space", "caf\u00e9 #1", "100%"])
def test_regression_keys_are_found_whatever_the_folder_is_called(tmp_path: Path, name: str) -> None:
    shard = tmp_path / name / "shard"
    put(shard / "state", 1, 2)
    put(shard / "log", 2, 3)
    assert keys_in(files_of_shard(str(shard))) == [1, 2, 2, 3]
    assert files_of_shard(str(tmp_path / "nowhere")) == []


def test_regression_a_key_that_is_published_and_truncated_while_files_are_listed_is_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tidemark.delta import parts

    put(tmp_path / "state", 1)
    put(tmp_path / "log", 2)
    listed = parts._files_of

    def meanwhile(table: str) -> list[str]:
        found = listed(table)
        if table.endswith("log"):
            put(tmp_path / "state", 2)
            put(tmp_path / "log", 3, mode="overwrite")
        return found

    monkeypatch.setattr(parts, "_files_of", meanwhile)
    assert set(keys_in(files_of_shard(str(tmp_path)))) >= {1, 2}


def bytes_read() -> int:
    """How many bytes this process has read so far, from disks and from caches."""
    return int(Path("/proc/self/io").read_text().split()[1])


def test_a_sweep_keeps_files_that_maintenance_removes_and_reads_their_footers_only(tmp_path: Path) -> None:
    """Nothing on the driver grows with the rows of a shard."""
    read: dict[int, int] = {}
    for rows in (1_000, 1_000_000):
        put(tmp_path / f"{rows}" / "state", *range(rows))
        [path] = files_of_shard(str(tmp_path / f"{rows}"))
        captured = ChangeFiles(str(tmp_path / f"captured {rows}"))
        before = bytes_read()
        bound = captured.link(path, "0000000000000001-0000000000000001-0000", 0, SWEEP)
        read[rows] = bytes_read() - before
        assert bound == captured.link(path, "0000000000000001-0000000000000001-0000", 0, SWEEP)
        path.unlink()
        assert bound.size > 4 * rows
        assert pq.read_metadata(captured.folder / bound.name).num_rows == rows
    assert read[1_000_000] < read[1_000] + 16_384 < 100_000


def test_a_file_that_cannot_be_linked_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "state", 1, 2, 3)
    [path] = files_of_shard(str(tmp_path))
    real = os.link

    def refused(source: Path, target: Path) -> None:
        if Path(source) == path:
            raise PermissionError(1, "another user's file", str(source))
        real(source, target)

    monkeypatch.setattr(os, "link", refused)
    captured = ChangeFiles(str(tmp_path / "captured"))
    bound = captured.link(path, "0000000000000001-0000000000000001-0000", 0, SWEEP)
    assert keys_in([captured.folder / bound.name]) == [1, 2, 3]
    assert not list(captured.folder.glob(".*.tmp"))
