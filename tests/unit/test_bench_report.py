"""The comparison's report says what was measured, and says so when a goal was missed."""

from __future__ import annotations

import copy
from typing import Any
from xml.etree import ElementTree

from bench.report import EVERY, TEN, markdown, medians, picture

SECONDS = {
    "Parquet": 0.5, "commit": 1.0, "publish, every ten": 0.4, "publish, every transaction": 2.0,
    "tuned MERGE": 4.0, "naive MERGE": 9.0, "Iceberg merge-on-read": 1.5, "delta-rs merge": 2.0,
}  # fmt: skip


def results(*, same: bool = True) -> dict[str, Any]:
    kind = {"seconds": SECONDS, "reads": {"fresh": 1.2, "state": 1.0}, "same_rows": {"tuned MERGE": same}}
    size = {"rows": 2_000_000, "upserts": kind, "with deletes": kind, "scan state": 1.3, "scan new": 1.0}
    size |= {"at": "today", "load": 3.5, "first load": 5.0, "plain load": 2.0}
    return {
        "cores": 2, "memory": "2g", "batches": 3, "versions": {"Spark": "4"},
        "sizes": [size],
    }  # fmt: skip


def test_goals_are_reported_reached_or_missed_by_what_was_measured() -> None:
    report = markdown(results())
    assert "| upserts: seconds of a publish | 0.40 | 2.00 | no |" in report
    assert "| upserts: commit and publish against the commit | 1.40 | 3.00 | no |" in report
    fastest = (
        "| with deletes: commit and publish, 1.3 times faster than the fastest peer | 0.77 | 2.00 | no |"
    )
    assert fastest in report
    assert "| upserts: fresh read against the state's | 1.30 | 1.20 | yes |" in report
    assert "| read of the state after publishes against a new table | 1.20 | 1.30 | no |" in report
    assert "| commit and publish, every ten | 1.40 |" in report
    assert "2M rows: today, load average up to 3.5" in report


def test_the_publish_that_makes_the_index_is_in_no_median() -> None:
    times = {EVERY: [7.32, 0.55, 0.23, 0.25, 0.24], TEN: [0.2, 0.1, 0.3], "commit": [9.0, 1.0, 2.0]}
    assert medians(times) == {EVERY: (0.24 + 0.25) / 2, TEN: 0.2, "commit": 2.0}
    one = results()
    one["sizes"][0] |= {"publishes": 100}
    report = markdown(one | {"tens": 3})
    assert "which makes the index, is not among them; 3 publishes of ten and one naive MERGE" in report
    assert "| read of the state after 100 publishes against a new table | 1.20 | 1.30 | no |" in report


def test_sizes_are_compared_with_each_other_by_the_seconds_of_a_publish() -> None:
    one = results()
    large = copy.deepcopy(one["sizes"][0]) | {"rows": 8_000_000}
    large["upserts"]["seconds"]["publish, every transaction"] = 2.8
    large["upserts"]["all"] = {"publish, every transaction": [7.0, 2.8, 2.8]}
    report = markdown(one | {"sizes": [one["sizes"][0], large]})
    assert "| upserts: slowest publish against the fastest | 1.50 | 1.40 | yes |" in report
    assert "| upserts: seconds of one publish of ten | 1.20 | 4.00 | no |" in report
    assert "which makes the index" not in report
    assert "| first publish after the load, which makes the index | 7.00 |" in markdown(
        one | {"sizes": [large]}
    )


def test_what_was_not_measured_has_no_heading_and_what_was_has_a_table() -> None:
    assert "ten thousand" not in markdown(results())
    flat = {"words": "Some words.", "lines": [["publishes", "open s"], ["0", "0.01"]]}
    assert "Some words.\n\n| publishes | open s |\n| ---: | ---: |\n| 0 | 0.01 |" in markdown(
        results() | {"flat": flat}
    )


def test_tables_that_differ_are_not_hidden() -> None:
    assert "rows of the state: yes" in markdown(results())
    assert "rows of the state: **no**" in markdown(results(same=False))


def test_the_picture_is_well_formed_and_has_a_bar_for_everyone() -> None:
    root = ElementTree.fromstring(picture(results()))
    bars = root.findall("{http://www.w3.org/2000/svg}rect")
    assert len(bars) == len(SECONDS) + 2
    widest = max(bars, key=lambda bar: float(bar.attrib["width"]))
    assert widest.attrib["class"] == "b"
