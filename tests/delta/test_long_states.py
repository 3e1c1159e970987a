"""A state after two hundred publishes, checkpoints, compactions and clean-ups, by all hands: every engine
that reads it without Spark has the same rows, of every version that is kept."""

from __future__ import annotations

import random
from pathlib import Path

import polars as pl
import pytest
from deltalake import DeltaTable, QueryBuilder

from tests.support.keyed_log import SHARD, Change, Key, KeyedLog
from tidemark.delta.state import StateTable
from tidemark.delta.state_maintenance import DeltaStateKeeper, MaintainedState
from tidemark.delta.vacuum import vacuum

pytestmark = pytest.mark.slow
PUBLISHES = 200
KEYS = 60
Rows = list[tuple[Key, str]]


def test_two_hundred_publishes_read_the_same_in_every_engine_and_at_every_version(tmp_path: Path) -> None:
    dice, log = random.Random(7), KeyedLog(tmp_path)
    keeper = DeltaStateKeeper("p", {SHARD: MaintainedState(log.spec.uri)})
    published: dict[int, Rows] = {}
    for number in range(1, PUBLISHES + 1):
        keys = dice.sample(range(KEYS), dice.randint(1, 12))
        log.append(
            *[Change((f"k{key}", key), None if dice.random() < 0.2 else f"{key}/{number}") for key in keys]
        )
        version = log.publish().version
        published[version] = sorted(log.expected().items(), key=repr)
        if number % 40 == 10:
            keeper.merge(SHARD, tombstones=-1)
        if number % 40 == 20:
            keeper.purge(SHARD)
        if number % 40 == 30:
            DeltaTable(log.spec.state).create_checkpoint()
        if number % 50 == 0:
            keeper.vacuum(SHARD, tombstones=-1)
            DeltaTable(log.spec.state).vacuum(dry_run=False, full=True)
            assert by_engines(log) == [published[version]] * 2
    for version in dice.sample(sorted(published), 15):
        found = pl.read_delta(log.spec.state, version=version)
        assert sorted((((a, b), v) for a, b, v, _ in found.rows()), key=repr) == published[version]
    # Everything that is older than the newest version is past its retention now.
    table = StateTable(log.spec.state)
    assert vacuum(table.store, now_ms=10**15, kept_ms=0)
    table = DeltaTable(log.spec.state)
    table.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    assert by_engines(log) == [published[max(published)]] * 2
    log.append(Change(("k0", 0), "after"))
    log.publish()
    log.check()


def by_engines(log: KeyedLog) -> list[Rows]:
    """The newest rows by Polars, and by delta-rs."""
    query = (
        QueryBuilder().register("t", DeltaTable(log.spec.state)).execute("SELECT a, b, v FROM t").read_all()
    )
    columns = [query[name].to_pylist() for name in ("a", "b", "v")]
    return [log.rows(), sorted((((a, b), v) for a, b, v in zip(*columns, strict=True)), key=repr)]
