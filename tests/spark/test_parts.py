"""Part files on a disk, by names alone; what is in them is tested with Spark."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

from tidemark.core.ids import Txn, WriterToken
from tidemark.spark.parts import PartStore, attempt_folder

SWEEPERS = 4


def test_an_attempt_that_several_sweeps_discard_at_once_is_gone_and_no_error(tmp_path: Path) -> None:
    store, token, meet = PartStore(str(tmp_path)), WriterToken("lost"), Barrier(SWEEPERS)

    def discard(txn: Txn) -> None:
        meet.wait(60)
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
