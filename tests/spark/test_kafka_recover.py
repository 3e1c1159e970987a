"""A power cut, and a real broker: entries that were never whole stop the next run, and after `recover` the
tables are what the topic says (scenarios W1, W2). Where everything is synced, nobody has to recover (W5)."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.simulation.disk import Disk, Killed, PowerCut
from tests.support.kafka import Broker
from tests.support.kafka_pipeline import TABLE, Rig, kv
from tidemark.app.decisions import Report, recover
from tidemark.core.errors import Determinate, Indeterminate, InvariantViolation
from tidemark.core.replay import Verdict

pytestmark = [pytest.mark.spark, pytest.mark.server]
POWER_CUTS = 6


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


def test_w5_a_power_cut_at_any_call_loses_no_record_of_the_topic(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    """The disk keeps what was synced, some of the rest, and fails at times. Offsets are in no group before
    what they stand for is durable."""
    rig, lost = Rig(spark, tmp_path, broker, broker.make("dark")), 0
    for seed in range(POWER_CUTS):
        rng = random.Random(seed)
        broker.send("dark", [*numbered(seed, seed + 3), kv("k0", str(seed))])
        fails, dies = rng.choice((0.0, 0.05)), rng.choice((0, rng.randint(1, 60)))
        (tmp_path / "wh").mkdir(exist_ok=True)
        disk = Disk(
            tmp_path / "wh", tmp_path / f"disk-{seed}", rng, cut_at=rng.randint(1, 90), fails=fails,
            kill_at=dies,
        )  # fmt: skip
        with disk.watched(), suppress(PowerCut):
            for _ in range(2):
                with suppress(Determinate, Indeterminate, Killed):
                    rig.run()
                disk.start_again()
            disk.cut()
        disk.restart()
        lost += disk.lost
        rig.run()
        expected = {f"k{number}": str(number) for number in range(seed + 3)} | {"k0": str(seed)}
        assert rig.table() == rig.seen() == expected
        assert rig.committed() == {"dark-0": 4 * (seed + 1)}
    assert lost > 0
    assert {one.verdict for one in rig.replayed()} == {Verdict.IDENTICAL}
