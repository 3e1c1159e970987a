"""The Debezium envelope: scenarios D1 to D7."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support.ingest import QUARANTINE, Row, make_rig, state
from tidemark.core.ids import ShardId
from tidemark.spark.failures import Refused

pytestmark = pytest.mark.spark

ID_V = {"schema": "id BIGINT, v BIGINT", "keys": ["id"]}


def row(pair: tuple[int, int] | None) -> Row | None:
    return None if pair is None else {"id": pair[0], "v": pair[1]}


def event(op: str, before: tuple[int, int] | None, after: tuple[int, int] | None, **more: Any) -> Row:
    return {"op": op, "before": row(before), "after": row(after), "source": {"table": "t", **more}}


def wrapped(change: Row) -> Row:
    return {"schema": {"type": "struct"}, "payload": change}


D6 = [
    event("c", None, (1, 10)), event("c", None, (2, 20)),
    event("u", (1, 10), (1, 11)), event("u", (2, 20), (2, 21)), event("c", None, (4, 40)),
    event("u", (1, 11), (1, 20)), event("c", None, (5, 50)), event("u", (2, 21), (2, 30)),
]  # fmt: skip
CASES: list[Any] = [
    pytest.param(
        [event("u", (1, 9), (1, 10)), event("u", None, (1, 11)), event("u", (1, 4), (1, 12))],
        {1: 12},
        id="d1-before-never-seen",
    ),
    pytest.param([event("u", (1, 1), (1, 2))] * 2, {1: 2}, id="d2-twice"),
    pytest.param([event("c", None, (4, 1)), event("d", (4, 99), None)], {}, id="d3-before-disagrees"),
    pytest.param(
        [event("c", None, (4, 1)), event("d", (4, 99), None), "null", event("u", None, (4, 7))],
        {4: 7},
        id="d3-d4-tombstone-then-update",
    ),
    pytest.param([wrapped(event("c", None, (3, 3))), event("c", None, (2, 2))], {3: 3, 2: 2}, id="d5"),
    pytest.param(D6, {1: 20, 2: 30, 4: 40, 5: 50}, id="d6-interleaved"),
]


@pytest.mark.parametrize(("records", "expected"), CASES)
def test_after_decides_whatever_op_and_before_say(
    spark: SparkSession, tmp_path: Path, records: list[Any], expected: dict[int, int]
) -> None:
    rig = make_rig(spark, tmp_path, ID_V, envelope="debezium")
    staged = rig.stage(records, files=2)
    assert state(rig.rows(staged), "id", "v") == expected
    assert staged.source.count == len(records)
    assert QUARANTINE not in staged.shards


def test_d4_a_delete_has_the_key_of_its_before(spark: SparkSession, tmp_path: Path) -> None:
    rig = make_rig(spark, tmp_path, ID_V, envelope="debezium")
    staged = rig.stage([event("d", (4, 9), None), wrapped(event("c", None, (5, 1))), {"op": "d"}])
    assert [(r["id"], r["v"], r["_op"]) for r in rig.rows(staged)] == [(4, None, "D"), (5, 1, "U")]
    assert [r["_reason"] for r in rig.rows(staged, QUARANTINE)] == ["it has no readable 'after' or 'before'"]


@pytest.mark.parametrize(
    ("record", "fact"),
    [
        pytest.param({"op": "t", "before": None, "after": None}, "a truncate can't be applied", id="op"),
        pytest.param(event("u", (1, 10), (2, 10)), r"one record changes the key \(id\)", id="key-value"),
        pytest.param({"op": "c", "after": {"v": 1}}, "missing key column 'id'", id="key-column"),
    ],
)
def test_d7_truncate_and_key_changes_are_refused_by_name(
    spark: SparkSession, tmp_path: Path, record: Row, fact: str
) -> None:
    rig = make_rig(spark, tmp_path, ID_V, envelope="debezium")
    with pytest.raises(Refused, match=fact):
        rig.stage([event("c", None, (7, 1)), record])
    assert rig.files_on_disk() == []


def test_tables_go_to_their_shards_and_excluded_ones_nowhere(spark: SparkSession, tmp_path: Path) -> None:
    shards = [
        {**ID_V, "name": "orders", "route": {"table": "orders"}},
        {**ID_V, "name": "parties", "route": {"table": "public.parties"}},
    ]
    tables = {"include": ["public.orders", "public.parties"], "exclude": ["public.tmp_*"]}
    rig = make_rig(spark, tmp_path, *shards, envelope="debezium", tables=tables)

    def of(table: str, pair: tuple[int, int]) -> Row:
        return event("c", None, pair) | {"source": {"schema": "public", "table": table}}

    records = [of("orders", (1, 1)), of("parties", (1, 2)), of("tmp_x", (1, 3)), of("other", (1, 4)), "null"]
    staged = rig.stage(records)
    assert state(rig.rows(staged, ShardId("orders")), "id", "v") == {1: 1}
    assert state(rig.rows(staged, ShardId("parties")), "id", "v") == {1: 2}
    (bad,) = rig.rows(staged, QUARANTINE)
    assert (bad["_reason"], bad["_ordinal"]) == ("no shard takes it", 3)
    assert staged.source.count == 5
