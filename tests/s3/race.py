"""A process that races for a pipeline whose control tables and logs are on S3.

As in `tests/crash/race.py`, each round is a run of all processes at the same moment, on a light data plane:
its parts are on a disk, so that every request to the server is one of a decision.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from tests.crash.race import MEET_EVERY, SECONDS_MAX, Meeting, config_at, pipeline_at, write_round
from tests.support.light import SHARD, LightPlane
from tidemark.app.deployment import new_token
from tidemark.core.binding import Owner
from tidemark.delta.control import DeltaControl
from tidemark.delta.schema import log_schema
from tidemark.pipeline.context import Attempt, Pipeline
from tidemark.pipeline.run import run
from tidemark.ports.plane import DataPlane
from tidemark.sources.files.source import FileSource


def pipeline_on(root: Path, place: str) -> Pipeline:
    """This process's handle: files and parts below a folder, all that is decided on the store."""
    config = config_at(root)
    control = DeltaControl(place, config.name, {SHARD: log_schema(config.shapes[SHARD])})
    source = FileSource.of(config, bindings=control.bindings)
    return replace(pipeline_at(root), control=control, source=source)


def race(
    root: str, place: str, options: dict[str, str], writer: int, rounds: int, barrier: Any, reports: Any
) -> None:
    """Land a file (the first writer), meet, run; and tell which attempts have staged something."""
    os.environ.update(options)
    free = pipeline_on(Path(root), place)
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
