"""What is wrong with a part, and what is only wrong with the machine that looks at it."""

from __future__ import annotations

import errno
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidemark.core.errors import Determinate
from tidemark.core.ids import ShardId, Txn
from tidemark.core.seal import Part
from tidemark.delta.log import leftover_of
from tidemark.delta.parts import DeltaParts
from tidemark.spark.parts import PartStore

SHARD = ShardId("t")


@pytest.fixture
def part(tmp_path: Path) -> Part:
    folder = tmp_path / SHARD / "log" / "_txn-1"
    folder.mkdir(parents=True)
    rows = pa.table({"k": list(range(1_000))})
    pq.write_table(rows, folder / "a.parquet", compression="zstd", write_page_checksum=True)
    return Part("_txn-1/a.parquet", 1_000, (folder / "a.parquet").stat().st_size)


def changed(tmp_path: Path, part: Part) -> None:
    path = tmp_path / SHARD / "log" / part.path
    content = bytearray(path.read_bytes())
    content[100] ^= 0xFF
    path.write_bytes(content)


def test_regression_a_part_that_can_not_be_opened_now_is_no_fault_of_the_part(
    tmp_path: Path, part: Part, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = DeltaParts(str(tmp_path))
    assert parts.fault(SHARD, part, whole=True) == ""

    def busy(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(pq, "ParquetFile", busy)
        with pytest.raises(Determinate, match="Too many open files"):
            parts.fault(SHARD, part, whole=True)
    changed(tmp_path, part)
    assert "can't be read" in parts.fault(SHARD, part, whole=True)


def test_whether_parts_are_whole_is_asked_of_every_page(tmp_path: Path, part: Part) -> None:
    store, gone = PartStore(str(tmp_path)), Part("_txn-1/gone.parquet", 1, 1)
    assert store.are_whole(SHARD, [part, gone])
    changed(tmp_path, part)
    assert not store.are_whole(SHARD, [part])
    (tmp_path / SHARD / "log" / part.path).write_bytes(b"PAR1")
    assert not store.are_whole(SHARD, [part])


def test_regression_what_a_killed_compaction_was_writing_is_a_leftover() -> None:
    folder = f"_txns-{1:020}-{9:020}/{3:010}-w-1"
    for tail in ("part-0.parquet", ".part-0.parquet.crc", "_temporary/0/_temporary/attempt_1/part-0.parquet"):
        found = leftover_of(f"{folder}/{tail}", 5, None)
        assert found is not None
        assert (found.first, found.last, found.token, found.number) == (Txn(1), Txn(9), "w-1", 3)
    assert leftover_of("part-0.parquet", 5, None) is None
    assert leftover_of("_delta_log/0.json", 5, None) is None
