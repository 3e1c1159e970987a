"""The Great Expectations checks that a pipeline file may name, and how they may be used.

Named may be those that look at one table's rows and that Great Expectations can do on Spark. Left out are
the ones that take SQL, which no pipeline file may send to an engine, those that need a second table or an
order of rows, and statistical tests. Great Expectations itself is not imported: that takes seconds.

What would only fail at the gate is refused here: unknown arguments, values that no such argument takes, and
values that don't fit the column's type. The last has a second reason: a cast that fails quotes the row's
value in the engine's log.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from tidemark.config.arguments import value_flaws
from tidemark.config.problems import Flaw
from tidemark.config.schema import FLOATS, INTEGERS, Schema
from tidemark.config.text import nearest, shown

_RANGE = "min_value max_value strict_min strict_max"
_PAIR = "column_A! column_B! mostly ignore_row_if"
_SEVERAL = "column_list! mostly ignore_row_if"

ARGUMENTS: Final[Mapping[str, str]] = {
    "expect_column_distinct_values_to_be_in_set": "column! value_set!",
    "expect_column_distinct_values_to_contain_set": "column! value_set!",
    "expect_column_distinct_values_to_equal_set": "column! value_set!",
    "expect_column_max_to_be_between": f"column! {_RANGE}",
    "expect_column_mean_to_be_between": f"column! {_RANGE}",
    "expect_column_median_to_be_between": f"column! {_RANGE}",
    "expect_column_min_to_be_between": f"column! {_RANGE}",
    "expect_column_most_common_value_to_be_in_set": "column! value_set! ties_okay",
    "expect_column_pair_values_a_to_be_greater_than_b": f"{_PAIR} or_equal",
    "expect_column_pair_values_to_be_equal": _PAIR,
    "expect_column_pair_values_to_be_in_set": f"{_PAIR} value_pairs_set!",
    "expect_column_proportion_of_non_null_values_to_be_between": f"column! {_RANGE}",
    "expect_column_proportion_of_unique_values_to_be_between": f"column! {_RANGE}",
    "expect_column_quantile_values_to_be_between": "column! quantile_ranges! allow_relative_error",
    "expect_column_stdev_to_be_between": f"column! {_RANGE}",
    "expect_column_sum_to_be_between": f"column! {_RANGE}",
    "expect_column_to_exist": "column! column_index",
    "expect_column_type_to_be": "column! type_!",
    "expect_column_unique_value_count_to_be_between": f"column! {_RANGE}",
    "expect_column_value_lengths_to_be_between": f"column! mostly {_RANGE}",
    "expect_column_value_lengths_to_equal": "column! mostly value!",
    "expect_column_value_z_scores_to_be_less_than": "column! mostly threshold! double_sided!",
    "expect_column_values_to_be_between": f"column! mostly {_RANGE}",
    "expect_column_values_to_be_in_set": "column! mostly value_set!",
    "expect_column_values_to_be_in_type_list": "column! mostly type_list",
    "expect_column_values_to_be_json_parseable": "column! mostly",
    "expect_column_values_to_be_null": "column! mostly",
    "expect_column_values_to_be_of_type": "column! mostly type_!",
    "expect_column_values_to_be_unique": "column! mostly",
    "expect_column_values_to_match_regex": "column! mostly regex",
    "expect_column_values_to_match_regex_list": "column! mostly regex_list! match_on",
    "expect_column_values_to_match_strftime_format": "column! mostly strftime_format!",
    "expect_column_values_to_not_be_in_set": "column! mostly value_set!",
    "expect_column_values_to_not_be_null": "column! mostly",
    "expect_column_values_to_not_be_outliers": "column! mostly method multiplier",
    "expect_column_values_to_not_match_regex": "column! mostly regex!",
    "expect_column_values_to_not_match_regex_list": "column! mostly regex_list!",
    "expect_compound_columns_to_be_unique": _SEVERAL,
    "expect_multicolumn_sum_to_equal": f"{_SEVERAL} sum_total!",
    "expect_multicolumn_values_to_be_equal": _SEVERAL,
    "expect_select_column_values_to_be_unique_within_record": _SEVERAL,
    "expect_table_column_count_to_be_between": "min_value max_value",
    "expect_table_column_count_to_equal": "value!",
    "expect_table_columns_to_match_ordered_list": "column_list",
    "expect_table_columns_to_match_set": "column_set exact_match",
    "expect_table_row_count_to_be_between": _RANGE,
    "expect_table_row_count_to_equal": "value!",
}
"""Each with its arguments; `!` marks those that it needs."""

KNOWN: Final = frozenset(ARGUMENTS)
ROW_WISE: Final = frozenset(
    {
        "expect_column_pair_values_a_to_be_greater_than_b",
        "expect_column_pair_values_to_be_equal",
        "expect_column_pair_values_to_be_in_set",
        "expect_column_value_lengths_to_be_between",
        "expect_column_value_lengths_to_equal",
        "expect_column_values_to_be_between",
        "expect_column_values_to_be_in_set",
        "expect_column_values_to_be_null",
        "expect_column_values_to_match_regex",
        "expect_column_values_to_match_regex_list",
        "expect_column_values_to_not_be_in_set",
        "expect_column_values_to_not_be_null",
        "expect_column_values_to_not_match_regex",
        "expect_column_values_to_not_match_regex_list",
    }
)
"""Those that each row holds or breaks by itself, so that the rows that break them can be quarantined."""

_NUMERIC = re.compile(r"_(mean|median|stdev|sum|quantile|z_scores|outliers)_?")
_TEXTUAL = re.compile(r"_(regex|lengths|strftime|json)_?")
_COMPARING = re.compile(r"_(greater_than_b|pair_values_to_be_equal|multicolumn_values|within_record)")
_BOUNDED = re.compile(r"_(max|min|values)_to_be_between\Z")
_DATE = re.compile(r"\d{4}-\d\d-\d\d\Z")
_NUMBERS = INTEGERS | FLOATS | {"DECIMAL"}
_NESTED = frozenset({"ARRAY", "MAP", "STRUCT", "BINARY"})


def expectation_flaws(
    kind: str, kwargs: Mapping[str, Any], columns: tuple[str, ...], schema: Schema, *, quarantines: bool
) -> Iterator[Flaw]:
    """What is wrong with an expectation of a known kind on these columns; paths are below the expectation."""
    yield from _argument_flaws(kind, kwargs)
    if quarantines and (kind not in ROW_WISE or kwargs.get("mostly", 1) != 1):
        why = "with mostly it" if kind in ROW_WISE else "it"
        hint = "use warn, pause or fail; quarantine needs a check that each row breaks by itself"
        yield Flaw(("action",), f"{kind} can't quarantine, {why} is not about single rows", hint)
    types = {name: column.type.name for name in columns if (column := schema.get(name)) is not None}
    for name, type_name in types.items():
        yield from _type_flaws(kind, kwargs, name, type_name)
    families = {_family(type_name) for type_name in types.values()}
    if _COMPARING.search(kind) and len(families) > 1:
        fact = f"{' and '.join(types)} are of types that can't be compared, {', '.join(types.values())}"
        yield Flaw(("kwargs",), fact, "compare numbers with numbers, text with text, times with times")


def _argument_flaws(kind: str, kwargs: Mapping[str, Any]) -> Iterator[Flaw]:
    listed = ARGUMENTS[kind].split()
    known = [name.removesuffix("!") for name in listed]
    for name in kwargs:
        if name not in known:
            hint = nearest(name, known, otherwise=f"it takes {', '.join(known)}")
            yield Flaw(("kwargs", name), f"{kind} takes no {shown(name)}", hint)
    for name in listed:
        if name.endswith("!") and kwargs.get(name[:-1]) is None:
            yield Flaw(("kwargs",), f"{kind} needs {name[:-1]}", f"add {name[:-1]}")
    yield from value_flaws(kind, kwargs, known, moments=_BOUNDED.search(kind) is not None)
    yield from _bound_flaws(kind, kwargs, known)


def _bound_flaws(kind: str, kwargs: Mapping[str, Any], known: Sequence[str]) -> Iterator[Flaw]:
    low, high = kwargs.get("min_value"), kwargs.get("max_value")
    if "min_value" in known and low is None and high is None:
        yield Flaw(("kwargs",), f"{kind} needs a bound", "add min_value or max_value")
    elif low is not None and high is not None:
        if isinstance(low, str) != isinstance(high, str):
            yield Flaw(("kwargs", "max_value"), "the bounds are of different types", "write both alike")
        elif _is_above(low, high):
            yield Flaw(("kwargs", "max_value"), f"{shown(high)} is below {shown(low)}", "swap the bounds")


def _is_above(low: object, high: object) -> bool:
    """Whether the bounds leave nothing between them; what can't be compared is no bound of any column."""
    if isinstance(low, str) and isinstance(high, str):
        first, last = _moment(low), _moment(high)
        if first is None or last is None or (first.tzinfo is None) != (last.tzinfo is None):
            return False
        return first > last  # As texts, times with different offsets would have another order.
    return isinstance(low, int | float) and isinstance(high, int | float) and low > high


