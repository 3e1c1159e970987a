"""A JSON object with one name twice is a bad record: which of its values counts, nobody can say."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.ingest import QUARANTINE, make_rig
from tidemark.core.ids import WriterToken

pytestmark = pytest.mark.spark

ORDER = {"schema": "k STRING, v STRING", "keys": ["k"], "on_schema_change": "missing_as_null"}


def test_regression_a_record_with_a_name_twice_is_quarantined_by_that_name(
    spark: SparkSession, tmp_path: Path
) -> None:
    rig = make_rig(spark, tmp_path, ORDER)
    lines = [
        '{"k": "usual", "v": "1"}',
        '{"v": "1", "k": "turned"}',
        '{"k": "lacking"}',
        '{"k": "colons", "v": "v: 1, v: 2"}',
        '{"k": "value", "v": "1", "v": "2"}',
        '{"k": "same", "v": "1", "v": "1"}',
        '{"k": "key", "v": "1", "k": "other"}',
        '{"k": "null", "v": null, "v": "2"}',
    ]
    binding = rig.bind_records(lines)
    staged = rig.plane().stage(binding, WriterToken("w"))
    assert sorted(row["k"] for row in rig.rows(staged)) == ["colons", "lacking", "turned", "usual"]
    reasons = {row["_raw"]: row["_reason"] for row in rig.rows(staged, QUARANTINE)}
    assert reasons == {
        lines[4]: "it has the name 'v' twice",
        lines[5]: "it has the name 'v' twice",
        lines[6]: "it has the name 'k' twice",
        lines[7]: "it has the name 'v' twice",
    }
    assert rig.plane().replay(binding).digests == staged.digests


def test_so_is_a_row_of_debezium_with_a_name_twice(spark: SparkSession, tmp_path: Path) -> None:
    rig = make_rig(spark, tmp_path, {**ORDER, "route": {"table": "t"}}, envelope="debezium")
    source = '"source": {"table": "t"}'
    lines = [
        f'{{"op": "c", "after": {{"k": "good", "v": "1"}}, {source}}}',
        f'{{"op": "c", "after": {{"k": "bad", "v": "1", "v": "2"}}, {source}}}',
        f'{{"op": "d", "before": {{"k": "a", "k": "b"}}, {source}}}',
    ]
    staged = rig.stage(lines)
    assert [row["k"] for row in rig.rows(staged)] == ["good"]
    reasons = [row["_reason"] for row in rig.rows(staged, QUARANTINE)]
    assert reasons == ["it has the name 'v' twice", "it has the name 'k' twice"]
