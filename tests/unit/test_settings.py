"""A transaction that its settings refuse is mended by other settings, and replayed with those ever after."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.support.memory.plane import MemoryPlane
from tests.support.memory.world import AtOnce, World, rec
from tidemark.core.binding import Binding, Configuration
from tidemark.core.errors import InvalidUsage
from tidemark.core.ids import Txn, WriterToken
from tidemark.core.seal import Staged
from tidemark.pipeline.context import Attempt, Pipeline
from tidemark.pipeline.ingest import gather
from tidemark.pipeline.reclock import reclock
from tidemark.pipeline.repair import repair
from tidemark.pipeline.run import run
from tidemark.pipeline.upsert import seal_judged
from tidemark.pipeline.validate import judge_gathered

NARROW = Configuration.of(json.dumps({"schema": "narrow", "shards": [{"name": "a"}]}))
WIDE = Configuration.of(json.dumps({"schema": "wide", "shards": [{"name": "a"}]}))
ELSEWHERE = Configuration.of(
    json.dumps({"schema": "wide", "shards": [{"name": "a", "route": {"table": "t"}}]})
)


class Strict(MemoryPlane):
    """Takes nothing in by a narrow schema, and notes by which settings each reading was made."""

    def stage(self, binding: Binding, token: WriterToken) -> Staged:
        self.note(binding)
        return super().stage(binding, token)

    def replay(self, binding: Binding) -> Staged:
        self.note(binding)
        return super().replay(binding)

    def note(self, binding: Binding) -> None:
        if binding.configuration == NARROW:
            raise InvalidUsage("column 'more' is not declared", hint="declare it")


def strict(world: World, settings: Configuration) -> Pipeline:
    return replace(world.process(configuration=settings), plane=Strict(world.source, world.files))


def whole(pipeline: Pipeline, attempt: Attempt) -> None:
    run(pipeline, attempt, background=AtOnce())


def stepwise(pipeline: Pipeline, attempt: Attempt) -> None:
    reclock(pipeline, attempt)
    gather(pipeline, attempt)
    judge_gathered(pipeline, attempt)
    seal_judged(pipeline, attempt)


@pytest.mark.parametrize("work", [whole, stepwise])
def test_e4_a_refused_transaction_goes_on_when_the_pipeline_file_is_mended(
    work: Callable[[Pipeline, Attempt], None],
) -> None:
    world = World()
    world.feed(rec("k", 1))
    with pytest.raises(InvalidUsage, match="not declared"):
        work(strict(world, NARROW), world.attempt("owner"))
    assert (len(world.bindings), world.seals) == (1, [])
    work(strict(world, WIDE), world.attempt("owner"))
    (seal,) = world.seals
    assert seal.configuration == WIDE
    # The proof and a repair use them too, whatever the pipeline file says by then.
    work(strict(world, NARROW), replace(world.attempt("owner", cleared=True), round=1))
    (path, *_) = sorted(world.files)
    kept = world.files.pop(path)
    assert repair(strict(world, NARROW), world.attempt(), Txn(1)).parts
    assert world.files[path] == kept


def test_settings_that_are_as_bound_are_not_kept_twice() -> None:
    world = World()
    world.feed(rec("k", 1))
    run(strict(world, WIDE), world.attempt())
    assert [seal.configuration for seal in world.seals] == [None]


def test_settings_about_other_shards_are_not_for_what_is_bound_already() -> None:
    world = World()
    world.feed(rec("k", 1))
    for settings in (NARROW, ELSEWHERE):
        with pytest.raises(InvalidUsage, match="not declared"):
            run(strict(world, settings), world.attempt("owner"))
    assert world.seals == []