def _type_flaws(kind: str, kwargs: Mapping[str, Any], name: str, type_name: str) -> Iterator[Flaw]:
    path = ("kwargs",)
    if _NUMERIC.search(kind) and type_name not in _NUMBERS:
        yield Flaw(path, f"{name!r} is {type_name}, {kind} needs a number", "check another column")
    elif _TEXTUAL.search(kind) and type_name != "STRING":
        yield Flaw(path, f"{name!r} is {type_name}, {kind} needs text", "check a STRING column")
    elif _BOUNDED.search(kind):
        if type_name in ("STRING", "BOOLEAN", "TIMESTAMP_NTZ") or type_name in _NESTED:
            hint = "bounds are for numbers, dates and timestamps"
            yield Flaw(path, f"{name!r} is {type_name}, {kind} can't bound it", hint)
            return
        for bound in ("min_value", "max_value"):
            value = kwargs.get(bound)
            if value is not None and not _fits(value, type_name, is_bound=True):
                yield _misfit((*path, bound), value, name, type_name)
    for value in kwargs.get("value_set") or () if isinstance(kwargs.get("value_set"), list) else ():
        if not _fits(value, type_name):
            yield _misfit((*path, "value_set"), value, name, type_name)
    pairs = kwargs.get("value_pairs_set")
    side = 0 if kwargs.get("column_A") == name else 1
    for pair in pairs if isinstance(pairs, list) else ():
        if not isinstance(pair, list) or len(pair) != 2:
            yield Flaw((*path, "value_pairs_set"), f"{shown(pair)} is not a pair", "write [a, b]")
        elif pair[side] is not None and not _fits(pair[side], type_name):
            yield _misfit((*path, "value_pairs_set"), pair[side], name, type_name)


