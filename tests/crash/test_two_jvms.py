"""Two commands, each with a JVM of its own, run one pipeline and publish its state by Spark at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.support.tables import rows_of

# Without deletion vectors the touched files are rewritten, by Spark alone.
PIPELINE = """\
name: p
source: {type: files, path: in, format: json, settle_seconds: 0}
transaction: {max_files: 1}
warehouse: wh
shards: [{name: t, schema: "id BIGINT NOT NULL, v BIGINT", keys: [id], deletion_vectors: false}]
"""
ROUNDS, FILES = 3, 4

pytestmark = [pytest.mark.spark, pytest.mark.sweep]


def tidemark(root: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tidemark.cli", *words],
        cwd=root,
        env=os.environ | {"TIDEMARK_SPARK_MASTER": "local[1]"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_two_jvms_publish_one_state_and_no_row_is_lost_or_doubled(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(PIPELINE)
    (tmp_path / "in").mkdir()
    truth: dict[int, int] = {}
    for number in range(ROUNDS):
        for file in range(FILES):
            rows = dict.fromkeys(range(file, 40, 3), number * 100 + file)
            text = "".join(json.dumps({"id": id_, "v": v}) + "\n" for id_, v in rows.items())
            (tmp_path / "in" / f"{number}-{file}.json").write_text(text)
            truth |= rows
        both = [tidemark(tmp_path, "run", "p") for _ in range(2)]
        said = [one.communicate()[0] for one in both]
        # One that has lost too many races in a row says that it is to be run again.
        assert {one.returncode for one in both} <= {0, 1}, said
        last = tidemark(tmp_path, "publish", "p")
        told = last.communicate()[0]
        assert last.returncode == 0, told
        state = Counter(rows_of(tmp_path / "wh" / "p" / "t" / "state", ("id", "v")))
        assert state == Counter(truth.items())
    for words in (("verify", "p"), ("replay", "p")):
        proof = tidemark(tmp_path, *words)
        told = proof.communicate()[0]
        assert proof.returncode == 0, told
