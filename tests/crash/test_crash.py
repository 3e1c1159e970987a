"""The bounded crash campaign: real Spark, real files, SIGKILL. `python -m tests.crash --seeds N` runs more.

After every kill in `test_p3…` the next try goes on until its own kill, and in the end everything is
compared with the source files; for a sample of the kills (all of them in the long form) a copy of what the
kill left behind is finished and compared by itself.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.campaign import Bench, chain, feed, finish_copy, flow
from tests.crash.recompute import COLUMNS
from tests.support.tables import rows_of

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SEED = 11
FINISH_EVERY = 13


def test_p3_killed_before_and_after_every_durable_step_the_next_run_finishes_the_same(
    bench: Bench, tmp_path: Path
) -> None:
    """Invariants 1 to 5 and 9, 10: first on an empty warehouse, then on one with logs and states. The long
    form kills after each step too."""
    kills = 0
    for copy in chain(bench, tmp_path, seed=SEED, cycles=(2, 2), after_each=False):
        finish_copy(bench, copy, check=kills % FINISH_EVERY == 0)
        kills += 1
    assert set(bench.prove(tmp_path / "killed")) == {"identical"}
    assert kills >= 40, "the steps were not found"


@pytest.mark.parametrize("cycles", [6, pytest.param(15, marks=pytest.mark.sweep)])
def test_p1_cycles_of_flow_kill_and_resume_with_two_workers_end_like_an_uninterrupted_run(
    bench: Bench, tmp_path: Path, cycles: int
) -> None:
    """Invariants 2, 4, 6 and 7. Every fifth time the JVM dies with its workers, as a whole process group."""
    killed, calm = tmp_path / "killed", tmp_path / "calm"
    before, jvm_kills = bench.tally.kills, range(4, cycles, 5)
    jvms_before = bench.tally.jvm_kills
    landed = flow(bench, killed, seed=SEED, cycles=cycles, jvm_kills=jvm_kills)
    feed(calm, seed=SEED, first=0, files=landed)
    bench.finish(calm, "run", sweep=True)
    bench.check(calm)
    for shard, columns in COLUMNS.items():
        states = [rows_of(root / "wh" / "trade" / shard / "state", columns) for root in (killed, calm)]
        assert sorted(map(repr, states[0])) == sorted(map(repr, states[1]))
    assert set(bench.prove(killed)) == {"identical"}
    assert bench.tally.kills - before >= cycles / 2, "hardly anybody was killed"
    assert bench.tally.jvm_kills - jvms_before == len(jvm_kills)
