"""What a process pays before it does anything: `python -m bench.start`.

Importing the configuration (DAG parsing does it for every file), the whole assembly without Spark, binding
10,000 small files, and the command with nothing to do, each against an empty Python in the same run. Medians
of processor time, and of the time that passes.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

ROUNDS = 11
FILES = 10_000
PIPELINE = """\
name: {name}
source: {{type: files, path: {name}, format: json, settle_seconds: 0}}
shards: [{{name: rows, schema: id BIGINT NOT NULL, keys: [id]}}]
"""
BIND = """\
from tidemark.app.deployment import Deployment
from tidemark.config import load_pipeline
deployment = Deployment(load_pipeline('many.yaml'), lambda: None)
print(len(deployment.pipeline.source.offer(None)))
"""


def begun(folder: Path, name: str, *, files: int) -> Path:
    """A pipeline file, and a folder with files of one record each."""
    (folder / name).mkdir()
    for number in range(files):
        (folder / name / f"{number}.json").write_text(f'{{"id": {number}}}\n')
    file = folder / f"{name}.yaml"
    file.write_text(PIPELINE.format(name=name))
    return file


def done(folder: Path) -> Path:
    """The file of a pipeline whose transactions are committed, verified and published; no Spark did it."""
    from tidemark.app.deployment import Deployment, new_token
    from tidemark.config import load_pipeline
    from tidemark.core.binding import Binding, Owner
    from tidemark.core.checksum import Digest, Digests
    from tidemark.core.ids import ShardId, Txn, WriterToken
    from tidemark.core.publish import StateCommit
    from tidemark.core.seal import Part, ShardParts, Staged
    from tidemark.delta.log import parts_folder
    from tidemark.pipeline.context import Attempt
    from tidemark.pipeline.publish import put_record
    from tidemark.pipeline.run import run

    shard, digest = ShardId("rows"), Digest.of((1, 2, 3))

    class Plane:
        """Says that it has written, and reads back what it said."""

        def stage(self, binding: Binding, token: WriterToken) -> Staged:
            part = Part(f"{parts_folder(binding.txn, token)}/part.parquet", digest.count, 1_000)
            return Staged(binding.txn, token, digest, {shard: ShardParts((part,), digest)}, "bench")

        def read_back(
            self, staged: Staged, *, moved: Mapping[ShardId, Sequence[Part]] | None = None
        ) -> Digests:
            return staged.digests

    file = begun(folder, "idle", files=3)
    deployment = Deployment(load_pipeline(file), lambda: cast("Any", None))
    attempt = Attempt(Owner("bench"), new_token())
    report = run(replace(deployment.pipeline, plane=cast("Any", Plane())), attempt)
    deployment.control.seals.head()
    [seal] = deployment.control.seals.read(report.checkpoint, report.checkpoint + 1)
    commit = StateCommit(Txn(report.checkpoint), attempt.token, digest, link=seal.link)
    put_record(deployment.control, shard, version=0, commit=commit)
    return file


def spent(command: Sequence[str], folder: Path) -> tuple[float, float]:
    """The processor time of a process, and the time that passed until it ended."""
    before, began = os.times(), time.perf_counter()
    subprocess.run(command, check=True, cwd=folder, capture_output=True)
    passed, after = time.perf_counter() - began, os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return cpu, passed


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="tidemark-bench-") as made:
        folder = Path(made)
        begun(folder, "many", files=FILES)
        done(folder)
        python = [sys.executable, "-c"]
        tidemark = [str(Path(sys.executable).with_name("tidemark"))]
        commands = {
            "an empty Python": [*python, "pass"],
            "import tidemark.config": [*python, "import tidemark.config"],
            "import tidemark.app.deployment": [*python, "import tidemark.app.deployment"],
            f"offer {FILES:,} new files": [*python, BIND],
            "tidemark --help": [*tidemark, "--help"],
            "tidemark run, nothing to do": [*tidemark, "run", "idle.yaml"],
            "tidemark status": [*tidemark, "status", "idle.yaml"],
            "tidemark txns": [*tidemark, "txns", "idle.yaml"],
        }
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
        for _ in range(ROUNDS):
            for name, command in commands.items():
                found[name].append(spent(command, folder))
    print("## Start\n\n| what | CPU seconds | seconds | CPU against an empty Python |")
    print("| --- | ---: | ---: | ---: |")
    base = statistics.median(cpu for cpu, _ in found["an empty Python"])
    for name, all_ in found.items():
        cpu, passed = (statistics.median(side) for side in zip(*all_, strict=True))
        print(f"| {name} | {cpu:.2f} | {passed:.2f} | {cpu / base:.0f} |")


if __name__ == "__main__":
    main()
