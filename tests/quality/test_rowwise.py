"""Row-wise expectations as SQL: the condition must find exactly the rows that Great Expectations finds."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from tidemark.config.expectations import KNOWN
from tidemark.config.row_rules import ROW_WISE, broken_when, quarantine_rules
from tidemark.config.shard import Expectation, ShardConfig
from tidemark.core.errors import InvalidUsage
from tidemark.quality import engine

SCHEMA = "row INT, s STRING, t STRING, i INT, j BIGINT, d DECIMAL(10,2), f DOUBLE, b BOOLEAN, day DATE"
SQL_ROWS = """
    (0, 'abc', 'abc', 1, 1L, 1.50, 1.5D, true, DATE'2024-01-01'),
    (1, '', 'x', 0, -1L, -0.01, double('NaN'), false, DATE'2024-06-30'),
    (2, NULL, 'x', NULL, 5L, NULL, NULL, NULL, NULL),
    (3, 'x', NULL, 7, NULL, 99.99, -0.0D, true, DATE'1999-12-31'),
    (4, NULL, NULL, NULL, NULL, 0.00, double('Infinity'), NULL, DATE'2024-01-02'),
    (5, 'it''s ${env:HOME}', 'A.C', -3, 9000000000L, 10.00, 10D, false, NULL),
    (6, 'back\\\\slash\\nnew', 'back', 2147483647, 2147483647L, 2.00, 2D, true, DATE'2025-01-01'),
    (7, 'ABC', 'abc', 10, 3L, 1.00, 0.1D, NULL, DATE'2024-01-01'),
    (8, 'žluť', 'žluť ', 1, 1L, 1.00, 1D, true, DATE'2024-01-01')
