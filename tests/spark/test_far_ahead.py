"""A record whose sequence is far above the watermark never makes all records after it too late (ADR 19)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support.ingest import QUARANTINE, Rig, Row, make_rig
from tidemark.core.errors import InvalidUsage
from tidemark.core.ids import WriterToken

pytestmark = pytest.mark.spark

NUMBERED = {"schema": "k STRING, n BIGINT", "keys": ["k"], "sequence_by": "n", "lateness": 10}
TIMED = {"schema": "k STRING, at TIMESTAMP", "keys": ["k"], "sequence_by": "at", "lateness": 60}
MICROS_2026 = 1_767_225_600_000_000
FAR = 2**62


def rig_at(spark: SparkSession, root: Path, shard: dict[str, Any], watermark: int) -> Rig:
    rig = make_rig(spark, root, shard)
    rig.watermark = watermark
    return rig


def numbered(**sequences: int) -> list[Row]:
    return [{"k": key, "n": number} for key, number in sequences.items()]


def test_regression_a_far_sequence_stops_its_transaction_by_name_and_the_watermark_stays(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Without a bound of the user's, nobody knows whether the source went on or a record is wrong."""
    rig = rig_at(spark, tmp_path, NUMBERED, 100)
    binding = rig.bind_records(numbered(a=110, b=FAR))
    with pytest.raises(InvalidUsage) as refused:
        rig.plane().stage(binding, WriterToken("w"))
    told = str(refused.value)
    assert (
        "file 'f0.json', line 2: too far ahead: 'n' is more than 2147483648 above the watermark 100" in told
    )
    assert f"found {FAR}" in told
    assert "set max_advance" in told
    assert rig.files_on_disk() == []
    # What was sealed before there was a bound is proven as it was taken then.
    assert rig.plane().replay(binding).watermark == FAR


def test_regression_with_a_bound_far_records_are_quarantined_and_the_others_move_the_watermark(
    spark: SparkSession, tmp_path: Path
) -> None:
    rig = rig_at(spark, tmp_path, {**NUMBERED, "max_advance": 1_000}, 100)
    binding = rig.bind_records(numbered(a=1_100, b=1_101, c=FAR, late=89))
    staged = rig.plane().stage(binding, WriterToken("w"))
    assert [row["k"] for row in rig.rows(staged)] == ["a"]
    assert staged.watermark == 1_100
    reasons = {row["_key"]: row["_reason"] for row in rig.rows(staged, QUARANTINE)}
    assert reasons == {
        '{"k":"b"}': "too far ahead: 'n' is more than 1000 above the watermark 100, found 1101",
        '{"k":"c"}': f"too far ahead: 'n' is more than 1000 above the watermark 100, found {FAR}",
        '{"k":"late"}': "too late: sequence 89 is more than 10 below the watermark 100",
    }
    assert rig.plane().replay(binding).digests == staged.digests


def test_where_no_record_is_within_reach_the_transaction_stops_instead_of_setting_all_aside(
    spark: SparkSession, tmp_path: Path
) -> None:
    """After a long pause all of them would be quarantined, and so would all that follow."""
    rig = rig_at(spark, tmp_path, {**NUMBERED, "max_advance": 1_000}, 100)
    with pytest.raises(InvalidUsage, match=r"far above .* 100: the highest is 5002.*at least 4902"):
        rig.stage(numbered(a=5_001, b=5_002, late=1))
    assert rig.files_on_disk() == []


@pytest.mark.parametrize(("at", "taken"), [("2026-12-31T00:00:00Z", True), ("2027-06-01T00:00:00Z", False)])
def test_times_may_advance_by_a_year_and_are_told_as_times(
    spark: SparkSession, tmp_path: Path, at: str, taken: bool
) -> None:
    rig = rig_at(spark, tmp_path, TIMED, MICROS_2026)
    if taken:
        assert rig.stage([{"k": "a", "at": at}]).watermark == MICROS_2026 + 364 * 86_400_000_000
        return
    with pytest.raises(InvalidUsage) as refused:
        rig.stage([{"k": "a", "at": at}])
    assert "more than 31622400 seconds above the watermark 2026-01-01 00:00:00" in str(refused.value)
    assert "found 2027-06-01 00:00:00" in str(refused.value)
