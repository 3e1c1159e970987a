"""How many tasks and parts a transaction gets: by its size and the cores of its own time. No Spark."""

from __future__ import annotations

from pathlib import Path
from threading import Barrier
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.waiting import SECONDS_MAX
from tidemark.config import PipelineConfig
from tidemark.core.ids import ShardId, Txn, WriterToken
from tidemark.sources.files.bound_files import BoundFile
from tidemark.spark import plane as plane_module
from tidemark.spark.parts import PartStore, attempt_folder
from tidemark.spark.plane import SparkPlane
from tidemark.spark.read import parts_of, tasks_of

MB = 1024**2


def files(*sizes: int) -> list[BoundFile]:
    return [BoundFile(seq, f"{seq}.json", size, "", 0) for seq, size in enumerate(sizes)]


@pytest.mark.parametrize(
    ("size", "cores", "tasks", "parts"),
    [
        (MB, 2, 6, 1),
        (64 * MB, 2, 6, 2),
        (64 * MB, 8, 24, 8),
        # Few executors are there yet: enough tasks wait for those that come later.
        (100 * 1024 * MB, 2, 800, 800),
        (100 * 1024 * MB, 64, 800, 832),
    ],
)
def test_tasks_and_parts_follow_the_size_and_the_cores(size: int, cores: int, tasks: int, parts: int) -> None:
    assert (tasks_of(files(size), cores=cores), parts_of(files(size), cores=cores)) == (tasks, parts)


def test_the_cores_are_asked_for_each_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    """Executors come and go while a process works off a backlog."""
    cores = iter([2, 8])
    asked: list[int] = []
    monkeypatch.setattr(plane_module, "cores_of", lambda spark: next(cores))
    monkeypatch.setattr(plane_module, "route", lambda *args: None)

    def read(*args: object, cores: int) -> None:
        asked.append(cores)

    given: Any = SimpleNamespace(form=lambda config: None, parts=lambda cores: cores, read=read)
    shard = {"name": "t", "schema": "id BIGINT NOT NULL", "keys": ["id"]}
    source = {"type": "files", "path": "in", "format": "json"}
    config = PipelineConfig.model_validate({"name": "p", "source": source, "shards": [shard]}).at(Path("/"))
    session = cast("Any", SimpleNamespace(version="4", newSession=lambda: SimpleNamespace(conf={})))
    one = SparkPlane(session, config)
    one._sessions = cast("Any", SimpleNamespace(many=None, few=None))
    found = [one._prepared(config, given, txn, None)[2] for txn in (Txn(1), Txn(2))]
    assert (asked, found) == ([2, 8], [2, 8])


def test_footers_are_opened_several_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One by one, a thousand parts on an object store would be a thousand waits."""
    count = 4
    folder = tmp_path / "t" / "log" / attempt_folder(Txn(1), WriterToken("w"))
    folder.mkdir(parents=True)
    for number in range(count):
        pq.write_table(pa.table({"k": list(range(number + 1))}), folder / f"part-{number}.parquet")
    meet, read_metadata = Barrier(count, timeout=SECONDS_MAX), pq.read_metadata

    def meeting(*args: Any, **more: Any) -> Any:
        meet.wait()
        return read_metadata(*args, **more)

    store, shard = PartStore(str(tmp_path)), ShardId("t")
    monkeypatch.setattr(pq, "read_metadata", meeting)
    parts = store.parts(shard, Txn(1), WriterToken("w"))
    assert [part.rows for part in parts] == [1, 2, 3, 4]
    assert store.damaged(shard, parts) == []
    assert len(store.readable(shard, parts)) == count
