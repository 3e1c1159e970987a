"""Bringing up a log that is far behind costs by what it lacks, and not by its square."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import pytest

from tests.support.memory.world import A, World, rec
from tidemark.core.ids import Txn
from tidemark.core.ledger import CommitOutcome
from tidemark.core.seal import Seal
from tidemark.pipeline.upsert import bring_up_log


@pytest.mark.parametrize("waiting", [20, 200])
def test_regression_each_waiting_seal_is_read_for_the_log_once(waiting: int) -> None:
    world = World()
    for number in range(waiting):
        world.commit(rec("k", number), rec("l", number, table="b"))
    world.warehouse.log(A).restore(0)
    pipeline = world.process()
    seals = pipeline.control.seals
    found: list[Txn] = []
    read = seals.read

    def counted(lower: int, upper: int) -> Sequence[Seal]:
        seals = read(lower, upper)
        found.extend(seal.txn for seal in seals)
        return seals

    with patch.object(seals, "read", counted):
        report = bring_up_log(pipeline, A)
    assert report.appended == tuple(range(1, waiting + 1))
    # Each is looked up once more when the log's head is compared with the history.
    assert len(found) <= 2 * waiting


def test_a_log_that_another_process_moves_meanwhile_is_brought_up_to_the_newest_seal() -> None:
    """Another process appends all of it, and one more is sealed, before the first of our appends."""
    world = World()
    for number in range(4):
        world.commit(rec("k", number))
    log = world.warehouse.log(A)
    log.restore(1)
    pipeline = world.process()
    mine = pipeline.control.log(A)
    commit = mine.commit

    def beaten(*args: Any) -> CommitOutcome:
        bring_up_log(world.process(), A)
        world.commit(rec("k", 9))
        log.restore(log.version - 1)
        return commit(*args)

    with patch.object(mine, "commit") as met:
        met.side_effect = lambda *args: beaten(*args) if met.call_count == 1 else commit(*args)
        report = bring_up_log(pipeline, A)
    assert (report.appended, report.dropped) == ((5,), (2,))
    assert world.log_txns() == [1, 2, 3, 4, 5]
