"""Expectations in pipeline files: what fits a column, what may quarantine, suites in own files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.config.harness import GOOD
from tidemark.config import PipelineConfig, Problem
from tidemark.config.expectations import KNOWN
from tidemark.config.row_rules import ROW_WISE

Load = Callable[..., PipelineConfig]
Problems = Callable[..., list[Problem]]

SCHEMA = (
    "id BIGINT NOT NULL, v STRING, n INT, x DECIMAL(5,2), at TIMESTAMP, day DATE, ok BOOLEAN, l TIMESTAMP_NTZ"
)


def given(kind: str, kwargs: str, action: str = "fail") -> tuple[tuple[str, str], ...]:
    line = f"    expectations:\n    - {{type: expect_{kind}, action: {action}, kwargs: {kwargs}}}\n"
    start = GOOD.index("    schema:")
    return ((GOOD[start:], f"    schema: {SCHEMA}\n    keys: [id]\n{line}"),)


@pytest.mark.parametrize(
    ("kind", "kwargs"),
    [
        ("column_values_to_be_between", "{column: n, min_value: 0, max_value: 9}"),
        ("column_values_to_be_between", "{column: day, min_value: '2024-01-01'}"),
        ("column_values_to_be_between", "{column: at, min_value: '2024-01-01T00:00:00Z'}"),
        ("column_values_to_be_in_set", "{column: v, value_set: [a, b]}"),
        ("column_values_to_be_in_set", "{column: x, value_set: [1, 2.5]}"),
        ("column_values_to_be_in_set", "{column: ok, value_set: [true]}"),
        ("column_pair_values_to_be_in_set", "{column_A: n, column_B: v, value_pairs_set: [[1, a]]}"),
        ("column_pair_values_a_to_be_greater_than_b", "{column_A: at, column_B: day}"),
        ("column_mean_to_be_between", "{column: x, max_value: 1}"),
        ("column_values_to_match_regex", "{column: v, regex: '^a'}"),
    ],
)
def test_an_expectation_that_fits_its_column_is_taken(load: Load, kind: str, kwargs: str) -> None:
    [expectation] = load(*given(kind, kwargs)).shards[0].expectations
    assert expectation.type == f"expect_{kind}"


@pytest.mark.parametrize(
    ("kind", "kwargs", "fact"),
    [
        ("column_values_to_be_between", "{column: n, min_vale: 0}", "has no argument 'min_vale'"),
        ("column_values_to_be_between", "{column: n}", "needs a bound"),
        ("column_values_to_be_between", "{column: n, min_value: 2, max_value: 1}", "1 is below 2"),
        ("column_values_to_be_between", "{column: v, min_value: 0}", "'v' is STRING"),
        ("column_values_to_be_between", "{column: n, min_value: '0'}", "'n' is INT, compared with '0'"),
        ("column_values_to_be_between", "{column: day, min_value: '2024-13-01'}", "'day' is DATE"),
        ("column_values_to_be_between", "{column: at, min_value: '2024-01-01'}", "'at' is TIMESTAMP"),
        ("column_values_to_be_between", "{column: l, min_value: '2024-01-01'}", "'l' is TIMESTAMP_NTZ"),
        ("column_values_to_be_in_set", "{column: v, value_set: [a, 1]}", "'v' is STRING, compared with 1"),
        ("column_values_to_be_in_set", "{column: n}", "needs value_set"),
        ("column_values_to_be_in_set", "{column: n, value_set: 1}", "value_set is a list, found 1"),
        ("column_values_to_be_null", "{column: n, mostly: often}", "mostly is a number, found 'often'"),
        ("table_row_count_to_equal", "{value: true}", "value is an integer, found True"),
        ("table_row_count_to_be_between", "{min_value: '1'}", "min_value is an integer, found '1'"),
        ("column_value_lengths_to_be_between", "{column: v, min_value: 1.5}", "is an integer, found 1.5"),
        ("column_mean_to_be_between", "{column: v, max_value: 1}", "needs a number"),
        ("column_values_to_match_regex", "{column: n, regex: a}", "needs text"),
        ("column_pair_values_to_be_equal", "{column_A: n, column_B: v}", "can't be compared, INT, STRING"),
        (
            "column_values_to_not_be_null",
            "{column: v, row_condition: '1 = 1'}",
            "has no argument 'row_condition'",
        ),
        (
            "column_values_to_not_be_null",
            "{column: v, result_format: COMPLETE}",
            "has no argument 'result_format'",
        ),
        ("column_values_to_match_like_pattern", "{column: v, like_pattern: a}", "not a known expectation"),
        ("column_values_to_be_increasing", "{column: n}", "not a known expectation"),
    ],
)
def test_what_would_fail_at_the_gate_or_quote_a_row_is_refused(
    problems: Problems, kind: str, kwargs: str, fact: str
) -> None:
    """Invariant 14: at definition, with its line."""
    found = problems(*given(kind, kwargs))
    assert any(fact in problem.fact for problem in found), found
    assert all(problem.line == 11 for problem in found)


@pytest.mark.parametrize(
    ("kind", "kwargs", "fact"),
    [
        ("column_values_to_not_be_null", "{column: v, mostly: 5}", "not between 0 and 1"),
        ("column_values_to_not_be_null", "{column: v, mostly: -1}", "not between 0 and 1"),
        ("column_values_to_not_be_null", "{column: v, mostly: null}", "mostly has no value"),
        ("column_values_to_match_regex_list", "{column: v, regex_list: [a], match_on: most}", "not 'most'"),
        ("column_values_to_match_regex_list", "{column: v, regex_list: []}", "not a list of regular"),
        ("column_values_to_match_regex_list", "{column: v, regex_list: [1, 2]}", "not a list of regular"),
        (
            "column_values_to_not_match_regex_list",
            "{column: v, regex_list: [a, 'b)']}",
            "'b)' is not a regular",
        ),
        ("column_values_to_match_regex", "{column: v, regex: '(['}", "'([' is not a regular expression"),
        ("column_pair_values_to_be_equal", "{column_A: n, column_B: n, ignore_row_if: never}", "not 'never'"),
        ("compound_columns_to_be_unique", "{column_list: [n, v], ignore_row_if: neither}", "not 'neither'"),
        ("compound_columns_to_be_unique", "{column_list: []}", "0 are listed"),
        ("compound_columns_to_be_unique", "{column_list: [n]}", "1 are listed"),
        ("table_columns_to_match_set", "{column_set: [1]}", "not columns' names"),
        ("column_quantile_values_to_be_between", "{column: n, quantile_ranges: 5}", "is a mapping, found 5"),
        ("column_quantile_values_to_be_between", "{column: n, quantile_ranges: {}}", "has quantiles and"),
        (
            "column_quantile_values_to_be_between",
            "{column: n, quantile_ranges: {quantiles: [0.5], value_ranges: [[2, 1]]}}",
            "[2, 1] is not a range",
        ),
        (
            "column_value_z_scores_to_be_less_than",
            "{column: n, threshold: 1, double_sided: maybe}",
            "a flag, found 'maybe'",
        ),
        ("column_values_to_not_be_outliers", "{column: n, method: magic}", "method is not 'magic'"),
        ("column_values_to_not_be_outliers", "{column: n, multiplier: -1}", "multiplier is -1"),
        ("column_values_to_match_strftime_format", "{column: v, strftime_format: '%Q'}", "not a time format"),
        ("column_pair_values_to_be_in_set", "{column_A: n, column_B: n, value_pairs_set: []}", "is empty"),
        ("column_values_to_be_between", "{column: n, min_value: 1e999}", "not finite"),
        ("column_values_to_be_in_set", "{column: x, value_set: [1, 1e999]}", "not finite"),
    ],
)
@pytest.mark.parametrize("action", ["fail", "quarantine"])
def test_regression_values_that_great_expectations_refuses_are_refused_before(
    problems: Problems, kind: str, kwargs: str, fact: str, action: str
) -> None:
    """Invariant 14: at definition, with its line."""
    found = problems(*given(kind, kwargs, action))
    assert any(fact in problem.fact for problem in found), found
    assert all(problem.line == 11 for problem in found)


@pytest.mark.parametrize(
    ("kind", "kwargs"),
    [
        ("column_values_to_match_regex", r"{column: v, regex: '^\p{L}+(?<rest>[a-z&&[^b]])\Q(\E$'}"),
        ("column_values_to_match_regex_list", "{column: v, regex_list: [a], match_on: all}"),
        ("column_pair_values_to_be_equal", "{column_A: n, column_B: n, ignore_row_if: neither}"),
        ("compound_columns_to_be_unique", "{column_list: [n, v], ignore_row_if: never}"),
        ("table_columns_to_match_ordered_list", "{column_list: [id]}"),
        ("column_values_to_match_strftime_format", "{column: v, strftime_format: '%Y-%m-%d %H:%M:%S'}"),
        (
            "column_quantile_values_to_be_between",
            "{column: n, quantile_ranges: {quantiles: [0, 0.5], value_ranges: [[null, 1], [1, 2]]}}",
        ),
        # The later one is the smaller text.
        (
            "column_values_to_be_between",
            "{column: at, min_value: '2024-01-01T01:00:00+02:00', max_value: '2024-01-01T00:30:00+00:00'}",
        ),
    ],
)
def test_regression_values_that_can_be_used_are_not_refused(load: Load, kind: str, kwargs: str) -> None:
    assert load(*given(kind, kwargs)).shards[0].expectations


def test_regression_bounds_in_two_offsets_are_swapped_where_their_times_are(problems: Problems) -> None:
    bounds = "{column: at, min_value: '2024-01-01T00:30:00+00:00', max_value: '2024-01-01T01:00:00+02:00'}"
    [problem] = problems(*given("column_values_to_be_between", bounds))
    assert "is below" in problem.fact


def test_what_staging_could_not_decide_is_refused_with_its_line(
    problems: Problems, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raises(*_: object) -> str:
        raise TypeError("an odd argument")

    for decides, fact in ((raises, "TypeError: an odd argument"), (lambda *_: None, "row by row")):
        monkeypatch.setattr("tidemark.config.shard.broken_when", decides)
        [problem] = problems(*given("column_values_to_not_be_null", "{column: v}", "quarantine"))
        assert (problem.line, fact in problem.fact) == (11, True)


def test_p12_only_what_single_rows_break_may_quarantine(load: Load, problems: Problems) -> None:
    """Invariant 14."""
    assert ROW_WISE.keys() <= KNOWN
    kept = load(*given("column_values_to_not_be_null", "{column: v}", "quarantine"))
    assert kept.shards[0].expectations[0].action == "quarantine"
    for kind, kwargs in (
        ("column_values_to_be_unique", "{column: v}"),
        ("column_max_to_be_between", "{column: n, max_value: 1}"),
        ("column_values_to_not_be_null", "{column: v, mostly: 0.9}"),
    ):
        [problem] = problems(*given(kind, kwargs, "quarantine"))
        assert problem.path == "shards[0].expectations[0].action"
        assert "can't quarantine" in problem.fact
        load(*given(kind, kwargs, "warn"))


SUITE = """\
- type: expect_column_values_to_not_be_null
  kwargs: {column: v}
  action: warn
