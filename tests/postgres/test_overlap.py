"""Runs that overlap on one database: what another has done is dropped, and nobody waits for the last one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.postgres.worker import pipeline_at
from tests.support.light import LightPlane, captured_records
from tests.support.postgres_pipeline import PAIRS_SCHEMA, Kept, Rig, attempt
from tidemark.core.ids import ShardId
from tidemark.core.seal import Lost
from tidemark.pipeline.reclock import mint
from tidemark.pipeline.run import run
from tidemark.sources.postgres.change_files import WAL

pytestmark = pytest.mark.server
SHARD = ShardId("pairs")


@pytest.fixture
def kept(rig: Callable[..., Rig]) -> Kept:
    return Kept(rig(settings={"transaction": {"max_records": 1}}, pairs=(PAIRS_SCHEMA, ["id"])))


def parts(works: Rig) -> set[Path]:
    return set((works.root / "wh" / "p" / "pairs" / "log").glob("_txn-*/*/*.parquet"))


def test_m1_what_a_peer_has_taken_before_we_start_is_dropped_and_nothing_is_written(kept: Kept) -> None:
    works = kept.works
    works.sql("INSERT INTO pairs VALUES (5, 'e')", "INSERT INTO pairs VALUES (7, 'g')")
    ours, pipeline = attempt(), pipeline_at(works.root)
    assert len(mint(pipeline, ours).txns) == 2
    works.sql("INSERT INTO pairs VALUES (8, 'h')")
    kept.run()  # A peer, that finishes ours first, and then binds and does its own.
    before = parts(works)
    report = run(pipeline, ours)
    assert (report.decided, parts(works)) == ((), before)
    assert report.checkpoint == len(kept.bound())
    kept.check()


def test_m1_what_a_peer_takes_while_we_stage_it_is_dropped_at_our_seal(kept: Kept) -> None:
    works = kept.works
    works.sql("INSERT INTO pairs VALUES (5, 'e')", "INSERT INTO pairs VALUES (7, 'g')")

    class Overtaken(LightPlane):
        def stage(self, *given: Any) -> Any:
            staged = super().stage(*given)
            kept.run()
            return staged

    pipeline = pipeline_at(works.root)
    folder = Path(works.config().source_location)
    plane: Any = Overtaken(works.root / "wh" / "p", folder, captured_records)
    report = run(replace(pipeline, plane=plane), attempt())
    assert [type(outcome) for outcome in report.decided] == [Lost, Lost]
    # Every part is a winner's.
    seals = pipeline.control.seals
    sealed = [seal.shards.get(SHARD) for seal in seals.read(1, seals.head().upper)]
    named = {part.path for added in sealed if added for part in added.parts}
    log = works.root / "wh" / "p" / "pairs" / "log"
    assert {str(path.relative_to(log)) for path in parts(works)} == named
    kept.check()


def test_m12_checkpoints_and_the_slot_advance_while_runs_overlap_without_end(kept: Kept) -> None:
    """Each run has bound its share before the one before it is done, so something is open at any time."""
    works = kept.works
    pipelines = [pipeline_at(works.root) for _ in range(6)]
    attempts = [attempt() for _ in pipelines]
    works.sql("INSERT INTO pairs VALUES (100, 'n')")
    mint(pipelines[0], attempts[0])
    reached = [(0, works.slot()[0])]
    for number, (pipeline, following) in enumerate(pairwise(pipelines)):
        works.sql(f"INSERT INTO pairs VALUES ({101 + number}, 'n')")
        mint(following, attempts[number + 1])
        report = run(pipeline, attempts[number])
        assert report.checkpoint < len(kept.bound())
        reached.append((report.checkpoint, works.slot()[0]))
        assert works.slot()[0] <= kept.bound()[report.checkpoint].upper[WAL]
    assert all(one[0] < two[0] and one[1] < two[1] for one, two in pairwise(reached))
    kept.run()
    kept.check()
