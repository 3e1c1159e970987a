"""A file's statistics: never narrower than its values, and left out where they can't be true."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.delta.state_files import statistics

LAST = "\U0010ffff"


def stats_of(values: list[Any], kind: pa.DataType) -> dict[str, Any]:
    found = statistics(pa.table({"x": pa.array(values, kind)}))
    return dict(json.loads(found, parse_float=Decimal))


def bounds(values: list[Any], kind: pa.DataType) -> tuple[Any, Any] | None:
    found = stats_of(values, kind)
    assert found["minValues"].keys() == found["maxValues"].keys()
    return (found["minValues"]["x"], found["maxValues"]["x"]) if "x" in found["minValues"] else None


def test_counts_nulls_and_says_that_bounds_are_tight() -> None:
    found = stats_of([3, None, 1], pa.int64())
    assert found == {
        "numRecords": 3, "tightBounds": True,
        "minValues": {"x": 1}, "maxValues": {"x": 3}, "nullCount": {"x": 1},
    }  # fmt: skip
    assert bounds([None], pa.int64()) is None


@pytest.mark.parametrize(
    "values", [[1.0, float("nan")], [float("nan")], [1.0, float("inf")], [float("-inf")]]
)
def test_no_bounds_where_readers_could_disagree(values: list[float]) -> None:
    assert bounds(values, pa.float64()) is None


@pytest.mark.parametrize("kind", [pa.bool_(), pa.binary(), pa.list_(pa.int64())])
def test_no_bounds_for_what_has_none_in_delta(kind: pa.DataType) -> None:
    value = {"bool": True, "binary": b"x"}.get(str(kind), [1])
    found = stats_of([value, None], kind)
    assert ("x" not in found["minValues"], found["nullCount"]) == (True, {"x": 1})


@given(st.lists(st.decimals(-(10**29), 10**29, places=8), min_size=1, max_size=5))
def test_decimals_are_exact(values: list[Decimal]) -> None:
    found = bounds(values, pa.decimal128(38, 8))
    assert found is not None
    assert tuple(map(Decimal, found)) == (min(values), max(values))


text = st.text(st.characters(codec="utf-8"), max_size=70) | st.builds(
    lambda start, end: start * 35 + end, st.sampled_from(["a", LAST, "é"]), st.text(max_size=3)
)


@given(st.lists(text, min_size=1, max_size=6))
def test_texts_lie_between_their_bounds_by_their_bytes(values: list[str]) -> None:
    found = bounds(values, pa.string())
    assert found is not None
    low, high = (one.encode() for one in found)
    assert all(low <= value.encode() <= high for value in values)
    assert max(len(one) for one in found) <= 33 or max(values).startswith(found[1][:32])


def test_a_long_maximum_is_rounded_up_and_a_long_minimum_down() -> None:
    assert bounds(["a" * 40, "b" * 40], pa.string()) == ("a" * 32, "b" * 32 + LAST)
    assert bounds(["b" * 32], pa.string()) == ("b" * 32, "b" * 32)


@given(
    st.lists(
        st.datetimes(datetime.fromisoformat("1900-01-01"), datetime.fromisoformat("9999-12-30")),
        min_size=1,
        max_size=5,
    ),
    st.booleans(),
)
def test_times_lie_between_their_bounds_in_milliseconds(values: list[datetime], is_zoned: bool) -> None:
    kind = pa.timestamp("us", "UTC") if is_zoned else pa.timestamp("us")
    values = [value.replace(tzinfo=UTC) for value in values] if is_zoned else values
    found = bounds(values, kind)
    assert found is not None
    low, high = (datetime.fromisoformat(one) for one in found)
    assert low <= min(values)
    assert max(values) <= high
    assert max(min(values) - low, high - max(values)) < timedelta(milliseconds=1)
    assert all(one.endswith("Z") == is_zoned for one in found)


def test_a_time_of_another_zone_is_said_in_utc() -> None:
    at = datetime(2020, 1, 1, 12, tzinfo=UTC)
    assert bounds([at], pa.timestamp("us", "America/New_York")) == ("2020-01-01T12:00:00.000Z",) * 2


def test_a_time_that_is_no_date_has_no_bounds() -> None:
    assert bounds([10**18], pa.timestamp("us")) is None
    assert bounds([date(9999, 12, 31)], pa.date32()) == ("9999-12-31", "9999-12-31")


def test_fields_of_structs_have_bounds_and_columns_after_the_32nd_have_none() -> None:
    struct = pa.array(
        [{"a": 1, "b": "x"}, None, {"a": None, "b": "y"}], pa.struct([("a", pa.int64()), ("b", pa.string())])
    )
    found = json.loads(statistics(pa.table({"s": struct})))
    assert (found["minValues"], found["maxValues"]) == ({"s": {"a": 1, "b": "x"}}, {"s": {"a": 1, "b": "y"}})
    assert found["nullCount"] == {"s": {"a": 2, "b": 1}}
    wide = pa.table({f"c{at:02}": [at] for at in range(40)})
    assert len(json.loads(statistics(wide))["minValues"]) == 32


def test_names_are_quoted() -> None:
    name = 'a "b" \\ é.c'
    assert json.loads(statistics(pa.table({name: [1]})))["minValues"] == {name: 1}
