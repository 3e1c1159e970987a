"""Part files on a disk, by names alone; what is in them is tested with Spark."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Barrier
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from tests.support.waiting import SECONDS_MAX
from tidemark.core.errors import Determinate
from tidemark.core.ids import ShardId, Txn, WriterToken
from tidemark.delta import store as store_module
from tidemark.spark.parts import PartStore, attempt_folder, stats_of

SWEEPERS = 4


def test_an_attempt_that_several_sweeps_discard_at_once_is_gone_and_no_error(tmp_path: Path) -> None:
    store, token, meet = PartStore(str(tmp_path)), WriterToken("lost"), Barrier(SWEEPERS)

    def discard(txn: Txn) -> None:
        meet.wait(SECONDS_MAX)
        store.discard(txn, token)

    with ThreadPoolExecutor(SWEEPERS) as sweepers:
        for txn in map(Txn, range(1, 21)):
            folder = tmp_path / "orders" / "log" / attempt_folder(txn, token)
            folder.mkdir(parents=True)
            for n in range(50):
                (folder / f"part-{n}.parquet").touch()
            list(sweepers.map(discard, [txn] * SWEEPERS))
            assert not folder.exists()
    assert store.attempts() == []


def test_regression_a_store_that_lists_a_removed_folder_does_not_hold_a_sweep_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a server on a disk does in a bucket with versions: the folder of the deleted ones stays."""
    removed: list[str] = []

    class Listing:
        def get_file_info(self, folder: str) -> Any:
            return SimpleNamespace(type=fs.FileType.Directory)

        def delete_dir(self, folder: str) -> None:
            assert len(removed) < 2, "it goes on for ever"
            removed.append(folder)
            if len(removed) == 1:
                raise FileNotFoundError(folder)

    monkeypatch.setattr(PartStore, "_store", (Listing(), ""))
    PartStore("s3://lake")._remove("orders/log/_txn-1/w")
    assert len(removed) == 2, "another sweep's removal is waited for"


def test_parts_are_on_disk_with_their_names_before_anybody_is_told_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes first, then the folders that name them, from the inside out; a sync that fails is an error."""
    folder = tmp_path / "t" / "log" / attempt_folder(Txn(1), WriterToken("w"))
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"k": ["a"]}), folder / "part-0.parquet")
    synced: list[Path] = []
    monkeypatch.setattr(store_module, "_sync", synced.append)
    parts = PartStore(str(tmp_path))
    (part,) = parts.parts(ShardId("t"), Txn(1), WriterToken("w"))
    log = tmp_path / "t" / "log"
    names = [folder, folder.parent, log, log.parent]
    assert synced[:7] == [log / part.path, *names, tmp_path, tmp_path.parent]

    def fails(path: Path) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(store_module, "_sync", fails)
    with pytest.raises(Determinate, match="can't be made durable"):
        parts.parts(ShardId("t"), Txn(1), WriterToken("w"))


@pytest.mark.parametrize(("zone", "mark"), [("UTC", "Z"), (None, "")])
def test_the_bounds_of_times_are_whole_milliseconds_that_include_them(
    tmp_path: Path, zone: str | None, mark: str
) -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC if zone else None)
    times = [at + timedelta(microseconds=1_500), None, at + timedelta(microseconds=2_001)]
    pq.write_table(pa.table({"t": pa.array(times, pa.timestamp("us", tz=zone))}), tmp_path / "part.parquet")
    found = json.loads(stats_of(pq.read_metadata(tmp_path / "part.parquet")))
    assert found["minValues"] == {"t": f"2026-01-01T00:00:00.001{mark}"}
    assert found["maxValues"] == {"t": f"2026-01-01T00:00:00.003{mark}"}
