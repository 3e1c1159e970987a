"""The state plane over Spark Connect, against a real server: the same rows, by the ways that need no JVM."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.spark.test_state import LATE_RESULT
from tidemark.spark.jars import jar_paths
from tidemark.spark.java import use_java
from tidemark.spark.session import SHORT_JOBS, session_confs

pytestmark = [pytest.mark.spark, pytest.mark.slow]
ROOT = Path(__file__).resolve().parents[2]
SECONDS_MAX = 300


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Connect server on loopback, for this module."""
    import pyspark

    use_java()
    folder = tmp_path_factory.mktemp("server")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    confs = session_confs(master="local[2]", jars=jar_paths(), scratch_folder=folder) | {
        "spark.connect.grpc.binding.address": "127.0.0.1", "spark.connect.grpc.binding.port": str(port),
        "spark.driver.memory": "1g", **SHORT_JOBS,
    }  # fmt: skip
    home = Path(pyspark.__file__).parent
    command = [str(home / "bin" / "spark-submit"), "--master", "local[2]"]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    for name, value in confs.items():
        command += ["--conf", f"{name}={value}"]
    with (folder / "messages").open("w") as messages:
        server = subprocess.Popen(
            [*command, "spark-internal"], stdout=messages, stderr=messages, cwd=folder,
            env=os.environ | {"SPARK_HOME": str(home)}, start_new_session=True,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + SECONDS_MAX
        while socket.socket().connect_ex(("127.0.0.1", port)) != 0:
            assert server.poll() is None, (folder / "messages").read_text()
            assert time.monotonic() < deadline, "the server doesn't listen"
            time.sleep(0.2)
        yield f"sc://localhost:{port}"
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(timeout=60)


@pytest.fixture(scope="module")
def found(url: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the worker saw, all of it in one process."""
    folder = tmp_path_factory.mktemp("work")
    command = [sys.executable, "-m", "tests.spark.state_connect_work", url, str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def test_every_publish_and_the_fresh_read_have_the_right_rows(found: dict[str, Any]) -> None:
    seen = found["every_way"]
    assert seen["used"] == ["write", "replace_keys", "merge", "write", "write"]
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
    feeds = [sorted(map(str, feed)) for feed in found["every_way"]["feeds"]]
    assert feeds[2] == sorted(map(str, [["-", "a", "2"], ["+", "a", "3"], ["-", None, "2"]]))
    assert feeds[4] == []


def test_a_rebuild_is_published_on(found: dict[str, Any]) -> None:
    seen = found["every_way"]
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
