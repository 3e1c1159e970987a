"""Maintenance of real tables by a real Spark: no kind of it changes what anybody reads, or what is proven.

What the tables must hold is worked out by hand from the source's files.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tests.maintenance.shop import FED, PUBLISHED, SHARD, Shop, expected
from tests.support.copies import at_home
from tidemark.app.deployment import new_token
from tidemark.app.views import View
from tidemark.core.checksum import Digest
from tidemark.core.ids import ShardId, Txn, WriterToken
from tidemark.core.log import Truncated
from tidemark.core.publish import VERSION_NONE, HistoryGone, Published
from tidemark.core.seal import Part
from tidemark.delta.state_maintenance import DeltaStateKeeper, MaintainedState
from tidemark.pipeline.context import binding_at
from tidemark.pipeline.maintain import compact
from tidemark.pipeline.publish import rebuild, verify_state
from tidemark.pipeline.repair import repair

pytestmark = pytest.mark.spark


@pytest.fixture
def shop(fed_shop: Path, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    """A copy to work on, in which a few small files are enough to be merged."""
    monkeypatch.setattr("tidemark.core.maintenance.FILES_MIN", 4)
    shutil.copytree(fed_shop, tmp_path / "shop")
    at_home(tmp_path / "shop")
    return Shop(spark, tmp_path / "shop")


def data_bytes(folder: Path) -> int:
    """What the data files of a table take on disk, whether a version has them or not."""
    return sum(path.stat().st_size for path in data_files(folder))


def data_files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*.parquet") if path.parent.name != "_delta_log"]


@contextmanager
def confs(spark: SparkSession) -> Iterator[None]:
    """What a user would set who wants to vacuum everything, with a small listing."""
    wanted: Mapping[str, str] = {
        "spark.databricks.delta.retentionDurationCheck.enabled": "false",
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
    }
    for name, value in wanted.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in wanted:
            spark.conf.unset(name)


def test_merging_log_and_state_changes_nothing_that_is_read_or_proven(shop: Shop) -> None:
    """Invariants 7 and 15: fresh read, log, state and replay before and after, against the files; and the
    space is given back once nobody can need what was replaced."""
    log_before = shop.rows(View.LOG)
    assert shop.rows(View.FRESH) == expected(FED)
    bytes_before = data_bytes(shop.folder / "log")
    done = {(chore.what, chore.shard): chore.files for chore in shop.maintain().chores}
    assert done["merged small files", SHARD] >= FED
    assert done["merged small files", "quarantine"] == FED
    assert done["purged the state's hidden rows", SHARD] >= 1
    assert len(DeltaTable(str(shop.folder / "log")).file_uris()) == 1
    assert data_bytes(shop.folder / "log") > bytes_before, "what was replaced stays for earlier readers"
    shop.reclaim()
    assert not list((shop.folder / "log").glob("_txn-*/*/*.parquet"))
    assert data_bytes(shop.folder / "log") < bytes_before / 2

    assert shop.rows(View.LOG) == log_before
    assert shop.rows(View.FRESH) == expected(FED)
    assert shop.rows(View.STATE) == expected(PUBLISHED)
    assert shop.rows(View.FRESH, as_of=3) == expected(3)
    assert shop.verdict() == "identical"
    assert DeltaTable(str(shop.folder / "state")).history(1)[0]["operation"] == "REORG"
    shop.deployment.keeper().merge(SHARD, tombstones=VERSION_NONE)
    state_before = data_bytes(shop.folder / "state")
    kept = MaintainedState(shop.deployment.shard_uri(SHARD), history_days=0)
    DeltaStateKeeper("shop", {SHARD: kept}).vacuum(SHARD, tombstones=VERSION_NONE)
    assert data_bytes(shop.folder / "state") < 0.6 * state_before
    active = {Path(uri).name for uri in DeltaTable(str(shop.folder / "state")).file_uris()}
    assert {path.name for path in data_files(shop.folder / "state")} == active
    assert isinstance(shop.publish(), Published), "the next publisher takes none of it for a stranger's write"
    assert shop.rows(View.STATE) == expected(FED)
    verify_state(shop.deployment.control, shop.deployment.state(), SHARD)


def test_a_merged_file_that_is_lost_is_told_by_a_replay_and_merged_anew_by_a_repair(shop: Shop) -> None:
    """Invariant 8: what is missing is named; and the log is whole again, with the rows that it had."""
    log_before = shop.rows(View.LOG)
    shop.compact()
    shop.reclaim()
    (merged,) = (shop.folder / "log").glob("_txns-*/*/*.parquet")
    merged.unlink()
    assert shop.verdict() == "differs"
    done = repair(shop.deployment.pipeline, shop.attempt(), Txn(2))
    assert done.finding.passed
    assert [part.path.split("/")[0] for _, part in done.parts] == [merged.parent.parent.name]
    assert shop.rows(View.LOG) == log_before
    assert shop.verdict() == "identical"
    assert repair(shop.deployment.pipeline, shop.attempt(), Txn(2)).parts == ()


def aged(folder: Path, *, days: int) -> None:
    """Let everything in a folder be some days old."""
    then = time.time() - days * 86_400
    for path in folder.rglob("*"):
        if path.is_file():
            os.utime(path, (then, then))


def test_a_vacuum_by_other_hands_harms_nobody_and_retain_0_is_told_to_who_reads_the_past(shop: Shop) -> None:
    """Staged and sealed parts live in hidden folders through RETAIN 0; the state's recorded version lives
    through a default VACUUM, whose commits make it an old one that Delta alone would refuse to read."""
    plane = shop.deployment.plane()
    staged = plane.stage(binding_at(shop.deployment.pipeline, Txn(3)), WriterToken("slow-writer"))
    before = set((shop.folder / "log").glob("_txn-*/*/*.parquet"))
    aged(shop.root / "wh", days=40)
    with confs(shop.spark):
        shop.spark.sql(f"VACUUM delta.`{shop.folder / 'state'}`")
        shop.spark.sql(f"VACUUM delta.`{shop.folder / 'log'}` RETAIN 0 HOURS")
    assert set((shop.folder / "log").glob("_txn-*/*/*.parquet")) == before
    assert plane.read_back(staged) == staged.digests
    assert shop.rows(View.STATE) == expected(PUBLISHED)
    assert shop.rows(View.FRESH) == expected(FED)
    properties = DeltaTable(str(shop.folder / "state")).metadata().configuration
    assert properties["delta.deletedFileRetentionDuration"] == "interval 7 days"

    assert isinstance(shop.publish(), Published)
    shop.deployment.keeper().merge(SHARD, tombstones=VERSION_NONE)
    with confs(shop.spark):
        shop.spark.sql(f"VACUUM delta.`{shop.folder / 'state'}` RETAIN 0 HOURS")
    with pytest.raises(HistoryGone, match=r"as of transaction 4 .* has lost"):
        shop.rows(View.STATE, as_of=PUBLISHED)
    assert shop.rows(View.STATE) == expected(FED)


def test_what_lies_below_since_is_refused_by_name_and_a_state_is_rebuilt_from_its_last_version(
    shop: Shop,
) -> None:
    done = shop.maintain(window=FED, kept_ms=0)
    assert done.since == PUBLISHED + 1, "not past what is published"
    with pytest.raises(Truncated, match="as of transaction 1: single transactions are kept from 5 on"):
        shop.rows(View.FRESH, as_of=1)
    with pytest.raises(Truncated):
        shop.rows(View.LOG, as_of=1)
    assert shop.rows(View.FRESH, as_of=2) == expected(2), "a publish of exactly that needs no log"
    assert shop.rows(View.FRESH) == expected(FED)
    assert {row[-5] for row in shop.rows(View.LOG)} == {5}
    control, plane = shop.deployment.control, shop.deployment.state()
    assert rebuild(control, plane, SHARD, token=new_token()).txn == FED
    assert shop.rows(View.STATE) == expected(FED)
    assert shop.verdict() == "identical"


def test_regression_a_compaction_whose_files_another_maintenance_removes_is_shut_out(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one begins a compaction and deletes what was written before it, while that is read back."""
    kept, rival = shop.deployment.plane().log_rows, Shop(shop.spark, shop.root)
    read = kept.digests_by_txn

    def late(shard: ShardId, parts: Sequence[Part]) -> Mapping[Txn, Digest]:
        rival.reclaim()
        return read(shard, parts)

    monkeypatch.setattr(kept, "digests_by_txn", late)
    control = shop.deployment.control
    done = compact(control, control.log(SHARD), kept, SHARD, token=new_token())
    assert (done.files_after, len(done.left)) == (0, 1)
    assert shop.rows(View.FRESH) == expected(FED)