def _misfit(path: tuple[str, ...], value: object, name: str, type_name: str) -> Flaw:
    hints = {"DATE": "write '2024-01-31'", "TIMESTAMP": "write '2024-01-31T00:00:00+00:00', with its offset"}
    hint = hints.get(type_name, "write a value of the column's type")
    return Flaw(path, f"column {name!r} is {type_name}, compared with {shown(value)}", hint)


def _fits(value: object, type_name: str, *, is_bound: bool = False) -> bool:
    """Whether comparing the column with the value needs no cast that a row could fail."""
    match value:
        case bool():
            return type_name == "BOOLEAN"
        case int() | float():
            return type_name in _NUMBERS
        case str() if type_name == "DATE":
            return _DATE.match(value) is not None and _moment(value) is not None
        case str() if type_name in ("TIMESTAMP", "TIMESTAMP_NTZ"):
            moment = _moment(value)
            # Without an offset a bound would be read in the time zone of the machine.
            return moment is not None and (not is_bound or moment.tzinfo is not None)
        case str():
            return type_name == "STRING"
    return False


def _moment(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


def _family(type_name: str) -> str:
    if type_name in _NUMBERS:
        return "number"
    return "time" if type_name in ("DATE", "TIMESTAMP", "TIMESTAMP_NTZ") else type_name
