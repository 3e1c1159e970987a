"""What a process pays before it does anything: `python -m bench.start`.

Importing the configuration (DAG parsing does it for every file), the whole assembly without Spark, and
binding 10,000 small files, each against an empty Python in the same run. Medians of processor time.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROUNDS = 7
FILES = 10_000
PIPELINE = """\
name: many
source: {type: files, path: in, format: json, settle_seconds: 0}
shards: [{name: rows, schema: id BIGINT NOT NULL, keys: [id]}]
"""
BIND = """\
from tidemark.assemble import Deployment
from tidemark.config import load_pipeline
deployment = Deployment(load_pipeline('many.yaml'), lambda: None)
print(len(deployment.pipeline.source.offer(None)))
"""


def cpu_seconds(code: str, folder: Path) -> float:
    """The processor time of one new Python that runs the code."""
    before = os.times()
    subprocess.run([sys.executable, "-c", code], check=True, cwd=folder, capture_output=True)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="tidemark-bench-") as made:
        folder = Path(made)
        (folder / "in").mkdir()
        (folder / "many.yaml").write_text(PIPELINE)
        for number in range(FILES):
            (folder / "in" / f"{number}.json").write_text('{"id": 1}\n')
        codes = {
            "an empty Python": "pass",
            "import tidemark.config": "import tidemark.config",
            "import tidemark.assemble": "import tidemark.assemble",
            f"offer {FILES:,} new files": BIND,
        }
        found = {
            name: statistics.median(cpu_seconds(code, folder) for _ in range(ROUNDS))
            for name, code in codes.items()
        }
    base = found["an empty Python"]
    print("## Start\n\n| what | CPU seconds | against an empty Python |\n| --- | ---: | ---: |")
    for name, seconds in found.items():
        print(f"| {name} | {seconds:.2f} | {seconds / base:.0f} |")


if __name__ == "__main__":
    main()
