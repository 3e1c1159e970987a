"""What has not moved for too long, told by the times that real control tables keep (Invariant 14)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.support.memory.world import World, rec
from tidemark.delta.control import DeltaControl
from tidemark.pipeline.checkpoint import stalls
from tidemark.pipeline.reclock import reclock

HOUR_SECONDS = 3_600.0


def test_regression_runs_that_found_nothing_do_not_make_what_is_bound_next_look_old(tmp_path: Path) -> None:
    """A run that finds nothing leaves a claim under the number that the next binding gets."""
    world, now = World(), [0.0]
    control = DeltaControl(str(tmp_path), "p", clock_ns=lambda: int(now[0] * 1e9))
    pipeline = replace(world.process(), control=control)
    reclock(pipeline, world.attempt("idle"))
    now[0] = 10 * HOUR_SECONDS
    world.feed(rec("k", 1))
    reclock(pipeline, world.attempt("busy"))
    assert stalls(pipeline, now_seconds=now[0] + 1) == ()
    (stall,) = stalls(pipeline, now_seconds=now[0] + 1_000)
    assert stall.sentence(now[0] + 1_000) == (
        "transaction 1 has not moved for 16 m 40 s: it is bound and not sealed"
    )
