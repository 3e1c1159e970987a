"""A schedule that a pipeline file may have is one that Airflow can work with."""

from __future__ import annotations

from itertools import product

import pytest
from croniter import croniter
from pydantic import TypeAdapter, ValidationError

from tidemark.config.base import Schedule

CHECK = TypeAdapter(Schedule)
FIELDS = [(0, 59, []), (0, 23, []), (1, 31, []), (1, 12, ["JAN", "dec"]), (0, 7, ["SUN", "sat"])]


@pytest.mark.parametrize("place", range(5))
def test_what_is_taken_is_taken_by_airflow_too(place: int) -> None:
    """Airflow reads schedules with croniter, which takes more: words that give another time at each parse."""
    low, high, names = FIELDS[place]
    ends = [str(end) for end in (low - 1, low, low + 1, high, high + 1)] + names + ["R", "x"]
    ranges = ["*", *ends, *(f"{one}-{other}" for one, other in product(ends, ends))]
    taken = []
    for item, step in product(ranges, ["", "/1", "/7", "/0", "/99"]):
        fields = ["*"] * 5
        fields[place] = f"{item}{step}"
        try:
            CHECK.validate_python(" ".join(fields))
        except ValidationError:
            continue
        taken.append(" ".join(fields))
    assert len(taken) > 20
    assert [schedule for schedule in taken if not croniter.is_valid(schedule)] == []
