"""Repair on memory stores: what was lost comes back under its own name, or nothing changes."""

from __future__ import annotations

import pytest

from tests.support.memory.control import MemoryControl, MemoryWarehouse
from tests.support.memory.plane import Files, MemoryPlane
from tests.support.memory.source import MemorySource, MemorySourceView, SourceRecord
from tidemark.core.binding import Configuration, Owner
from tidemark.core.errors import InvalidUsage
from tidemark.core.ids import ShardId, Txn, WriterToken
from tidemark.core.replay import Verdict
from tidemark.pipeline.context import Attempt, Pipeline
from tidemark.pipeline.repair import repair
from tidemark.pipeline.run import run


class World:
    """One pipeline with two transactions, committed."""

    def __init__(self) -> None:
        self.source = MemorySource(records_max=4)
        self.files: Files = {}
        for number in range(8):
            self.source.append("p0", SourceRecord(ShardId("a"), (number,), number))
        self.pipeline = Pipeline(
            MemoryControl(MemoryWarehouse()),
            MemorySourceView(self.source),
            MemoryPlane(self.source, self.files),
            Configuration.of("{}"),
        )
        run(self.pipeline, Attempt(Owner("first"), WriterToken("w1")))
        self.before = dict(self.files)

    def repair(self, txn: int = 1) -> object:
        return repair(self.pipeline, Attempt(Owner("mender"), WriterToken("w2")), Txn(txn))


def test_r1_a_lost_part_comes_back_under_its_recorded_name() -> None:
    world = World()
    del world.files["a/1/w1/1"]
    done = world.repair()
    assert [part.path for _, part in done.parts] == ["a/1/w1/1"]
    assert world.files == world.before


def test_a_part_with_other_rows_is_replaced_too() -> None:
    world = World()
    world.files["a/1/w1/0"] = world.files["a/2/w1/0"]
    done = world.repair()
    assert len(done.parts) == 2
    assert world.files == world.before


def test_nothing_is_written_when_nothing_is_lost() -> None:
    world = World()
    assert world.repair().parts == ()
    assert world.files == world.before


def test_changed_input_repairs_nothing() -> None:
    world = World()
    del world.files["a/1/w1/1"]
    left = dict(world.files)
    world.source.partitions["p0"][0] = SourceRecord(ShardId("a"), (0,), "other")
    done = world.repair()
    assert done.finding.verdict is Verdict.DIFFERS
    assert world.files == left


def test_files_that_can_not_be_made_again_are_refused_and_nothing_is_left_behind() -> None:
    world = World()
    del world.files["a/1/w1/1"]
    left = dict(world.files)
    world.pipeline.plane._parts_max = 3
    with pytest.raises(InvalidUsage, match="can't be staged into the same files"):
        world.repair()
    assert world.files == left
