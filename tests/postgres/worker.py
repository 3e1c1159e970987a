"""A run of a pipeline in a process that is killed at one of its durable steps.

A job (`tests.support.workers`) has the pipeline's `root`, `when` and at which `kind` of step to die, and
the `gateway` of a JVM that is running where rows are to be read by Spark.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.support.jvm import Gateway, attach
from tests.support.light import LightPlane, captured_records
from tests.support.steps import Fuse, Steps, wrap, wrap_control, wrap_planes
from tidemark.app.deployment import Deployment, new_token
from tidemark.app.tasks import no_session
from tidemark.config import PipelineConfig
from tidemark.core.binding import Owner
from tidemark.pipeline.context import Attempt, Pipeline
from tidemark.pipeline.run import run
from tidemark.sources.postgres import change_files, slot
from tidemark.sources.postgres.change_files import ChangeFiles

CONFIG, TRACE = "config.json", "trace"
FRAGMENT_BYTES = 2_000


def kind_of(step: str) -> str:
    """A step's name without the numbers that differ from run to run."""
    return re.sub(r"[\d -]+\Z", "", step)


@dataclass(frozen=True)
class KindFuse(Fuse):
    """Dies at the first step of a kind."""

    def burns(self, when: str, name: str, number: int) -> bool:
        return when == self.when and kind_of(name) == self.name


def pipeline_at(root: Path) -> Pipeline:
    """The pipeline with the plane that needs no engine."""
    config = PipelineConfig.from_canonical_json((root / CONFIG).read_text(), root=root)
    works = Deployment(config, no_session)
    plane: Any = LightPlane(Path(works.root), Path(config.source_location), captured_records)
    return replace(works.pipeline, plane=plane)


def write_name(files: ChangeFiles, path: Path, data: bytes) -> str:
    """What is captured. The files of a source transaction that is larger than one of them begin and end at
    its commit, and are numbered."""
    first, last, number, *_ = [*path.name.split("-"), "", ""]
    return "capture a later fragment" if first == last and number > "0000" else "capture a file"


def replace_name(files: ChangeFiles, path: Path, data: bytes, *, mtime_ns: int | None = None) -> str:
    """What is written over a file: one that a capture before a crash has left, or the note."""
    return "note the acknowledgement" if mtime_ns is None else "capture a file again"


def pipeline_of(root: Path, gateway: list[Any] | None, steps: Steps) -> Pipeline:
    if gateway is None:
        return pipeline_at(root)
    wrap_planes(steps)
    spark = attach(Gateway(*gateway))
    config = PipelineConfig.from_canonical_json((root / CONFIG).read_text(), root=root)
    return Deployment(config, lambda: spark).pipeline


def preload() -> None:
    """The imports of this module are all that a worker needs."""


def work(job: Mapping[str, Any]) -> None:
    root, fuse = Path(job["root"]), KindFuse(job["when"], job["kind"])
    change_files.FRAGMENT_BYTES = FRAGMENT_BYTES
    steps = Steps(root / TRACE, fuse)
    wrap_control(steps)
    wrap(ChangeFiles, "write", write_name, steps)
    wrap(ChangeFiles, "replace", replace_name, steps)
    wrap(LightPlane, "stage", lambda plane, binding, token: f"stage {binding.txn}", steps)
    wrap(slot, "advance", lambda db, name, lsn: "advance the slot", steps)
    run(pipeline_of(root, job["gateway"], steps), Attempt(Owner(new_token()), new_token()))
