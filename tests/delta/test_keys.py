"""The keys of a shard, read from its files while others publish and truncate."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tidemark.delta.parts import keys_in


def put(table: Path, *keys: int, mode: str = "append") -> None:
    write_deltalake(str(table), pa.table({"k": keys}), mode=mode)  # type: ignore[call-overload]


@pytest.mark.parametrize("name", ["plain", "a space", "caf\u00e9 #1", "100%"])
def test_regression_keys_are_found_whatever_the_folder_is_called(tmp_path: Path, name: str) -> None:
    shard = tmp_path / name / "shard"
    put(shard / "state", 1, 2)
    put(shard / "log", 2, 3)
    assert sorted(row["k"] for row in keys_in(str(shard), ["k"])) == [1, 2, 2, 3]
    assert list(keys_in(str(tmp_path / "nowhere"), ["k"])) == []


def test_regression_a_key_that_is_published_and_truncated_while_keys_are_read_is_not_missed(
    tmp_path: Path,
) -> None:
    put(tmp_path / "state", 1)
    put(tmp_path / "log", 2)
    keys = keys_in(str(tmp_path), ["k"])
    found = [next(keys)["k"]]
    put(tmp_path / "state", 2)
    put(tmp_path / "log", 3, mode="overwrite")
    assert {*found, *(row["k"] for row in keys)} >= {1, 2}
