"""Until when a topic keeps what a transaction read: by its settings, and by the times of its records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.core.replay import Replayable
from tidemark.sources.kafka.manifest import LEFT_HOURS, Mark, Range, Retention, lifetimes

HOUR_MS = 3_600_000
NOW_MS = 1_000 * HOUR_MS


class GivenTopic:
    """Partition 0 of a topic, with the time of each record."""

    def __init__(self, times_ms: Sequence[int]) -> None:
        self.times_ms = times_ms

    def first_since(self, times: Mapping[str, int]) -> Mapping[str, Mark]:
        found: dict[str, Mark] = {}
        for name, time in times.items():
            later = [mark for mark in enumerate(self.times_ms) if mark[1] >= time]
            found |= {name: later[0]} if later else {}
        return found

    def until(self, first: int, retention: Retention) -> Replayable:
        ranges = [Range("t", 0, first, len(self.times_ms))]
        (found,) = lifetimes([ranges], {"t": retention}, first_since=self.first_since, now_ms=NOW_MS)
        return found


def removed_ms(times_ms: Sequence[int], sizes: Sequence[int], offset: int, retention_ms: int) -> int:
    """When a broker that comes by all the time removes an offset, by its own rule: the oldest segment goes
    once its newest record is too old."""
    ended, first = 0, 0
    for size in [*sizes, len(times_ms)]:
        segment = times_ms[first : first + size]
        if segment:
            ended = max(ended, max(segment) + retention_ms)
        first += size
        if offset < first:
            break
    return ended


@given(
    st.lists(st.integers(1, NOW_MS + HOUR_MS), min_size=1, max_size=8),
    st.lists(st.integers(1, 4), max_size=4),
    st.integers(1, 900 * HOUR_MS),
    st.data(),
)
def test_no_broker_removes_an_offset_before_the_time_that_is_told(
    times_ms: list[int], sizes: list[int], retention_ms: int, data: st.DataObject
) -> None:
    offset = data.draw(st.integers(0, len(times_ms) - 1))
    told = GivenTopic(times_ms).until(offset, Retention(retention_ms)).until_seconds
    assert told is not None
    # What should be gone already, and is not, goes when the broker comes by: now at the earliest.
    assert told * 1000 <= max(NOW_MS, removed_ms(times_ms, sizes, offset, retention_ms))


def test_the_time_that_is_told_is_that_of_the_record_as_far_as_the_steps_tell_it() -> None:
    week_ms = 168 * HOUR_MS
    times_ms = [NOW_MS - hours * HOUR_MS for hours in (200, 160, 100, 30)]
    topic = GivenTopic(times_ms)
    told = [topic.until(offset, Retention(week_ms)).until_seconds for offset in range(4)]
    # The first is over; the others have 8, 68 and 138 hours left, and 6, 48 and 96 are the steps below.
    assert told == [(NOW_MS + hours * HOUR_MS) / 1000 for hours in (0, 8, 68, 138)]
    # Two records between two steps are not told apart: the time of the first of them is sure for both.
    close = GivenTopic([NOW_MS - 100 * HOUR_MS, NOW_MS - 99 * HOUR_MS])
    assert close.until(1, Retention(week_ms)).until_seconds == (NOW_MS + 68 * HOUR_MS) / 1000
    assert LEFT_HOURS[0] == 0


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"cleanup.policy": "delete", "retention.ms": "60000", "retention.bytes": "-1"}, Retention(60_000)),
        ({"retention.ms": "-1"}, Retention()),
        (
            {"retention.ms": "60000", "retention.bytes": "1024"},
            Retention(60_000, "topic 't' keeps 1024 bytes of a partition, whatever their age"),
        ),
        (
            {"cleanup.policy": "compact", "retention.ms": "60000", "retention.bytes": "1024"},
            Retention(
                None, "topic 't' is compacted: a record with a newer one of its key is deleted at any time"
            ),
        ),
        (
            {"cleanup.policy": "compact,delete", "retention.ms": "60000"},
            Retention(
                60_000, "topic 't' is compacted: a record with a newer one of its key is deleted at any time"
            ),
        ),
        (None, Retention(None, "the retention of topic 't' is unknown")),
    ],
)
def test_a_topics_settings_say_how_long_it_keeps_a_record_and_what_may_take_it_sooner(
    settings: Mapping[str, str] | None, expected: Retention
) -> None:
    assert Retention.of("t", settings) == expected


def test_a_transaction_ends_with_the_first_of_its_partitions_and_one_without_an_end_is_not_asked() -> None:
    asked: list[Mapping[str, int]] = []

    def first_since(times: Mapping[str, int]) -> Mapping[str, Mark]:
        asked.append(times)
        return {name: (0, NOW_MS - (10 if name == "a-0" else 20)) for name in times}

    retentions = {"a": Retention(HOUR_MS), "b": Retention(HOUR_MS), "c": Retention(None, "c has a caveat")}
    transactions = [[Range(topic, 0, 0, 1) for topic in topics] for topics in ("ab", "a", "c", "")]
    found = lifetimes(transactions, retentions, first_since=first_since, now_ms=NOW_MS)
    assert found == [
        Replayable(until_seconds=(NOW_MS + HOUR_MS - 20) / 1000),
        Replayable(until_seconds=(NOW_MS + HOUR_MS - 10) / 1000),
        Replayable(caveat="c has a caveat"),
        Replayable(),
    ]
    assert all("c-0" not in times for times in asked)
