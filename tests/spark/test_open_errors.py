"""Scenario E2: a key whose last record could not be decoded has an open error until a good one comes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support.deployed import arrive, begun
from tests.support.ingest import QUARANTINE, make_rig
from tidemark.app.deployment import Deployment
from tidemark.app.views import open_errors, read

pytestmark = pytest.mark.spark

TABLE = {"schema": "k INT, v STRING, n INT", "keys": ["k"]}


def values(works: Deployment) -> dict[Any, Any]:
    return {row["k"]: row["v"] for row in read(works, "t").collect()}


def open_rows(works: Deployment) -> list[tuple[str, int, int]]:
    """Which keys have an open error, and where: (key, transaction, record)."""
    found = open_errors(works, "t").collect()
    return sorted((row["_key"], row["_txn"], row["_ordinal"]) for row in found)


def kv(key: Any, value: Any, number: Any = 0) -> dict[str, Any]:
    return {"k": key, "v": value, "n": number}


def test_e2_a_key_with_an_undecodable_value_keeps_its_last_good_one_until_the_error_is_resolved(
    spark: SparkSession, tmp_path: Path
) -> None:
    works = begun(spark, tmp_path, **TABLE)
    assert open_rows(works) == []
    arrive(works, kv(1, "x"), kv(2, "good"))
    assert open_rows(works) == []
    arrive(works, kv(2, "bad", "not a number"))
    works = begun(spark, tmp_path, **TABLE)
    arrive(works, kv(1, "y"))
    assert values(works) == {1: "y", 2: "good"}
    assert open_rows(works) == [('{"k":2}', 2, 0)]
    arrive(works, kv(2, "z"))
    assert values(works) == {1: "y", 2: "z"}
    assert open_rows(works) == []


def test_e2_within_one_transaction_the_later_record_decides(spark: SparkSession, tmp_path: Path) -> None:
    works = begun(spark, tmp_path, **TABLE)
    arrive(works, kv(1, "a"), kv(1, "b", "?"), kv(2, "a", "?"), kv(2, "b"), "{")
    assert values(works) == {1: "a", 2: "b"}
    assert open_rows(works) == [('{"k":1}', 1, 1)]


def test_e2_u13_a_null_part_of_a_key_is_a_value_like_any_other(spark: SparkSession, tmp_path: Path) -> None:
    works = begun(
        spark, tmp_path, schema="a STRING, t TIMESTAMP, n INT", keys=["a", "t"], apply_as_deletes="op = 'd'"
    )
    bad = {"n": "?", "op": "u"}
    early, late = "2024-01-01T00:00:00.000001Z", "2024-01-01T00:00:00.000002Z"
    arrive(works, *({"a": a, "t": t, **bad} for a, t in [(None, early), (None, late), ("null", early)]))
    arrive(works, {"a": "x", "t": None, **bad}, {"a": "y", "t": None, **bad})
    # A deletion is a good record too.
    arrive(works, {"a": None, "t": late, "n": 1, "op": "u"}, {"a": "x", "t": None, "op": "d"})
    assert open_rows(works) == [
        ('{"a":"null","t":"2024-01-01T00:00:00.000001Z"}', 1, 2),
        ('{"a":"y","t":null}', 2, 1),
        ('{"a":null,"t":"2024-01-01T00:00:00.000001Z"}', 1, 0),
    ]


def test_a_key_that_could_not_be_read_in_full_is_no_key(spark: SparkSession, tmp_path: Path) -> None:
    """Else the error would stand on the key whose part is really NULL."""
    rig = make_rig(spark, tmp_path, {"schema": "a INT, b INT, n INT", "keys": ["a", "b"]})
    records = [
        {"a": 1, "b": None, "n": "?"},
        {"a": 1, "b": "?", "n": "?"},
        {"a": 1, "n": 1},
        '{"n":1,"b":1,"a":12',
        {"a": 2, "b": 3, "n": "?"},
    ]
    found = rig.rows(rig.stage(records), QUARANTINE)
    keys = [row["_key"] for row in sorted(found, key=lambda row: row["_ordinal"])]
    assert keys == ['{"a":1,"b":null}', None, None, None, '{"a":2,"b":3}']
