"""airflow_settings.yaml: what is read, what is refused, and loading it twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.local_airflow.settings import read_settings
from tests.airflow.conftest import PROJECT
from tidemark.config import load_pipelines
from tidemark.core.errors import InvalidUsage

LOAD = """
import json, sys
from pathlib import Path
from airflow.utils.db import upgradedb
from scripts.local_airflow.settings import load_settings, read_settings
upgradedb()
for name in sys.argv[1:]:
    load_settings(read_settings(Path(name)))
from airflow.models import Connection, Pool, Variable
from airflow.utils.session import create_session
with create_session() as session:
    told = {
        "connections": [[c.conn_id, c.conn_type, c.host, c.password] for c in session.query(Connection)],
        "pools": sorted([p.pool, p.slots] for p in session.query(Pool)),
        "variables": sorted([v.key, v.val] for v in session.query(Variable)),
    }
print("RESULT" + json.dumps(told))
"""


def test_the_projects_own_file_is_in_the_astro_format() -> None:
    settings = read_settings(PROJECT / "airflow_settings.yaml")
    assert [one.conn_id for one in settings.connections] == ["spark_default"]
    assert [pool.pool_name for pool in settings.pools] == ["tidemark_publishers"]


def test_the_publisher_of_every_pipeline_of_the_project_has_a_slot() -> None:
    """A pipeline's DAG runs one upsert at a time, so that none ever waits for another pipeline's."""
    loaded = load_pipelines(PROJECT / "include" / "pipelines")
    (pool,) = read_settings(PROJECT / "airflow_settings.yaml").pools
    assert pool.pool_slot == len(loaded.pipelines)


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("airflow: {pools: [{pool_name: a, pool_slots: 2}]}", "pools.0.pool_slot"),
        ("airflow: [1]", "valid dictionary"),
        ("- 1", "no top key 'airflow'"),
        ("airflow: {", "can't be read"),
    ],
)
def test_a_broken_file_is_refused_by_name(tmp_path: Path, text: str, fact: str) -> None:
    file = tmp_path / "airflow_settings.yaml"
    file.write_text(text)
    with pytest.raises(InvalidUsage, match="airflow_settings") as error:
        read_settings(file)
    assert fact in str(error.value)


@pytest.mark.airflow
@pytest.mark.slow
def test_loading_twice_changes_what_is_different_and_nothing_else(tmp_path: Path) -> None:
    one, two = tmp_path / "one.yaml", tmp_path / "two.yaml"
    text = """
airflow:
  connections: [{conn_id: lake, conn_type: generic, conn_host: HOST, conn_password: hidden}]
  pools: [{pool_name: p, pool_slot: 3}]
  variables: [{variable_name: v, variable_value: VALUE}]
"""
    one.write_text(text.replace("HOST", "a").replace("VALUE", "x"))
    two.write_text(text.replace("HOST", "b").replace("VALUE", "y"))
    done = subprocess.run(
        [sys.executable, "-c", LOAD, str(one), str(one), str(two)],
        env={**os.environ, "AIRFLOW_HOME": str(tmp_path / "home"), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.rpartition("RESULT")[2])
    assert ["lake", "generic", "b", "hidden"] in told["connections"]
    assert len([one for one in told["connections"] if one[0] == "lake"]) == 1
    assert ["p", 3] in told["pools"]
    assert told["variables"] == [["v", "y"]]
