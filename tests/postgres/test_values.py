"""Values on their way into JSON: arrays as PostgreSQL spells them, and which declared types lose nothing."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg.postgres import types

from tests.support.postgres import Postgres
from tidemark.config.schema import parse_schema
from tidemark.core.errors import InvalidUsage
from tidemark.sources.postgres.values import declared_for, lossless, numeric_limits, to_json

TEXTS = types["text"].array_oid
INTS = types["int4"].array_oid
plain = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)
elements = st.lists(st.one_of(st.none(), plain, st.sampled_from(["NULL", "null", "", "{", '"', "\\", "a,b"])))


def spelled(value: Any) -> str:
    """An array as PostgreSQL may spell it: every text quoted, NULL bare."""
    if value is None:
        return "NULL"
    if isinstance(value, list):
        return "{" + ",".join(map(spelled, value)) + "}"
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def modifier(precision: int, scale: int) -> int:
    return ((precision << 16) | (scale & 0x7FF)) + 4


@given(elements)
def test_arrays_come_back_as_they_were_spelled(value: list[str | None]) -> None:
    assert to_json(spelled(value), TEXTS) == value


@pytest.mark.server
@given(elements)
def test_arrays_come_back_as_a_real_server_spells_them(postgres: Postgres, value: list[str | None]) -> None:
    with postgres.connect() as db:
        row = db.execute("SELECT (%s::text[])::text", (value,)).fetchone()
    assert row is not None
    assert to_json(row[0], TEXTS) == value


def test_arrays_have_dimensions_and_may_start_anywhere() -> None:
    assert to_json("{{1,2},{NULL,4}}", INTS) == [[1, 2], [None, 4]]
    assert to_json("[0:1]={7,8}", INTS) == "[0:1]={7,8}"  # A list has no place for bounds.
    assert to_json("{}", INTS) == []


def test_a_long_array_takes_as_long_as_it_is() -> None:
    began = time.process_time()
    assert to_json("{" + "7," * 500_000 + "7}", INTS) == [7] * 500_001
    assert time.process_time() - began < 20
    with pytest.raises(InvalidUsage, match="is not an array"):
        to_json("{1,2", INTS)


@given(st.integers(1, 1000), st.integers(-1000, 1000))
def test_the_limits_of_a_numeric_are_read_from_its_modifier(precision: int, scale: int) -> None:
    assert numeric_limits(modifier(precision, scale)) == (precision, scale)


@given(st.integers(1, 60), st.integers(-5, 45), st.integers(1, 38), st.integers(0, 38))
def test_a_decimal_loses_nothing_exactly_when_it_has_room_on_both_sides_of_the_point(
    precision: int, scale: int, declared: int, declared_scale: int
) -> None:
    if declared_scale > declared:
        return
    [column] = parse_schema(f"n DECIMAL({declared},{declared_scale})").columns
    largest = (10**precision - 1) * 10 ** (60 - scale)  # In units of 10^-60.
    smallest = 10 ** (60 - scale)
    unit = 10 ** (60 - declared_scale)
    fits = smallest % unit == 0 and largest < 10 ** (declared - declared_scale + 60)
    assert lossless(types["numeric"].oid, modifier(precision, scale), column.type) is fits


@given(st.sampled_from([info.oid for info in types]), st.booleans(), st.integers(1, 50), st.integers(-3, 50))
def test_the_type_that_is_proposed_loses_nothing(oid: int, bounded: bool, precision: int, scale: int) -> None:
    limits = modifier(precision, scale) if bounded else -1
    [column] = parse_schema(f"v {declared_for(oid, limits)}").columns
    assert lossless(oid, limits, column.type)
