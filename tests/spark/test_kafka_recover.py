"""A power cut, and a real broker: entries that were never whole stop the next run, and after `recover` the
tables are what the topic says (scenarios W1, W2)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support.kafka import Broker
from tests.support.kafka_pipeline import TABLE, Rig, kv
from tidemark.app.decisions import Report, recover
from tidemark.core.errors import InvariantViolation
from tidemark.core.replay import Verdict

pytestmark = [pytest.mark.spark, pytest.mark.server]


def numbered(first: int, upper: int) -> list[Any]:
    return [kv(f"k{number}", number) for number in range(first, upper)]


def newest(rig: Rig, table: str) -> Path:
    return max((rig.root / "wh" / rig.settings["name"] / table / "_delta_log").glob("*.json"))


def recovered(rig: Rig) -> Report:
    return recover(rig.config, rig.opened, rig.attempt())


def test_w2_what_a_power_cut_took_is_read_again_from_the_topic(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    rig = Rig(spark, tmp_path, broker, broker.make("cut"))
    broker.send("cut", numbered(0, 3))
    rig.run()
    broker.send("cut", numbered(2, 5))
    rig.run()
    wanted = rig.table()
    for table in ("_control/history", "_control/checkpoints", f"{TABLE}/log"):
        newest(rig, table).write_bytes(b"")
    for _ in range(2):
        with pytest.raises(InvariantViolation, match="is lost: it is empty"):
            rig.run()
    assert recovered(rig).lost == {}
    rig.run()
    assert rig.table() == wanted
    # The seal of transaction 2, the claim of the run that made it, and the binding: the offsets are bound
    # again, and the number is not given out again.
    for _ in range(3):
        newest(rig, "_control/history").unlink()
    assert list(recovered(rig).lost) == [2]
    broker.send("cut", numbered(5, 6))
    rig.run()
    assert rig.ranges() == [{"cut-0": [0, 3]}, {}, {"cut-0": [3, 7]}]
    assert rig.table() == rig.seen() == {**wanted, "k5": "5"}
    assert [one.verdict for one in rig.replayed()] == [Verdict.IDENTICAL, Verdict.LOST, Verdict.IDENTICAL]
