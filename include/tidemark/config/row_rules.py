"""Row-wise expectations as SQL: the condition of the rows that break one.

Only such an expectation can have the action quarantine: whether a row breaks it depends on that row alone,
so staging can move the row aside in its own pass. The condition gives the same result for a row as Great
Expectations, NULLs included: a NULL breaks only a check for NULL, and a pair of two NULLs is ignored.

Only checked column names and literals get into the text.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tidemark.config.document import COLUMN_NAME, shown
from tidemark.core.errors import InvalidUsage

if TYPE_CHECKING:
    from tidemark.config.shard import Expectation, ShardConfig

Kwargs = Mapping[str, Any]

# `$` is spelled out because Spark replaces ${…} in any SQL text, in literals too.
_ESCAPED: Final = {
    "\\": "\\\\",
    "'": "\\'",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    "\0": "\\0",
    "$": "\\u0024",
}


_COLUMN_KEYS: Final = ("column", "column_A", "column_B", "column_list", "column_set")
# The key of the prefix of column names, passed among the arguments; no argument has this name.
_PLACE: Final = ""


@dataclass(frozen=True, slots=True)
class RowRule:
    """Rows for which `broken_when` is true go to quarantine, with `reason`."""

    reason: str
    broken_when: str


def quarantine_rules(shard: ShardConfig, place: str = "") -> tuple[RowRule, ...]:
    """The rules by which staging quarantines rows of a shard, in the order of its expectations. `place` is
    the prefix of column names. `InvalidUsage` where an expectation can't be decided row by row."""
    rules = []
    for expectation in shard.expectations:
        if expectation.action != "quarantine":
            continue
        condition = broken_when(expectation, place)
        if condition is None:
            raise InvalidUsage(
                f"shard {shard.name!r}: {described(expectation)} can't be decided row by row",
                hint="use action warn, pause or fail",
            )
        rules.append(RowRule(described(expectation), condition))
    return tuple(rules)


def described(expectation: Expectation) -> str:
    """The expectation on one line: its type, its columns, then its other arguments."""
    named = [value for key in _COLUMN_KEYS if (value := expectation.kwargs.get(key)) is not None]
    columns = [value if isinstance(value, str) else json.dumps(value) for value in named]
    others = [
        f"{key}={_short(value)}" for key, value in expectation.kwargs.items() if key not in _COLUMN_KEYS
    ]
    return f"{expectation.type}({', '.join(columns + others)})"


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else shown(text, 80).strip("'")


def broken_when(expectation: Expectation, place: str = "") -> str | None:
    """The Spark SQL condition of the rows that break the expectation, never NULL; None where no single row
    can break it."""
    build = ROW_WISE.get(expectation.type)
    mostly = expectation.kwargs.get("mostly")
    if build is None or (mostly is not None and mostly != 1):
        return None
    broken = build({**expectation.arguments, _PLACE: place})
    return None if broken is None else f"coalesce({broken}, false)"


def _column(kwargs: Kwargs, key: str = "column") -> str:
    name = kwargs.get(key)
    if not isinstance(name, str) or not COLUMN_NAME.match(name):
        raise InvalidUsage(f"{name!r} is not a column name", hint=f"set {key}")
    return f"{kwargs.get(_PLACE, '')}`{name}`"


def _literal(value: object) -> str:
    match value:
        case None:
            return "NULL"
        case bool():
            return str(value).lower()
        case int():
            return str(value)
        case float() if math.isfinite(value):
            return f"{value!r}D"
        case str():
            return "'" + "".join(_ESCAPED.get(character, character) for character in value) + "'"
    raise InvalidUsage(
        f"values can't be compared with a {type(value).__name__}", hint="use text, a number, true or false"
    )


def _unless(column: str, holds: str) -> str:
    return f"{column} IS NOT NULL AND NOT ({holds})"


def _bounds(subject: str, kwargs: Kwargs) -> str | None:
    low, high = kwargs.get("min_value"), kwargs.get("max_value")
    parts = []
    if low is not None:
        parts.append(f"{subject} {'>' if kwargs.get('strict_min') else '>='} {_literal(low)}")
    if high is not None:
        parts.append(f"{subject} {'<' if kwargs.get('strict_max') else '<='} {_literal(high)}")
    return " AND ".join(parts) or None


def _between(kwargs: Kwargs) -> str | None:
    column = _column(kwargs)
    holds = _bounds(column, kwargs)
    return None if holds is None else _unless(column, holds)


