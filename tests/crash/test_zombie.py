"""A driver that is killed while its JVM commits a state: the commit lands later, without anybody's lock."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.campaign import KILLED, Bench, feed
from tests.crash.nursery import report_of

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.mark.parametrize("first", [True, False], ids=["first publish", "later publish"])
@pytest.mark.parametrize("longer", [False, True], ids=["the same tail", "a longer tail"])
def test_regression_a_commit_that_lands_after_its_publisher_died_is_never_published_again(
    bench: Bench, tmp_path: Path, first: bool, longer: bool
) -> None:
    """Scenario M13, Invariant 5: the next publisher has looked at the table before the zombie's commit
    landed, and commits after it."""
    landed = feed(tmp_path, seed=3, first=0, files=2)
    if not first:
        bench.finish(tmp_path, "before")
        landed = feed(tmp_path, seed=3, first=landed, files=2)
    bench.finish(tmp_path, "logs", publish=False)
    dead = bench.start(tmp_path, "zombie", zombie=True)
    assert bench.status(dead) == KILLED
    if longer:
        feed(tmp_path, seed=3, first=landed, files=2)
    late = bench.start(tmp_path, "late", await_zombie=True)
    bench.status(late)
    assert report_of(late).waited, "the zombie was too quick"
    bench.finish(tmp_path, "last", sweep=True)
    bench.check(tmp_path)
    assert set(bench.prove(tmp_path)) == {"identical"}
