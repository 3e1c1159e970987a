"""A disk that fills up under Spark, and a part that was cut: a clear error each, nothing lost, and a retry
works once the cause is gone."""

from __future__ import annotations

import gzip
import json
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support.deployed import arrive, attempt, begun
from tidemark.app.deployment import Deployment
from tidemark.app.views import View, read
from tidemark.config import PipelineConfig
from tidemark.core.errors import Determinate, InvalidUsage, TidemarkError
from tidemark.core.ids import ShardId, Txn
from tidemark.core.publish import Published
from tidemark.core.replay import Verdict
from tidemark.pipeline.publish import last_published, publish
from tidemark.pipeline.repair import repair
from tidemark.pipeline.run import replay, run

pytestmark = pytest.mark.spark

T = ShardId("t")
RULES: dict[str, Any] = {"schema": "id BIGINT NOT NULL, note STRING", "keys": ["id"]}
ROOM_BYTES = 20_000


@pytest.fixture
def room(spark: SparkSession) -> Iterator[Callable[[int], None]]:
    """How large a file Spark may write: what a full disk looks like to one process."""
    with limited(spark.sparkContext._gateway.proc.pid) as limit:
        yield limit


@pytest.fixture
def own_room() -> Iterator[Callable[[int], None]]:
    """How large a file this process may write."""
    with limited(os.getpid()) as limit:
        yield limit


@contextmanager
def limited(pid: int) -> Iterator[Callable[[int], None]]:
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    yield lambda size: resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, before[1])) and None
    resource.prlimit(pid, resource.RLIMIT_FSIZE, before)


def notes(count: int, *, says: str) -> list[dict[str, Any]]:
    """Records that are no smaller when they are compressed."""
    return [{"id": number, "note": f"{says} {hash((says, number)):x}" * 4} for number in range(count)]


def publish_state(works: Deployment) -> object:
    token = attempt().token
    return publish(works.control, works.state(), T, token=token)


def rows(works: Deployment, view: View) -> set[tuple[Any, ...]]:
    return {(row["id"], row["note"]) for row in read(works, T, view=view).collect()}


def expected(records: list[dict[str, Any]]) -> set[tuple[Any, ...]]:
    return {(record["id"], record["note"]) for record in records}


def parts_below(works: Deployment) -> list[Path]:
    return sorted(Path(works.shard_uri(T)).rglob("part-*.parquet"))


def test_a_disk_without_room_for_a_part_leaves_nothing_behind_and_a_retry_works(
    spark: SparkSession, tmp_path: Path, room: Callable[[int], None]
) -> None:
    works, many = begun(spark, tmp_path, **RULES), notes(3_000, says="full")
    room(ROOM_BYTES)
    with pytest.raises(Determinate, match=r"failed: java.io.IOException: File too large: .*retry"):
        arrive(works, *many)
    assert parts_below(works) == []
    assert works.control.seals.head().upper == 1
    room(resource.RLIM_INFINITY)
    run(works.pipeline, attempt())
    assert rows(works, View.FRESH) == expected(many)


def test_a_disk_without_room_for_the_state_leaves_the_last_one_and_a_retry_works(
    spark: SparkSession, tmp_path: Path, own_room: Callable[[int], None]
) -> None:
    works, few, many = begun(spark, tmp_path, **RULES), notes(3, says="few"), notes(3_000, says="many")
    arrive(works, *few)
    publish_state(works)
    arrive(works, *many)
    own_room(ROOM_BYTES)
    with pytest.raises(TidemarkError, match="File too large"):
        publish_state(works)
    own_room(resource.RLIM_INFINITY)
    assert rows(works, View.STATE) == expected(few)
    assert isinstance(publish_state(works), Published)
    assert rows(works, View.STATE) == expected(many)
    last = last_published(works.control, T)
    assert last is not None
    assert last.txn == 2


def test_a_part_that_was_cut_is_noticed_by_every_reader_and_can_be_restored(
    spark: SparkSession, tmp_path: Path
) -> None:
    works, first, second = begun(spark, tmp_path, **RULES), notes(3, says="first"), notes(2, says="second")
    arrive(works, *first)
    arrive(works, *second)
    cut = parts_below(works)[-1]
    whole = cut.read_bytes()
    cut.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(Determinate, match=r"t/log can't be read: .*--mode repair"):
        publish_state(works)
    assert last_published(works.control, T) is None
    (_, found) = replay(works.pipeline, attempt(), txn_from=Txn(1), txn_to=Txn(2))
    assert found.verdict is Verdict.DIFFERS
    assert "shard:t" in str(found.mismatches)
    assert [str(part.path) in str(cut) for _, part in repair(works.pipeline, attempt(), Txn(2)).parts] == [
        True
    ]
    publish_state(works)
    assert rows(works, View.STATE) == expected([*second, first[2]])


def test_regression_a_read_that_fails_keeps_nothing_in_sparks_memory(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Several shards share one read. What a warm server keeps of it would stay there for good."""
    shards = [
        {"name": name, "schema": "k INT, v STRING", "keys": ["k"], "route": {"column": "v", "equals": name}}
        for name in ("a", "b")
    ]
    source = {"type": "files", "path": "in", "format": "json", "settle_seconds": 0}
    given = {"name": "cut", "source": source, "warehouse": "wh", "shards": shards}
    works = Deployment(PipelineConfig.model_validate(given).at(tmp_path), lambda: spark)
    whole = gzip.compress("".join(json.dumps({"k": k, "v": "a"}) + "\n" for k in range(1_000)).encode())
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "cut.json.gz").write_bytes(whole[: len(whole) // 2])
    kept = spark._jsparkSession.sharedState().cacheManager()
    spark.catalog.clearCache()  # What workers of other tests have left, which were killed.
    with pytest.raises(
        InvalidUsage, match=r"transaction 1 is refused: file 'cut\.json\.gz' can't be unpacked"
    ):
        run(works.pipeline, attempt())
    assert kept.isEmpty()
