"""What a racing process does: every round, one run of the pipeline, at the same moment as all the others.

In every second round nobody may seal before all have staged, so that it is a race on any machine.
The rounds are real runs (`tidemark.pipeline.run`) on the real control plane and the real file source; only
the data plane is the light one of `tests/support/light.py`, so that a round costs no Spark job.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from tests.support.light import SHARD, LightPlane
from tidemark.app.deployment import new_token
from tidemark.config import PipelineConfig
from tidemark.core.binding import Binding, Configuration, Owner
from tidemark.core.ids import WriterToken
from tidemark.core.seal import Staged
from tidemark.delta.control import DeltaControl
from tidemark.delta.schema import log_schema
from tidemark.pipeline.context import Attempt, Pipeline
from tidemark.pipeline.run import run
from tidemark.ports.planes import DataPlane
from tidemark.sources.files.source import FileSource

SECONDS_MAX = 300
MEET_EVERY = 2
KEYS = 40


def config_at(root: Path) -> PipelineConfig:
    (root / "in").mkdir(parents=True, exist_ok=True)
    shard = {"name": SHARD, "schema": "id BIGINT NOT NULL, value STRING", "keys": ["id"]}
    source = {"type": "files", "path": "in", "format": "json", "settle_seconds": 0}
    return PipelineConfig.model_validate(
        {"name": "race", "source": source, "shards": [shard], "warehouse": "wh"}
    ).at(root)


def pipeline_at(root: Path, *, clock_ns: Callable[[], int] = time.time_ns) -> Pipeline:
    """This process's handle on the pipeline."""
    config = config_at(root)
    schemas = {SHARD: log_schema(config.shapes[SHARD])}
    control = DeltaControl(config.warehouse_location, config.name, schemas, clock_ns=clock_ns)
    return Pipeline(
        control=control,
        source=FileSource.of(config, bindings=control.bindings),
        plane=LightPlane(Path(config.warehouse_location) / config.name, Path(config.source_location)),
        configuration=Configuration.of(config.canonical_json()),
    )


def write_round(root: Path, number: int) -> None:
    """The file of a round; it lands whole."""
    rng = random.Random(number)
    lines = [json.dumps({"id": rng.randrange(KEYS), "value": f"{number}/{n}"}) for n in range(12)]
    path = root / "in" / f"{number:06}.json"
    path.with_suffix(".tmp").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    path.with_suffix(".tmp").rename(path)


class Meeting:
    """A light plane that hands over what it has staged when all others have staged too."""

    def __init__(self, plane: LightPlane, barrier: Any) -> None:
        self._plane = plane
        self._barrier = barrier

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plane, name)

    def stage(self, binding: Binding, token: WriterToken) -> Staged:
        staged = self._plane.stage(binding, token)
        self._barrier.wait(SECONDS_MAX)
        return staged


def race(root: str, writer: int, rounds: int, barrier: Any, reports: Any) -> None:
    """Land a file (the first writer), meet, run; and tell which attempts have staged something."""
    free = pipeline_at(Path(root))
    plane = cast("LightPlane", free.plane)
    meeting = replace(free, plane=cast("DataPlane", Meeting(plane, barrier)))
    staged: list[tuple[int, str]] = []
    errors: list[str] = []
    for number in range(rounds):
        if writer == 0:
            write_round(Path(root), number)
        barrier.wait(SECONDS_MAX)
        attempt = Attempt(Owner(f"round-{number}-writer-{writer}"), new_token())
        before = len(plane.staged)
        try:
            run(meeting if number % MEET_EVERY == 0 else free, attempt)
        except Exception as error:
            errors.append(f"round {number}: {type(error).__name__}: {error}")
        staged += [(txn, attempt.token) for txn in plane.staged[before:]]
        barrier.wait(SECONDS_MAX)
    reports.put((writer, staged, errors))