"""
NAMED = ("[id]", "[id]\n    expectations: suites/orders.yaml")


@pytest.fixture
def suite(project: Path) -> Callable[[str], Path]:
    def suite(text: str, name: str = "orders.yaml") -> Path:
        (project / "suites").mkdir(exist_ok=True)
        (project / "suites" / name).write_text(text, encoding="utf-8")
        return project / "suites" / name

    return suite


def test_a_suite_in_a_file_is_as_if_it_were_written_in_place(load: Load, suite: Callable[..., Path]) -> None:
    listed = load(
        ("[id]", "[id]\n    expectations:\n" + SUITE.replace("- ", "    - ").replace("\n  ", "\n      "))
    )
    suite(SUITE)
    named = load(NAMED)
    assert named.shards[0].expectations
    assert named.canonical_json() == listed.canonical_json()
    suite("expectations:\n" + SUITE)
    assert load(NAMED).canonical_json() == listed.canonical_json()
    suite(
        json.dumps(
            [{"type": e.type, "kwargs": e.kwargs, "action": e.action} for e in named.shards[0].expectations]
        ),
        "o.json",
    )
    assert load(("[id]", "[id]\n    expectations: suites/o.json")).canonical_json() == listed.canonical_json()


def test_a_mistake_in_a_suite_is_reported_with_the_suites_own_line(
    problems: Problems, suite: Callable[..., Path]
) -> None:
    file = suite(SUITE.replace("column: v", "column: w").replace("warn", "quarantin"))
    found = problems(NAMED)
    assert {problem.file for problem in found} == {str(file)}
    assert {problem.line for problem in found} <= {2, 3}
    suite("name: x\nexpectations: []\n")
    [problem] = problems(NAMED)
    assert "not a list" in problem.fact
    suite("- [\n")
    [problem] = problems(NAMED)
    assert (problem.file, "not YAML" in problem.fact) == (str(file), True)


def test_a_suite_comes_from_inside_the_root_or_not_at_all(
    problems: Problems, project: Path, suite: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> None:
    outside = tmp_path_factory.mktemp("outside") / "s.yaml"
    outside.write_text(SUITE, encoding="utf-8")
    suite(SUITE)
    (project / "suites" / "link.yaml").symlink_to(outside)
    for name, fact in {
        str(outside): "not relative",
        "../s.yaml": "contains '..'",
        "suites/link.yaml": "is outside the root",
        "suites/none.yaml": "can't be read",
        "s3://bucket/s.yaml": "not relative",
    }.items():
        [problem] = problems(("[id]", f"[id]\n    expectations: '{name}'"))
        assert fact in problem.fact
        assert (problem.line, problem.path) == (10, "shards[0].expectations")


def test_defaults_may_name_a_suite_too(load: Load, suite: Callable[..., Path]) -> None:
    suite(SUITE)
    config = load(("shards:", "defaults: {expectations: suites/orders.yaml}\nshards:"))
    assert len(config.shards[0].expectations) == 1


@pytest.mark.parametrize(
    ("kind", "kwargs", "action", "found"),
    [
        ("column_values_to_be_between", "{column: n, min_value: 0}", "fail", "quarantine"),
        ("column_values_to_be_between", "{column: n, min_value: 0, mostly: 0.9}", "fail", "fail"),
        ("column_values_to_be_between", "{column: n, min_value: 0}", "warn", "warn"),
        ("column_values_to_be_between", "{column: n, min_value: 0}", "pause", "pause"),
        ("table_row_count_to_be_between", "{max_value: 10}", "fail", "fail"),
    ],
)
def test_setting_rows_aside_changes_only_what_fails_and_single_rows_break(
    load: Load, kind: str, kwargs: str, action: str, found: str
) -> None:
    config = load(*given(kind, kwargs, action))
    aside = config.setting_aside()
    assert [str(one.action) for one in aside.shards[0].expectations] == [found]
    assert (aside is config) is (found == action)
    assert (aside.canonical_json() == config.canonical_json()) is (found == action)
    assert (aside.shapes, aside.root) == (config.shapes, config.root)
    assert config.shards[0].expectations[0].action == action, "the file's own settings stay"


def test_nothing_is_set_aside_where_bad_records_fail_the_run(load: Load) -> None:
    config = load(*given("column_values_to_be_between", "{column: n, min_value: 0}"))
    strict = config.model_copy(update={"shards": (config.shards[0].model_copy(update={"on_error": "fail"}),)})
    assert strict.setting_aside() is strict
