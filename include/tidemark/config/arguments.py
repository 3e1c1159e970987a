"""The values that an expectation's arguments may have, as Great Expectations takes them on Spark.

The library is not imported, that takes seconds; a test compares what is refused here with what it refuses.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from time import strptime
from typing import Any, Final

from tidemark.config.problems import Flaw
from tidemark.config.text import nearest, shown

_TYPES: Final[Mapping[str, tuple[str, type | tuple[type, ...]]]] = {
    **dict.fromkeys(("mostly", "multiplier", "sum_total", "threshold"), ("a number", (int, float))),
    **dict.fromkeys(("column_index", "value"), ("an integer", int)),
    **dict.fromkeys(("strict_min", "strict_max", "or_equal", "ties_okay", "exact_match"), ("a flag", bool)),
    **dict.fromkeys(("double_sided", "allow_relative_error"), ("a flag", bool)),
    **dict.fromkeys(("regex", "strftime_format", "type_", "match_on", "ignore_row_if"), ("text", str)),
    **dict.fromkeys(("column", "column_A", "column_B"), ("a column's name", str)),
    **dict.fromkeys(("value_set", "value_pairs_set", "regex_list", "type_list"), ("a list", list)),
    **dict.fromkeys(("column_list", "column_set"), ("a list", list)),
    "method": ("text", str),
    "quantile_ranges": ("a mapping", dict),
}
_NUMBER: Final = ("a number", (int, float))
# Those that are no different when they are left out. The others have a default, which null would replace.
_MAY_BE_NULL: Final = frozenset(
    {"min_value", "max_value", "or_equal", "ties_okay", "exact_match", "column_index"}
    | {"type_list", "column_list", "column_set"}
)
_WORDS: Final[Mapping[str, tuple[str, ...]]] = {"match_on": ("any", "all"), "method": ("iqr", "std")}
_PAIR_WORDS: Final = ("both_values_are_missing", "either_value_is_missing", "neither")
_SEVERAL_WORDS: Final = ("all_values_are_missing", "any_value_is_missing", "never")
# What Python says of a text that is no regex in Java either. Of the rest Java knows more than Python.
_NO_REGEX: Final = re.compile(r"unterminated character set|missing \),|unbalanced parenthesis|end of pattern")


def value_flaws(
    kind: str, kwargs: Mapping[str, Any], known: Sequence[str], *, moments: bool
) -> Iterator[Flaw]:
    """What is wrong with the values of the `known` arguments, each by itself; paths are below the
    expectation. Where bounds may be `moments`, what they are is not looked at here."""
    wanted = dict(_TYPES) if moments else {**_TYPES, "min_value": _NUMBER, "max_value": _NUMBER}
    for name, value in kwargs.items():
        if name not in known:
            continue
        path = ("kwargs", name)
        if value is None:
            if name not in _MAY_BE_NULL:
                yield Flaw(path, f"{name} is nothing", "give it a value, or leave it out")
        elif name in wanted and not _is(value, wanted[name][1]):
            yield Flaw(path, f"{name} is {wanted[name][0]}, found {shown(value)}", "write it like that")
        elif not _is_finite(value):
            yield Flaw(path, f"{name} has a number without an end", "write a finite number")
        elif (fact_and_hint := _mistake(kind, name, value)) is not None:
            yield Flaw(path, *fact_and_hint)


def _is(value: object, wanted: type | tuple[type, ...]) -> bool:
    return isinstance(value, wanted) and (wanted is bool or not isinstance(value, bool))


def _is_finite(value: object) -> bool:
    if isinstance(value, Mapping):
        return all(map(_is_finite, value.values()))
    if isinstance(value, list):
        return all(map(_is_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def _mistake(kind: str, name: str, value: Any) -> tuple[str, str] | None:
    """The fact and the hint of a value that is of the right type and can't be used all the same."""
    words = _WORDS.get(name)
    if name == "ignore_row_if":
        words = _PAIR_WORDS if "column_pair" in kind else _SEVERAL_WORDS
    if words is not None:
        hint = nearest(value, words, otherwise=f"use {' or '.join(words)}")
        return None if value in words else (f"{name} is not {shown(value)}", hint)
    check = _CHECKS.get(name)
    return check(kind, value) if check is not None else None


