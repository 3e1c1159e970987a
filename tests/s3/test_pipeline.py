"""Landing files and tables on an S3 server: the commands of a pipeline's life, one after the other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.s3.pipeline import RECORDS, RETIRED
from tests.support import ROOT
from tests.support.s3 import VERSIONED, AtomicStore, atomic_store
from tests.support.waiting import SECONDS_MAX

pytestmark = [pytest.mark.s3, pytest.mark.spark, pytest.mark.slow]


def driver_settings(store: AtomicStore, folder: Path) -> dict[str, str]:
    """The environment of a machine that works on the store, with Spark's settings where Spark looks."""
    folder.mkdir()
    settings = {
        "spark.driver.memory": "1g",
        "spark.hadoop.fs.s3a.endpoint": store.endpoint,
        "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
        "spark.hadoop.fs.s3a.path.style.access": "true",
    }
    lines = "".join(f"{name} {value}\n" for name, value in settings.items())
    (folder / "spark-defaults.conf").write_text(lines)
    return store.options | {"SPARK_CONF_DIR": str(folder), "TIDEMARK_SPARK_MASTER": "local[2]"}


def test_a_pipeline_lives_on_an_object_store(tmp_path: Path) -> None:
    """The bucket of the landing files has versions."""
    with atomic_store(tmp_path / "store", has_versions=True) as store:
        places = [f"s3://{bucket}/{tmp_path.name}" for bucket in (store.bucket, VERSIONED)]
        done = subprocess.run(
            [sys.executable, "-m", "tests.s3.pipeline", str(tmp_path), *places], cwd=ROOT,
            env=os.environ | driver_settings(store, tmp_path / "conf"),
            capture_output=True, text=True, timeout=SECONDS_MAX, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr[-5000:]
    story: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    for run in ("first", "second"):
        (decided,) = story[run]["report"]["decided"]
        assert decided["seal"]["source"]["count"] == RECORDS
    rows = {n: f"2026/a file=1.json {n}" for n in range(100)}
    rows |= {n: f"2026/b.json {n}" for n in range(100, 100 + RECORDS)}
    assert story["fresh"] == [{"id": n, "value": value} for n, value in rows.items()]
    assert story["published"]["orders"]["commit"]["txn"] == 2
    assert story["proven"][0]["published"]["commit"]["digest"]["count"] == len(rows)
    assert [one["verdict"] for one in story["repaired"]["findings"]] == ["identical", "identical"]
    assert [txn for txn, _, _ in story["repaired"]["restored"]] == [1]
    assert story["consumed"] == [[1, 3, 2 * RECORDS]]
    _check_generations(story["replaced"], rows)
    assert "file '2026/b.json' (number 1) was truncated from" in story["changed"]
    assert [one["verdict"] for one in story["gone"]["findings"]] == ["input gone"]
    left = f"(its version {story['version']} is still there: delete the versions that are newer)"
    assert left in story["changed"]
    assert f"file '2026/b.json' (number 1) was removed {left}" in story["gone"]["findings"][0]["why"]
    assert [one["verdict"] for one in story["there again"]["findings"]] == ["identical"]
    assert story["nothing new"]["report"]["decided"] == []


def _check_generations(told: dict[str, Any], rows: dict[int, str]) -> None:
    """Nobody sees the candidate before its promotion; the rollback takes back what came after it too."""
    assert told["planned"]["refused"] == []
    assert told["started"]["candidate"]["behind"] == 2
    assert told["followed"]["candidate"]["behind"] == 0
    (compared,) = told["compared"]["candidate"]["compared"].values()
    assert (compared["new"], compared["changed"], compared["gone"]) == (0, 0, 1)
    assert told["unseen"] == [{"id": n, "value": value} for n, value in rows.items()]
    assert (told["promoted"]["txn"], told["promoted"]["generation"]) == (3, 1)
    assert told["corrected"] == [one for one in told["unseen"] if one["id"] != RETIRED]
    assert told["corrections"] == [[3, 4, 1]]
    (decided,) = told["after"]["report"]["decided"]
    assert (decided["seal"]["txn"], decided["seal"]["source"]["count"]) == (4, RECORDS + 1)
    later = rows | {n: f"2026/c.json {n}" for n in range(300, 300 + RECORDS)}
    assert told["later"] == [{"id": n, "value": value} for n, value in later.items() if n not in (1, RETIRED)]
    assert (told["back"]["txn"], told["back"]["generation"]) == (5, 2)
    later[1] = f"2026/b.json {RETIRED}"
    assert told["restored"] == [{"id": n, "value": value} for n, value in later.items()]
    assert told["proven"][0]["published"]["commit"]["digest"]["count"] == len(later)
    assert [one["verdict"] for one in told["replayed"]["findings"]] == ["identical"] * 5
