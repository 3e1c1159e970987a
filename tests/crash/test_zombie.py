"""A state commit that lands after its publisher died, while the next publisher is at work.

A worker that waits before its commit is killed as soon as that is in; the next publisher has looked at the
table before, and commits after it. It meets a conflict, decides again, and finds what the dead one has done.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.campaign import KILLED, Bench, feed
from tests.crash.feed import ORDERS
from tests.crash.worker import DONE, DUE, GO, LATE_READY, ZOMBIE_READY
from tests.support.steps import AFTER, Fuse
from tests.support.waiting import wait_for_file

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.mark.parametrize(
    ("first", "longer"),
    [(True, True), (False, True), (False, False)],
    ids=["first publish, longer tail", "later publish, longer tail", "later publish, same tail"],
)
def test_regression_a_commit_that_lands_after_its_publisher_died_is_never_published_again(
    bench: Bench, tmp_path: Path, first: bool, longer: bool
) -> None:
    """Scenario M13, Invariants 4 and 5: the late publisher loses, and starts again from what is there."""
    landed = feed(tmp_path, seed=3, first=0, files=2)
    if not first:
        bench.finish(tmp_path, "before", publish=DUE)
        landed = feed(tmp_path, seed=3, first=landed, files=2)
    commit = Fuse(AFTER, name=f"state {ORDERS} {landed // 2}")
    zombie = bench.start(tmp_path, "zombie", fuse=commit, zombie=True, publish=DUE)
    wait_for_file(tmp_path / ZOMBIE_READY)
    if longer:
        feed(tmp_path, seed=3, first=landed, files=2)
    late = bench.start(tmp_path, "late", await_zombie=True, publish=DUE)
    wait_for_file(tmp_path / LATE_READY)
    (tmp_path / GO).touch()
    assert bench.status(zombie) == KILLED
    assert bench.status(late) == DONE
    bench.finish(tmp_path, "last", sweep=True)
    bench.check(tmp_path)
