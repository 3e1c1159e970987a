"""A schedule that a pipeline file may have is one that Airflow can work with."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import product

import pytest
from croniter import CroniterBadDateError, croniter
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


@pytest.mark.parametrize("weekday", ["*", "1", "*/2"])
def test_a_schedule_that_never_comes_is_refused(weekday: str) -> None:
    """Airflow's DAG would have no next run; croniter finds no date for it."""
    days = ["*", "*/30", "29", "30", "31", "5,31", "30-31", "30/2", "5-31/26", "31-1", "28-30/2"]
    months = ["*", "2", "feb", "4", "2,4", "2-4", "*/2", "2/2", "2/9", "11-2", "4,6,9,11", "APR-jun/2"]
    refused = []
    for day, month in product(days, months):
        schedule = f"0 0 {day} {month} {weekday}"
        try:
            croniter(schedule, datetime(2026, 1, 1, tzinfo=UTC)).get_next()
        except CroniterBadDateError:
            refused.append(schedule)
            with pytest.raises(ValidationError, match="no date ever matches"):
                CHECK.validate_python(schedule)
        else:
            assert CHECK.validate_python(schedule) == schedule
    assert f"0 0 30 2 {weekday}" in refused
