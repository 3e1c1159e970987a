"""Scenario P4, over Spark Connect: another Spark, another parallelism, the same digests."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from scripts.local_airflow.processes import free_port
from tests.spark.connect_client import outcome, scenarios
from tests.support.spark import TOKEN, connect_client
from tidemark.core.errors import Determinate, InvalidUsage
from tidemark.spark.connect_server import Server, start_server

pytestmark = [pytest.mark.spark, pytest.mark.server, pytest.mark.slow]


def client(url: str, root: Path, token: str) -> subprocess.CompletedProcess[str]:
    return connect_client("tests.spark.connect_client", url, str(root), folder=root, token=token)


def test_p4_over_connect_the_digests_are_those_of_a_classic_session(
    spark: SparkSession, connect_server: Server, tmp_path: Path
) -> None:
    """Invariants 6 and 7; what is refused or gone is so on both."""
    found = {name: outcome(rig, binding, "classic") for name, rig, binding in scenarios(spark, tmp_path)}
    done = client(connect_server.url, tmp_path, TOKEN)
    assert done.returncode == 0, done.stderr[-3000:]
    over_connect: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert over_connect == found
    staged, read_back, replayed, _, _ = found["folded"]
    assert staged == read_back == replayed
    assert {endpoint: text.split()[0] for endpoint, text in staged.items()} == {
        "source": "502",
        "shard:t": "70",
        "shard:quarantine": "2",
    }
    assert found["refused"] == ["Refused", True]
    assert found["gone"] == ["InputGone", False]


def test_regression_a_deployment_that_is_closed_leaves_no_session_on_the_server(
    connect_server: Server, tmp_path: Path
) -> None:
    done = connect_client(
        "tests.spark.connect_closing", connect_server.url, str(tmp_path), folder=tmp_path, token=TOKEN
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {"begun": 1, "ended": 1, "given": "open"}


def test_a_client_without_the_token_is_refused(connect_server: Server, tmp_path: Path) -> None:
    done = client(connect_server.url, tmp_path, "wrong")
    assert done.returncode != 0
    assert "UNAUTHENTICATED" in done.stderr


def test_the_token_is_on_no_command_line_and_the_port_on_no_other_interface(connect_server: Server) -> None:
    line = Path(f"/proc/{connect_server.process.pid}/cmdline").read_bytes()
    assert TOKEN.encode() not in line
    port = int(connect_server.url.rsplit(":", 1)[1])
    listening = [
        fields[1]
        for table in ("tcp", "tcp6")
        for fields in map(str.split, Path(f"/proc/net/{table}").read_text().splitlines()[1:])
        if fields[3] == "0A" and int(fields[1].rsplit(":", 1)[1], 16) == port
    ]
    assert listening
    # 127.0.0.1, little-endian, by itself or as an IPv6 address.
    assert all(address.rsplit(":", 1)[0].endswith("0100007F") for address in listening)


def test_a_server_that_can_not_start_says_why(connect_server: Server, tmp_path: Path) -> None:
    with pytest.raises(InvalidUsage, match="in use"):
        start_server(int(connect_server.url.rsplit(":", 1)[1]), TOKEN, folder=tmp_path)
    with pytest.raises(InvalidUsage, match="token"):
        start_server(free_port(), "", folder=tmp_path)
    with pytest.raises(Determinate, match="ended with code"):
        start_server(free_port(), TOKEN, folder=tmp_path, confs={"spark.driver.memory": "nonsense"})
