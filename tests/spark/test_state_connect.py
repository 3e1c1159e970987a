"""The state plane over Spark Connect, against a real server: the same rows, by the same commits."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.spark.test_state import LATE_RESULT
from tests.support.spark import connect_client
from tidemark.spark.connect_server import Server

pytestmark = [pytest.mark.spark, pytest.mark.server, pytest.mark.slow]


@pytest.fixture(scope="module")
def found(connect_server: Server, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the worker saw, all of it in one process."""
    folder = tmp_path_factory.mktemp("work")
    done = connect_client("tests.spark.state_connect_work", connect_server.url, str(folder), folder=folder)
    assert done.returncode == 0, done.stderr[-4000:]
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def test_every_publish_and_the_fresh_read_have_the_right_rows(found: dict[str, Any]) -> None:
    seen = found["publishes"]
    assert seen["states"] == seen["fresh"]
    assert [sorted(map(str, rows)) for rows in seen["states"]] == [
        sorted(map(str, rows))
        for rows in (
            [["a", "1"], ["b", "1"], [None, "1"]],
            [["a", "2"], ["b", "1"], ["c", "1"], [None, "2"]],
            [["a", "3"], ["b", "1"], ["c", "1"]],
            [["a", "3"], ["b", "1"], ["c", "1"], ["d", "1"]],
            [["a", "3"], ["b", "1"], ["c", "1"], ["d", "1"]],
        )
    ]


def test_u6_the_change_feed_has_changes_only(found: dict[str, Any]) -> None:
    feeds = [sorted(map(str, feed)) for feed in found["publishes"]["feeds"]]
    assert feeds[2] == sorted(map(str, [["-", "a", "2"], ["+", "a", "3"], ["-", None, "2"]]))
    assert feeds[4] == []


def test_a_rebuild_is_published_on(found: dict[str, Any]) -> None:
    seen = found["publishes"]
    assert seen["rebuilt"] == [["a", "3"], ["b", "1"], ["c", "1"], ["d", "1"], ["e", "1"]]
    assert seen["last"] == seen["rebuilt"][:-1]
    assert seen["txn"] == 7


def test_m13_a_second_commit_on_one_base_never_counts(found: dict[str, Any]) -> None:
    assert found["late"] == {
        "refused": True, "between": [["a", "2"], ["b", "1"]], "after": [["a", "1"], ["c", "1"]],
    }  # fmt: skip


def test_u11_late_records_lose_as_they_do_elsewhere(found: dict[str, Any]) -> None:
    expected = [list(row) for row in LATE_RESULT]
    assert found["sequences"] == {"fresh": expected, "state": expected}
