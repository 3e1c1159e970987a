"""A run of a pipeline in a process that is killed at one of its durable steps.

`python -m tests.postgres.worker ROOT` reads one job per line, `{"when", "kind", "gateway"}`, forks a process
for it, and answers with its exit status; a negative one is the signal that killed it. The parent has imported
the libraries and opened nothing, so a fork is safe and a job pays for no import. With the gateway of a JVM
that is running, rows are read by Spark.
"""

from __future__ import annotations

import json
import os
import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.crash.jvm import Gateway, attach
from tests.crash.steps import Fuse, Steps, wrap, wrap_control, wrap_planes
from tests.postgres.light import LightPlane
from tidemark.assemble import Deployment, new_token
from tidemark.config import PipelineConfig
from tidemark.core.binding import Owner
from tidemark.pipeline.context import Attempt, Pipeline
from tidemark.pipeline.run import run
from tidemark.sources.postgres import changes, slot
from tidemark.sources.postgres.changes import ChangeFiles
from tidemark.tasks import no_session

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
    plane: Any = LightPlane(Path(works.root), Path(config.source_location))
    return replace(works.pipeline, plane=plane)


def write_name(files: ChangeFiles, path: Path, data: bytes) -> str:
    """What is captured. The files of a source transaction that is larger than one of them begin and end at
    its commit, and are numbered."""
    first, last, number, *_ = [*path.name.split("-"), "", ""]
    return "capture a later fragment" if first == last and number > "0000" else "capture a file"


def pipeline_of(root: Path, gateway: list[Any] | None, steps: Steps) -> Pipeline:
    if gateway is None:
        return pipeline_at(root)
    wrap_planes(steps)
    spark = attach(Gateway(*gateway))
    config = PipelineConfig.from_canonical_json((root / CONFIG).read_text(), root=root)
    return Deployment(config, lambda: spark).pipeline


def work(root: Path, fuse: Fuse, gateway: list[Any] | None) -> None:
    changes.FRAGMENT_BYTES = FRAGMENT_BYTES
    steps = Steps(root / TRACE, fuse)
    wrap_control(steps)
    wrap(ChangeFiles, "write", write_name, steps)
    wrap(ChangeFiles, "replace", lambda files, path, data: "note the acknowledgement", steps)
    wrap(LightPlane, "stage", lambda plane, binding, token: f"stage {binding.txn}", steps)
    wrap(slot, "advance", lambda db, name, lsn: "advance the slot", steps)
    run(pipeline_of(root, gateway, steps), Attempt(Owner(new_token()), new_token()))


def main() -> None:
    root = Path(sys.argv[1])
    for line in sys.stdin:
        job = json.loads(line)
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                work(root, KindFuse(job["when"], job["kind"]), job["gateway"])
                status = 0
            finally:
                os._exit(status)
        _, status = os.waitpid(pid, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
