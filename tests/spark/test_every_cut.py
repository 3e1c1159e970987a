"""E1, E3 and D1 to D5 in one file and in five, on one core and on two, and again after a replay."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.spark.every_cut import CASES, FILES, Case, played
from tests.support.spark import connect_client
from tidemark.spark.connect_server import Server

pytestmark = pytest.mark.spark


def check(found: dict[str, Any], case: Case) -> None:
    assert found["tables"] == list(case.tables)
    assert found["quarantined"] == list(case.quarantined)
    assert found["replayed"] == found["digests"]


Outcomes = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def two_cores(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    root = tmp_path_factory.mktemp("cuts")
    return {
        name: [played(spark, root / f"{name}-{files}", case, files=files) for files in FILES]
        for name, case in CASES.items()
    }


@pytest.mark.parametrize("name", CASES)
def test_e1_e3_d1_d2_d3_d4_d5_in_one_file_and_in_five(two_cores: Outcomes, name: str) -> None:
    """Invariant 6: how the input is cut makes no difference, to the table or to a digest."""
    for one in two_cores[name]:
        check(one, CASES[name])
        assert one["digests"] == two_cores[name][0]["digests"]


@pytest.mark.server
@pytest.mark.slow
def test_e1_e3_d1_d2_d3_d4_d5_on_one_core(
    two_cores: Outcomes, connect_server: Server, tmp_path: Path
) -> None:
    """Invariant 7: other parallelism, over Spark Connect, the same rows and the same digests."""
    done = connect_client("tests.spark.every_cut", connect_server.url, str(tmp_path / "one"), folder=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert sorted(found) == sorted(CASES)
    for name, case in CASES.items():
        check(found[name], case)
        assert found[name]["digests"] == two_cores[name][-1]["digests"]