def _lengths_between(kwargs: Kwargs) -> str | None:
    column = _column(kwargs)
    holds = _bounds(f"length({column})", kwargs)
    return None if holds is None else _unless(column, holds)


def _length_equals(kwargs: Kwargs) -> str:
    column = _column(kwargs)
    return _unless(column, f"length({column}) = {_literal(kwargs['value'])}")


def _member(column: str, values: Sequence[object]) -> str:
    return f"{column} IN ({', '.join(map(_literal, values))})" if values else "false"


def _in_set(kwargs: Kwargs) -> str:
    column = _column(kwargs)
    return _unless(column, _member(column, kwargs["value_set"]))


def _not_in_set(kwargs: Kwargs) -> str:
    column = _column(kwargs)
    return _unless(column, f"NOT {_member(column, kwargs['value_set'])}")


def _matches(column: str, regex: str) -> str:
    return f"{column} RLIKE {_literal(regex)}"


def _match_regex(kwargs: Kwargs) -> str:
    column = _column(kwargs)
    return _unless(column, _matches(column, kwargs["regex"]))


def _not_match_regex(kwargs: Kwargs) -> str:
    column = _column(kwargs)
    return _unless(column, f"NOT {_matches(column, kwargs['regex'])}")


def _match_regex_list(kwargs: Kwargs) -> str | None:
    column, regexes = _column(kwargs), kwargs["regex_list"]
    if not regexes:
        return None
    if kwargs["match_on"] == "all":
        return _unless(column, " AND ".join(_matches(column, regex) for regex in regexes))
    return _unless(column, _matches(column, "|".join(regexes)))


def _not_match_regex_list(kwargs: Kwargs) -> str | None:
    column, regexes = _column(kwargs), kwargs["regex_list"]
    if not regexes:
        return None
    return _unless(column, " AND ".join(f"NOT {_matches(column, regex)}" for regex in regexes))


def _pair(kwargs: Kwargs, holds: str) -> str | None:
    one, other = _column(kwargs, "column_A"), _column(kwargs, "column_B")
    looked_at = {
        "both_values_are_missing": f"NOT ({one} IS NULL AND {other} IS NULL)",
        "either_value_is_missing": f"{one} IS NOT NULL AND {other} IS NOT NULL",
        "neither": "true",
    }.get(kwargs["ignore_row_if"])
    return None if looked_at is None else f"{looked_at} AND NOT ({holds})"


def _pair_equal(kwargs: Kwargs) -> str | None:
    return _pair(kwargs, f"{_column(kwargs, 'column_A')} <=> {_column(kwargs, 'column_B')}")


def _pair_greater(kwargs: Kwargs) -> str | None:
    one, other = _column(kwargs, "column_A"), _column(kwargs, "column_B")
    if kwargs.get("or_equal"):
        return _pair(kwargs, f"{one} >= {other} OR {one} <=> {other}")
    return _pair(kwargs, f"{one} > {other}")


def _pair_in_set(kwargs: Kwargs) -> str | None:
    one, other = _column(kwargs, "column_A"), _column(kwargs, "column_B")
    pairs = kwargs["value_pairs_set"]
    if not pairs:
        return None
    return _pair(
        kwargs, " OR ".join(f"({one} <=> {_literal(a)} AND {other} <=> {_literal(b)})" for a, b in pairs)
    )


ROW_WISE: Final[Mapping[str, Callable[[Kwargs], str | None]]] = {
    "expect_column_pair_values_a_to_be_greater_than_b": _pair_greater,
    "expect_column_pair_values_to_be_equal": _pair_equal,
    "expect_column_pair_values_to_be_in_set": _pair_in_set,
    "expect_column_value_lengths_to_be_between": _lengths_between,
    "expect_column_value_lengths_to_equal": _length_equals,
    "expect_column_values_to_be_between": _between,
    "expect_column_values_to_be_in_set": _in_set,
    "expect_column_values_to_be_null": lambda kwargs: f"{_column(kwargs)} IS NOT NULL",
    "expect_column_values_to_match_regex": _match_regex,
    "expect_column_values_to_match_regex_list": _match_regex_list,
    "expect_column_values_to_not_be_in_set": _not_in_set,
    "expect_column_values_to_not_be_null": lambda kwargs: f"{_column(kwargs)} IS NULL",
    "expect_column_values_to_not_match_regex": _not_match_regex,
    "expect_column_values_to_not_match_regex_list": _not_match_regex_list,
}
