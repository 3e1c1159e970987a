"""A consumer of a pipeline that was recovered: lost transactions by name, effects counted by epoch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.crash.race import pipeline_at
from tests.delta.test_power_cut import newest, work
from tests.delta.test_recover import recovered
from tests.support.light import SHARD
from tidemark.app.deployment import new_token
from tidemark.core.history import HistoryLost
from tidemark.core.lease import HolderToken
from tidemark.core.reading import effect_key, lease_name
from tidemark.delta.parts import DeltaParts
from tidemark.pipeline.consume import Range, Reading, ShardReader
from tidemark.pipeline.leases import Hold, Leases, take_hold


def taken(root: Path) -> list[Range]:
    """Take and confirm all there is, one transaction at a time."""
    found: list[Range] = []
    with reading(root) as (reader, _):
        while (given := reader.next_range()) is not None:
            found.append(given)
            reader.delivered(given)
    return found


@contextmanager
def reading(root: Path) -> Iterator[tuple[ShardReader, Hold]]:
    pipeline, token = pipeline_at(root), new_token()
    name = lease_name("billing", SHARD)
    hold = take_hold(Leases(pipeline_at(root).control.leases), name, HolderToken(token), wait_seconds=0)
    wanted = Reading("billing", SHARD, token)
    try:
        yield ShardReader(pipeline, DeltaParts(pipeline.control.root), hold, wanted, name="race"), hold  # type: ignore[attr-defined]
    finally:
        hold.release()


def test_regression_a_frontier_never_moves_past_a_transaction_that_the_history_lacks(tmp_path: Path) -> None:
    """It would be on record without a link, and nothing could be compared with it from then on."""
    work(tmp_path, 1)
    with reading(tmp_path) as (reader, hold):
        given = reader.next_range()
        assert given is not None
        newest(tmp_path, "_control/history").unlink()
        reader._pipeline = pipeline_at(tmp_path)
        with pytest.raises(HistoryLost, match="consumer 'billing' has transaction 1, and the history ends"):
            reader.delivered(given)
        assert (hold.lease.txn, hold.lease.planned) == (1, 2)


def test_w2_a_consumer_is_told_of_what_is_lost_and_goes_on_in_the_new_epoch(tmp_path: Path) -> None:
    work(tmp_path, 1)
    assert [(one.lower, one.upper, one.epoch) for one in taken(tmp_path)] == [(1, 2, 0)]
    work(tmp_path, 2)
    for table in ("_control/history", "_control/history", f"{SHARD}/log"):
        newest(tmp_path, table).unlink()
    assert list(recovered(tmp_path).lost) == [2]
    work(tmp_path, 3)
    [given] = taken(tmp_path)
    assert (given.lower, given.upper, given.epoch) == (2, 4, 1)
    assert given.skipped[2].startswith("lost: its binding is lost (epoch 1); no log has rows of it")
    assert given.parts


def test_effects_of_an_epoch_are_counted_by_themselves() -> None:
    keys = {effect_key("p", "billing", SHARD, epoch=epoch) for epoch in (0, 1, 2)}
    assert len(keys) == 3
    assert effect_key("p", "billing", SHARD) == f"tidemark/p/{SHARD}/billing"
