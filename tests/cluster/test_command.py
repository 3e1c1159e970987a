"""A pipeline's life on a cluster, by the commands; one driver runs it all, and each test looks at a part."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.command import KILLED_IN
from tests.cluster.shop import RECORDS, SHARDS, expected
from tests.support import ROOT
from tests.support.cluster import EXECUTORS, EXECUTORS_MAX, Cluster
from tests.support.waiting import SECONDS_MAX

pytestmark = [pytest.mark.spark, pytest.mark.slow]

Story = dict[str, Any]


@pytest.fixture(scope="module")
def story(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Story:
    root = tmp_path_factory.mktemp("command")
    done = subprocess.run(
        [sys.executable, "-m", "tests.cluster.command", str(root), *map(str, cluster.workers)],
        env=os.environ | cluster.environment, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS_MAX,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-5000:]
    found: Story = json.loads(done.stdout.splitlines()[-1])
    return found | {"lost tasks": cluster.lost_tasks(), "python starts": cluster.python_starts}


def test_an_executor_lost_in_any_step_changes_no_count_and_no_row(story: Story) -> None:
    """Invariant 7: each of these steps has lost a task with its executor."""
    assert story["killed"] == dict.fromkeys(KILLED_IN, 1)
    assert story["lost tasks"] >= len(KILLED_IN)
    (decided,) = story["first"]["report"]["decided"]
    assert decided["seal"]["source"]["count"] == RECORDS
    assert story["fresh"] == expected(2)


def test_states_and_fresh_reads_have_the_fold_of_the_records(story: Story) -> None:
    assert story["fresh"] == story["after"] == expected(2)
    at = {name: one["commit"]["txn"] for name, one in story["published"].items()}
    assert at == dict.fromkeys(SHARDS, 2)
    assert [one["published"]["commit"]["digest"]["count"] for one in story["proven"]] == [
        len(expected(2)[name]) for name in SHARDS
    ]


def test_a_lost_part_is_found_and_brought_back(story: Story) -> None:
    ((txn, shard, part),) = story["repaired"]["restored"]
    assert (txn, shard, Path(part).name) == (1, "indexed", story["lost"])
    assert [one["verdict"] for one in story["repaired"]["findings"]] == ["identical", "identical"]


def test_a_consumer_has_every_change_once(story: Story) -> None:
    sealed = [story[run]["report"]["decided"][0]["seal"]["shards"]["indexed"] for run in ("first", "second")]
    assert story["consumed"] == [[1, 3, sum(one["digest"]["count"] for one in sealed)]]


def test_a_promotion_corrects_the_rows_of_one_shard(story: Story) -> None:
    """The candidate reads all recorded input on the cluster; nothing deletes rows of `indexed` any more."""
    assert (story["promoted"]["txn"], story["promoted"]["generation"]) == (3, 1)
    assert story["corrected"] == expected(2, deletes="s") != story["after"]


def test_an_executor_that_comes_later_is_counted_and_used(story: Story) -> None:
    """One is requested after the session has begun; the next transaction counts its core, and uses it."""
    assert story["cores"] == [EXECUTORS, EXECUTORS_MAX]
    assert story["used"] == EXECUTORS_MAX


def test_executors_have_no_python_and_need_none(story: Story) -> None:
    """The one job that needs Python fails, and is the only one that has asked for it."""
    assert story["needs python"]
    assert story["python starts"] > 0
    assert story["python starts before"] == 0
