"""Shards that are worked on side by side."""

from __future__ import annotations

import threading
import time

import pytest

from tests.support.waiting import SECONDS_MAX
from tidemark.spark.session import in_parallel


def test_results_come_in_the_order_of_the_items_whoever_is_first() -> None:
    second_done = threading.Event()

    def work(item: int) -> int:
        if item == 1:
            assert second_done.wait(SECONDS_MAX), "the second item was not begun beside the first"
        if item == 2:
            second_done.set()
        return item * 10

    assert in_parallel(work, [1, 2, 3]) == [10, 20, 30]


def test_an_error_is_raised_when_all_that_began_has_ended_and_nothing_begins_after_it() -> None:
    begun: list[int] = []
    ended: list[int] = []
    first_four = threading.Barrier(4, timeout=SECONDS_MAX)

    def work(item: int) -> None:
        begun.append(item)
        if item < 4:
            first_four.wait()
        if item == 0:
            raise ValueError("the first one")
        time.sleep(0.2)  # Long enough for the error to be heard of.
        ended.append(item)

    with pytest.raises(ValueError, match="the first one"):
        in_parallel(work, list(range(40)))
    assert sorted(ended) == [item for item in sorted(begun) if item != 0]
    assert len(begun) < 40


def test_one_item_needs_no_thread() -> None:
    assert in_parallel(lambda item: (item, threading.current_thread()), ["a"]) == [
        ("a", threading.current_thread())
    ]
