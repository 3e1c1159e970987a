"""What `tidemark status` says of a topic, against a real broker."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from tests.support.kafka import Broker
from tests.support.kafka_pipeline import Rig, kv
from tidemark.cli.app import app
from tidemark.pipeline.reclock import reclock

pytestmark = [pytest.mark.spark, pytest.mark.server]


def numbered(first: int, upper: int) -> list[Any]:
    return [kv(f"k{number}", "v") for number in range(first, upper)]


def documented(rig: Rig, name: str) -> tuple[int, Any]:
    """The answer of the statement in the documentation that gives a column of this name."""
    for table in ("history", "checkpoints"):
        path = rig.root / "wh" / rig.settings["name"] / "_control" / table
        rig.spark.read.format("delta").load(str(path)).createOrReplaceTempView(table)
    page = (Path(__file__).resolve().parents[2] / "docs/control-tables.md").read_text()
    (statement,) = [one for one in page.split("```")[1].split(";") if f"AS {name}" in one]
    (row,) = rig.spark.sql(statement.removeprefix("sql")).collect()
    return row["txn"], json.loads(row[name])


def test_status_tells_received_flushed_acknowledged_and_the_lag(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    rig = Rig(spark, tmp_path, broker, broker.make("lag", 2))
    file = tmp_path / "lag.yaml"
    file.write_text(yaml.safe_dump(rig.settings))

    def status(*more: str) -> str:
        told = CliRunner().invoke(app, ["status", str(file), *more], env={"COLUMNS": "300"})
        assert told.exit_code == 0, told.output
        return told.output

    broker.send("lag", numbered(0, 5))
    # A new broker sets up its groups when it is first asked about one.
    deadline = time.monotonic() + 180
    while "acknowledged unknown" in status() and time.monotonic() < deadline:
        time.sleep(0.5)
    first = {"received": "nothing", "flushed": "nothing", "acknowledged": "nothing", "held_back_by": []}
    waiting = {"cost": "5 offsets to be read", "trouble": "", "retained_bytes": None}
    assert json.loads(status("--json"))["source"] == {**first, **waiting}
    rig.run()
    broker.send("lag", numbered(5, 8), partition=1)
    reclock(rig.opened().pipeline, rig.attempt())
    broker.send("lag", numbered(8, 1_242))
    assert json.loads(status("--json"))["source"] == {
        "received": "lag-0:5 lag-1:3",
        "flushed": "lag-0:5 lag-1:0",
        "acknowledged": "lag-0:5 lag-1:0",
        "held_back_by": ["transaction 2, which is not sealed"],
        "cost": "1,234 offsets to be read",
        "trouble": "",
        "retained_bytes": None,
    }
    asked = {name: documented(rig, name) for name in ("received", "flushed")}
    assert asked == {
        "received": (2, [["lag-0", 5], ["lag-1", 3]]),
        "flushed": (1, [["lag-0", 5], ["lag-1", 0]]),
    }
    told = status()
    assert "received lag-0:5 lag-1:3, flushed lag-0:5 lag-1:0, acknowledged lag-0:5 lag-1:0" in told
    assert "1,234 offsets to be read" in told