def _mostly(_: str, value: float) -> tuple[str, str] | None:
    return None if 0 <= value <= 1 else (f"mostly is {value}, and a share is from 0 to 1", "write 0.95")


def _multiplier(_: str, value: float) -> tuple[str, str] | None:
    return None if value >= 0 else (f"multiplier is {value}", "write a number from 0 on")


def _relative_error(_: str, value: bool) -> tuple[str, str] | None:
    return ("quantiles are exact on Spark", "leave allow_relative_error out") if value else None


def _columns(kind: str, value: list[Any]) -> tuple[str, str] | None:
    if not _are_texts(value):
        return f"{shown(value)} are not columns' names", "write [a, b]"
    if len(value) < 2 and not kind.startswith("expect_table"):
        return f"{kind} compares columns, and {len(value)} are listed", "list two or more"
    return None


def _types(_: str, value: list[Any]) -> tuple[str, str] | None:
    return None if _are_texts(value) else (f"{shown(value)} are not types", "write [IntegerType, LongType]")


def _pairs(_: str, value: list[Any]) -> tuple[str, str] | None:
    return None if value else ("value_pairs_set is empty", "write [[a, b]]")


def _regexes(kind: str, value: list[Any]) -> tuple[str, str] | None:
    if not value or not _are_texts(value):
        return f"{shown(value)} is not a list of regular expressions", "write ['^a', '^b']"
    return next((found for regex in value if (found := _regex(kind, regex)) is not None), None)


def _regex(_: str, value: str) -> tuple[str, str] | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            re.compile(value)
    except (re.error, RecursionError, OverflowError) as error:
        if _NO_REGEX.search(str(error)):
            return f"{shown(value)} is not a regular expression, {error}", "close it, or put \\ before a sign"
    return None


def _time_format(_: str, value: str) -> tuple[str, str] | None:
    try:
        strptime(datetime(2024, 1, 31, tzinfo=UTC).strftime(value), value)
    except ValueError as error:
        return f"{shown(value)} is not a format of times, {error}", "write one like '%Y-%m-%d'"
    return None


def _quantiles(_: str, value: Mapping[str, Any]) -> tuple[str, str] | None:
    hint = "write {quantiles: [0.5], value_ranges: [[1, 9]]}, a range for each, null for no bound"
    points, ranges = value.get("quantiles"), value.get("value_ranges")
    if set(value) != {"quantiles", "value_ranges"} or not isinstance(points, list) or not points:
        return "quantile_ranges has quantiles and value_ranges", hint
    if not all(_is(point, (int, float)) and 0 <= point <= 1 for point in points):
        return f"{shown(points)} are not all from 0 to 1", hint
    if not isinstance(ranges, list) or len(ranges) != len(points):
        return f"there are {len(points)} quantiles, and not as many value_ranges", hint
    wrong = [one for one in ranges if not _is_range(one)]
    return (f"{shown(wrong[0])} is not a range", hint) if wrong else None


def _is_range(value: Any) -> bool:
    if not isinstance(value, list) or len(value) != 2:
        return False
    ends = [end for end in value if end is not None]
    return all(_is(end, (int, float)) for end in ends) and ends == sorted(ends)


def _are_texts(value: list[Any]) -> bool:
    return all(isinstance(item, str) for item in value)


_CHECKS: Final[Mapping[str, Callable[[str, Any], tuple[str, str] | None]]] = {
    "mostly": _mostly,
    "multiplier": _multiplier,
    "allow_relative_error": _relative_error,
    "column_list": _columns,
    "column_set": _columns,
    "type_list": _types,
    "value_pairs_set": _pairs,
    "regex_list": _regexes,
    "regex": _regex,
    "strftime_format": _time_format,
    "quantile_ranges": _quantiles,
}