"""
PAIR = {"column_A": "s", "column_B": "t"}
NUMBERS = {"column_A": "i", "column_B": "j"}

CASES: list[tuple[str, dict[str, Any]]] = [
    ("column_values_to_be_between", {"column": "i", "min_value": 0}),
    ("column_values_to_be_between", {"column": "i", "min_value": 0, "max_value": 7, "strict_min": True}),
    ("column_values_to_be_between", {"column": "i", "min_value": 0, "max_value": 7, "strict_max": True}),
    ("column_values_to_be_between", {"column": "j", "max_value": 8_999_999_999}),
    ("column_values_to_be_between", {"column": "d", "min_value": -0.01, "max_value": 10}),
    ("column_values_to_be_between", {"column": "d", "min_value": 0, "strict_min": True}),
    ("column_values_to_be_between", {"column": "f", "min_value": 0.1, "max_value": 1e300}),
    ("column_values_to_be_between", {"column": "f", "min_value": 0}),
    ("column_values_to_be_between", {"column": "day", "min_value": "2024-01-01"}),
    ("column_values_to_be_in_set", {"column": "s", "value_set": ["abc", "it's ${env:HOME}"]}),
    ("column_values_to_be_in_set", {"column": "s", "value_set": ["back\\slash\nnew", ""]}),
    ("column_values_to_be_in_set", {"column": "i", "value_set": [1, 7]}),
    ("column_values_to_be_in_set", {"column": "b", "value_set": [True]}),
    ("column_values_to_be_in_set", {"column": "day", "value_set": ["2024-01-01"]}),
    ("column_values_to_be_in_set", {"column": "f", "value_set": [0.0, 1.5]}),
    ("column_values_to_be_in_set", {"column": "d", "value_set": [1.5, 2]}),
    ("column_values_to_not_be_in_set", {"column": "s", "value_set": ["", "x"]}),
    ("column_values_to_not_be_in_set", {"column": "i", "value_set": [1]}),
    ("column_values_to_not_be_in_set", {"column": "j", "value_set": [1, 9_000_000_000]}),
    ("column_values_to_be_null", {"column": "s"}),
    ("column_values_to_not_be_null", {"column": "i"}),
    ("column_values_to_not_be_null", {"column": "i", "mostly": 1}),
    ("column_values_to_match_regex", {"column": "s", "regex": "^[a-z]+$"}),
    ("column_values_to_match_regex", {"column": "s", "regex": "'|\\\\|\\$\\{"}),
    ("column_values_to_not_match_regex", {"column": "s", "regex": "\\s"}),
    ("column_values_to_match_regex_list", {"column": "s", "regex_list": ["^a", "x$"]}),
    ("column_values_to_match_regex_list", {"column": "s", "regex_list": ["a", "c"], "match_on": "all"}),
    ("column_values_to_not_match_regex_list", {"column": "s", "regex_list": ["^a", "x$"]}),
    ("column_value_lengths_to_be_between", {"column": "s", "min_value": 1, "max_value": 4}),
    ("column_value_lengths_to_be_between", {"column": "s", "min_value": 1, "strict_min": True}),
    ("column_value_lengths_to_equal", {"column": "s", "value": 4}),
    ("column_pair_values_to_be_equal", PAIR),
    ("column_pair_values_to_be_equal", {**PAIR, "ignore_row_if": "either_value_is_missing"}),
    ("column_pair_values_to_be_equal", {**NUMBERS, "ignore_row_if": "neither"}),
    ("column_pair_values_a_to_be_greater_than_b", NUMBERS),
    ("column_pair_values_a_to_be_greater_than_b", {**NUMBERS, "or_equal": True}),
    ("column_pair_values_a_to_be_greater_than_b", {**NUMBERS, "ignore_row_if": "neither"}),
    ("column_pair_values_a_to_be_greater_than_b", {**NUMBERS, "or_equal": True, "ignore_row_if": "neither"}),
    ("column_pair_values_to_be_in_set", {**PAIR, "value_pairs_set": [["abc", "abc"], ["x", None]]}),
]


def expectation(kind: str, kwargs: dict[str, Any], action: str = "fail") -> Expectation:
    return Expectation(type=f"expect_{kind}", kwargs=kwargs, action=action)


@pytest.mark.spark
@pytest.mark.slow
def test_the_condition_finds_the_rows_that_great_expectations_finds(spark: SparkSession) -> None:
    rows = spark.sql(f"SELECT * FROM VALUES {SQL_ROWS} AS rows(row, s, t, i, j, d, f, b, day)")
    rows = rows.selectExpr(*(f"cast({name} as {kind}) {name}" for name, kind in _columns())).cache()
    built = [
        engine.expectation(f"expect_{kind}", kwargs, {"case": case})
        for case, (kind, kwargs) in enumerate(CASES)
    ]
    result = engine.validate(
        rows,
        built,
        site=None,
        engine="spark",
        name="cases",
        result_format={"result_format": "COMPLETE", "unexpected_index_column_names": ["row"]},
    )
    conditions = [broken_when(expectation(kind, kwargs)) for kind, kwargs in CASES]
    answers = rows.selectExpr("row", *(f"{text} AS case_{case}" for case, text in enumerate(conditions)))
    by_condition = answers.orderBy("row").collect()
    assert len(result.results) == len(CASES)
    for one in result.results:
        assert one.expectation_config is not None
        case = (one.expectation_config.meta or {})["case"]
        assert not one.exception_info["raised_exception"], (CASES[case], one.exception_info)
        library = sorted(row["row"] for row in one.result.get("unexpected_index_list") or ())
        assert len(library) == one.result["unexpected_count"]
        assert [row["row"] for row in by_condition if row[f"case_{case}"]] == library, conditions[case]
        assert all(row[f"case_{case}"] is not None for row in by_condition), "never NULL"


def _columns() -> list[tuple[str, str]]:
    columns = SCHEMA.replace("(10,2)", "(10;2)").split(",")
    return [(name, kind.replace(";", ",")) for name, kind in (column.split() for column in columns)]


def test_every_row_wise_expectation_has_a_case_and_the_files_know_it() -> None:
    assert {f"expect_{kind}" for kind, _ in CASES} == ROW_WISE.keys()
    assert ROW_WISE.keys() <= KNOWN


@pytest.mark.parametrize(
    ("kind", "kwargs"),
    [
        ("column_values_to_be_unique", {"column": "s"}),
        ("column_max_to_be_between", {"column": "i", "max_value": 1}),
        ("column_values_to_not_be_null", {"column": "s", "mostly": 0.9}),
        ("column_values_to_be_between", {"column": "i"}),
    ],
)
def test_what_no_single_row_breaks_has_no_condition(kind: str, kwargs: dict[str, Any]) -> None:
    assert broken_when(expectation(kind, kwargs)) is None


@pytest.mark.parametrize("name", ["a`b", "a b", "1=1", ""])
def test_a_name_that_is_no_column_name_never_gets_into_the_text(name: str) -> None:
    with pytest.raises(InvalidUsage, match="not a column name"):
        broken_when(expectation("column_values_to_not_be_null", {"column": name}))


def test_the_rules_of_a_shard_are_its_quarantine_expectations_in_order() -> None:
    shard = ShardConfig.model_validate(
        {
            "name": "orders",
            "schema": "id BIGINT NOT NULL, v STRING",
            "keys": ("id",),
            "expectations": (
                {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "v"}, "action": "warn"},
                {
                    "type": "expect_column_values_to_be_in_set",
                    "kwargs": {"column": "v", "value_set": ["a'b"]},
                    "action": "quarantine",
                },
            ),
        }
    )
    [rule] = quarantine_rules(shard)
    assert rule.reason == 'expect_column_values_to_be_in_set(v, value_set=["a\'b"])'
    assert rule.broken_when == "coalesce(`v` IS NOT NULL AND NOT (`v` IN ('a\\'b')), false)"
