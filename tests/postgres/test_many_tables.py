"""A pipeline of many tables: those that a source transaction doesn't touch cost nothing (scenario M11)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.postgres.worker import CONFIG, pipeline_at
from tests.support.postgres_pipeline import PAIRS, PAIRS_SCHEMA, Rig, attempt
from tidemark.pipeline.run import run

pytestmark = pytest.mark.server
TABLES, CHANGED = 200, 20


class Watched:
    """The control plane, and whose log was asked for."""

    def __init__(self, control: Any) -> None:
        self._control = control
        self.asked: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._control, name)

    def log(self, shard: Any) -> Any:
        self.asked.add(shard)
        return self._control.log(shard)


def test_m11_a_transaction_over_20_of_200_tables_touches_20_shards_and_asks_for_no_other(
    rig: Callable[..., Rig],
) -> None:
    names = [f"t{number:03}" for number in range(TABLES)]
    works = rig(**dict.fromkeys(names, (PAIRS_SCHEMA, ["id"])))
    works.ready(*[PAIRS.format(name) for name in names])
    (works.root / CONFIG).write_text(works.config().canonical_json())
    run(pipeline_at(works.root), attempt())
    changed = set(names[:: TABLES // CHANGED])
    works.transaction(*[f"INSERT INTO {name} VALUES (1, 'a')" for name in changed])
    pipeline = pipeline_at(works.root)
    watched: Any = Watched(pipeline.control)
    report = run(replace(pipeline, control=watched), attempt())
    [seal] = pipeline.control.seals.read(report.checkpoint, report.checkpoint + 1)
    assert set(seal.shards) == changed == watched.asked
    assert {path.parent.name for path in (works.root / "wh" / "p").glob("t*/log")} == changed
