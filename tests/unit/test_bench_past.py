"""The table and the picture of what grows with the past are made from what was measured."""

from __future__ import annotations

from bench.past import PAGE, PICTURE, WORKS, measured, picture, table, with_table


def test_the_page_and_the_picture_are_those_of_the_measurement() -> None:
    found = measured()
    assert {one["what"] for one in found} == set(WORKS)
    assert with_table(PAGE.read_text(), found) == PAGE.read_text()
    assert picture(found) == PICTURE.read_text()


def test_a_row_says_how_many_times_the_smallest_it_takes() -> None:
    cost = {"what": "status", "files": 7, "kilobytes": 1.5, "listed": 3}
    found = [
        {**cost, "txns": 1_000, "shards": 10, "cpu_ms": 20.0},
        {**cost, "txns": 30_000, "shards": 10, "cpu_ms": 25.0},
    ]
    assert table(found).splitlines()[-1] == "| status | 30,000 | 10 | 25 | 7 | 2 | 3 | 1.2 |"
