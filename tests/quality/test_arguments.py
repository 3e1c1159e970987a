"""What the configuration says of Great Expectations' checks is what the installed library says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from scripts.expectations import rendered
from tidemark.config.expectations import data_file, expectation_flaws
from tidemark.config.schema import Schema
from tidemark.quality import engine

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_the_signatures_on_file_are_those_of_the_installed_library() -> None:
    assert data_file().read_text(encoding="utf-8") == rendered(), "run `make expectations`"


def test_the_signatures_are_of_the_pinned_version() -> None:
    pinned = re.search(r"^great-expectations==(\S+)$", (ROOT / "requirements.txt").read_text(), re.MULTILINE)
    assert pinned is not None
    assert json.loads(data_file().read_text(encoding="utf-8"))["great_expectations"] == pinned[1]


_ONE: dict[str, Any] = {"column": "v"}
_PAIR: dict[str, Any] = {"column_A": "v", "column_B": "w"}
_TWO: dict[str, Any] = {"column_list": ["v", "w"]}
_WORDS = ("both_values_are_missing", "either_value_is_missing", "neither", None) + (
    ("all_values_are_missing", "any_value_is_missing", "never")
)
_VALUES: list[tuple[str, dict[str, Any], str, tuple[Any, ...]]] = [
    ("column_values_to_not_be_null", _ONE, "mostly", (0, 0.5, 1, 5, -1, None)),
    ("column_values_to_match_regex_list", {**_ONE, "regex_list": ["a"]}, "match_on", ("any", "all", "most")),
    ("column_values_to_match_regex", _ONE, "regex", ("a", "", None)),
    ("column_values_to_be_between", {**_ONE, "min_value": 1}, "strict_min", (True, None)),
    ("column_values_to_not_be_outliers", _ONE, "method", ("iqr", "std", "magic", None)),
    ("column_values_to_not_be_outliers", _ONE, "multiplier", (0, 2.5, -1, None)),
    ("column_value_z_scores_to_be_less_than", {**_ONE, "threshold": 1}, "double_sided", (True, "maybe")),
    ("column_values_to_match_strftime_format", _ONE, "strftime_format", ("%Y-%m-%d", "%Q", None)),
    ("column_pair_values_to_be_equal", _PAIR, "ignore_row_if", _WORDS),
    ("column_pair_values_a_to_be_greater_than_b", _PAIR, "ignore_row_if", _WORDS),
    ("column_pair_values_a_to_be_greater_than_b", _PAIR, "or_equal", (True, None)),
    ("column_pair_values_to_be_in_set", {**_PAIR, "value_pairs_set": [[1, 2]]}, "ignore_row_if", _WORDS),
    ("compound_columns_to_be_unique", _TWO, "ignore_row_if", _WORDS),
    ("multicolumn_values_to_be_equal", _TWO, "ignore_row_if", _WORDS),
    ("multicolumn_sum_to_equal", {**_TWO, "sum_total": 1}, "ignore_row_if", _WORDS),
    ("compound_columns_to_be_unique", {}, "column_list", (["v", "w"], ["v"], [])),
    ("select_column_values_to_be_unique_within_record", {}, "column_list", (["v", "w"], ["v"], [])),
    ("select_column_values_to_be_unique_within_record", _TWO, "ignore_row_if", ("never",)),
    ("table_columns_to_match_ordered_list", {}, "column_list", (["v"], None)),
    ("table_columns_to_match_set", {}, "column_set", (["v"], None)),
    ("column_values_to_be_in_type_list", _ONE, "type_list", (["StringType"], [None], None)),
]


@pytest.mark.slow
def test_what_is_refused_of_a_value_is_what_the_library_refuses() -> None:
    engine.load()
    for name, others, argument, values in _VALUES:
        kind = f"expect_{name}"
        for value in values:
            kwargs = {**others, argument: value}
            flaws = list(expectation_flaws(kind, kwargs, (), Schema(()), quarantines=False))
            assert bool(flaws) == _is_refused(kind, kwargs), (kind, kwargs, flaws)


def _is_refused(kind: str, kwargs: dict[str, Any]) -> bool:
    try:
        engine.expectation(kind, kwargs)
    except Exception:
        return True
    return False
