"""The user's own expectations on staged rows: semantics, actions, and that no value of a row gets out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import ArithmeticException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, lit

from tidemark.config import ShardConfig
from tidemark.core.ids import ShardId, Txn
from tidemark.quality.checks import Checked, check_rows, opinion_of

pytestmark = [pytest.mark.spark, pytest.mark.slow]

CANARY = "canary-7361-secret"
SCHEMA = "id BIGINT NOT NULL, v STRING, n INT, secret STRING"
STAGED = f"{SCHEMA}, _txn BIGINT, _op STRING, _partition STRING, _offset BIGINT, _ordinal BIGINT"
ROWS = [
    (1, "a", 10, CANARY, 3, "U", "files", 0, 0),
    (2, "b", -5, CANARY, 3, "U", "files", 0, 1),
    (3, None, None, CANARY, 3, "U", "files", 0, 2),
    (4, None, None, None, 3, "D", "files", 0, 3),
]


def expect(kind: str, action: str = "fail", **kwargs: Any) -> dict[str, Any]:
    return {"type": f"expect_{kind}", "kwargs": kwargs, "action": action}


def shard(*expectations: dict[str, Any], name: str = "orders") -> ShardConfig:
    return ShardConfig.model_validate(
        {
            "name": name,
            "schema": SCHEMA,
            "keys": ("id",),
            "masked": ("secret",),
            "expectations": expectations,
        }
    )


Check = Callable[..., tuple[Checked, ...]]


@pytest.fixture
def check(spark: SparkSession) -> Check:
    def check(*shards: ShardConfig, rows: Sequence[tuple] = ROWS, site: Path | None = None) -> Any:
        def frame_of(shard: ShardId) -> DataFrame:
            return spark.createDataFrame(list(rows), STAGED)

        return check_rows(frame_of, shards, txn=Txn(3), site=site)

    return check


def test_a_suite_sees_upserted_rows_and_declared_columns_only(check: Check) -> None:
    """A delete row has NULLs where it has nothing to say; `_op` and positions are not the user's."""
    names = [name.split()[0] for name in SCHEMA.split(", ")]
    found = check(
        shard(
            expect("table_row_count_to_equal", value=3),
            expect("table_columns_to_match_ordered_list", column_list=names),
            expect("column_values_to_not_be_null", column="secret"),
            expect("column_values_to_be_between", "warn", column="n", min_value=0),
        )
    )
    assert [one.success for one in found] == [True, True, True, False]
    last = found[-1]
    assert last.expectation == "expect_column_values_to_be_between(n, min_value=0)"
    assert (last.unexpected_count, last.element_count, last.action) == (1, 3, "warn")


def test_a_shard_without_expectations_is_not_even_read(check: Check) -> None:
    def never(shard: ShardId) -> DataFrame:
        raise AssertionError(shard)

    assert check_rows(never, [shard()], txn=Txn(1), site=None) == ()


def test_an_empty_shard_and_one_full_of_deletions_hold(check: Check) -> None:
    suite = shard(expect("column_values_to_not_be_null", column="v"))
    for rows in ([], ROWS[3:]):
        [one] = check(suite, rows=rows)
        assert (one.success, one.unexpected_count or 0) == (True, 0)


def test_p12_each_action_leads_to_its_own_part_of_the_report(check: Check) -> None:
    suites = [
        shard(*(expect("column_values_to_not_be_null", action, column="v") for action in actions), name=name)
        for name, actions in {"orders": ("warn", "pause"), "lines": ("quarantine", "fail")}.items()
    ]
    checked = check(*suites)
    opinion = opinion_of(checked)
    assert [said.partition(":")[0] for said in opinion.failed] == ["shard lines", "shard lines"]
    assert [said.partition(":")[0] for said in opinion.warned] == ["shard orders"]
    assert dict(opinion.held) == {"orders": "expect_column_values_to_not_be_null(v), 1 row"}
    assert [one.broken_when for one in checked if one.action == "quarantine"] == [
        "coalesce(`v` IS NULL, false)"
    ]


def test_a_query_that_fails_after_the_gate_still_says_its_own_error(
    check: Check, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        monkeypatch.delitem(logging.Logger.manager.loggerDict, name, raising=False)
    check(shard(expect("column_values_to_not_be_null", column="id")))
    with pytest.raises(ArithmeticException, match="DIVIDE_BY_ZERO"):
        spark.range(1).selectExpr("1 / id").collect()
    with pytest.raises(ArithmeticException, match="DIVIDE_BY_ZERO"):
        spark.range(1).select(lit(1) / col("id")).collect()


def test_no_value_of_a_row_reaches_the_site_the_results_the_log_or_the_report(
    check: Check, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.INFO)
    column = {"column": "secret"}
    suite = shard(
        expect("column_values_to_match_regex", **column, regex="^x"),
        expect("column_values_to_be_in_set", **column, value_set=["x"]),
        expect("column_distinct_values_to_be_in_set", **column, value_set=["x"]),
        expect("column_most_common_value_to_be_in_set", **column, value_set=["x"]),
        expect("column_value_lengths_to_equal", **column, value=1),
        expect("column_values_to_be_unique", **column),
        expect("column_pair_values_to_be_equal", column_A="secret", column_B="v"),
        expect("compound_columns_to_be_unique", column_list=["secret", "secret"]),
        expect("column_values_to_be_json_parseable", **column),
        expect("column_values_to_match_strftime_format", **column, strftime_format="%Y"),
    )
    found = check(suite, site=tmp_path)
    assert [one.success for one in found] == [False] * len(found)
    out = capfd.readouterr()
    assert CANARY not in repr(found)
    assert CANARY not in caplog.text + out.out + out.err
    pages = [path for path in tmp_path.rglob("*") if path.suffix in {".html", ".json", ""} and path.is_file()]
    assert len(pages) >= 3, "an index, a page and a result"
    assert not [path for path in pages if CANARY in path.read_text(encoding="utf-8", errors="ignore")]
    assert any("txn-3" in str(path) for path in pages)


def test_an_expectation_that_cannot_be_made_or_evaluated_has_not_succeeded(check: Check) -> None:
    """A pipeline file's check refuses what can't be made; another version of the library may refuse more."""
    given = shard(
        expect("column_values_to_match_regex", "pause", column="v", regex="*a"),
        expect("column_values_to_not_be_outliers", "warn", column="n", method="iqr"),
        expect("column_values_to_not_be_null", column="id"),
    )
    regex, outliers, there = given.expectations
    outliers = outliers.model_copy(update={"kwargs": {**outliers.kwargs, "method": "guess"}})
    found = check(given.model_copy(update={"expectations": (regex, outliers, there)}))
    assert [one.success for one in found] == [False, False, True]
    assert all(one.detail.startswith("could not be evaluated") for one in found[:2])


def test_the_same_expectation_twice_is_reported_twice_in_order(check: Check) -> None:
    twice = expect("column_values_to_not_be_null", "warn", column="v")
    found = check(shard(twice, {**twice, "action": "fail"}))
    assert [one.action for one in found] == ["warn", "fail"]
