"""Great Expectations checks in a pipeline file: which may be named, with which arguments and values.

A pipeline file may name the checks that look at one table's rows and that Great Expectations can do on
Spark (`scripts/expectations.py` lists the others, and why). The library is not imported, because that takes
seconds: `expectations.json` has its signatures, as `make expectations` read them from the version that
requirements.txt pins. A test compares what is refused here with what the library refuses.

Errors that would only show at the gate are refused here: unknown arguments, values that no such argument
takes, and values that don't fit the column's type. The last has a second reason: a cast that fails puts the
row's value in the engine's log.

Expectations may be in a suite file: `expectations: suites/orders.yaml` instead of a list. The file is YAML
or JSON: a list of expectations, or a mapping with nothing but `expectations`. Its content replaces its name
before anything is checked, so its mistakes are reported with its own lines, and a binding records the
content, not the path. The path is relative and stays inside the root.
"""

from __future__ import annotations

import json
import math
import re
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from time import strptime
from typing import Any, Final

from tidemark.config.document import DocumentReader, Flaw, Node, Problem, nearest, problem_at, shown
from tidemark.config.row_rules import ROW_WISE
from tidemark.config.schema import FLOATS, INTEGERS, Schema
from tidemark.config.storage import read_named
from tidemark.core.errors import InvalidUsage

Types = type | tuple[type, ...]

_TYPES: Final[Mapping[str, tuple[str, Types]]] = {
    "number": ("a number", (int, float)),
    "integer": ("an integer", int),
    "flag": ("a flag", bool),
    "text": ("text", str),
    "list": ("a list", list),
    "mapping": ("a mapping", dict),
}
_COLUMN: Final[tuple[str, Types]] = ("a column's name", str)
_COLUMN_NAMES: Final = ("column", "column_A", "column_B")
_BOUNDS: Final = ("min_value", "max_value")


@dataclass(frozen=True, slots=True)
class Argument:
    """The signature of one argument; `words` are the only texts that it takes, if any."""

    type: str
    required: bool = False
    default: Any = None
    nullable: bool = False
    words: tuple[str, ...] = ()


def data_file() -> Traversable:
    """The file with the signatures."""
    return files("tidemark.config") / "expectations.json"


def _signatures() -> dict[str, Mapping[str, Argument]]:
    found = json.loads(data_file().read_text(encoding="utf-8"))["expectations"]
    return {
        kind: {
            name: Argument(**{**facts, "words": tuple(facts.get("words", ()))})
            for name, facts in signature.items()
        }
        for kind, signature in found.items()
    }


SIGNATURES: Final[Mapping[str, Mapping[str, Argument]]] = _signatures()
"""The expectations that a pipeline file may name, each with its arguments."""


def defaults_of(kind: str) -> dict[str, Any]:
    """The default values of an expectation's arguments, without those that default to None."""
    return {name: one.default for name, one in SIGNATURES.get(kind, {}).items() if one.default is not None}


# Values of arguments.

# Python's errors for texts that are no regex in Java either. Java accepts other texts that Python rejects.
_NO_REGEX: Final = re.compile(r"unterminated character set|missing \),|unbalanced parenthesis|end of pattern")


def value_flaws(kind: str, kwargs: Mapping[str, Any], *, moments: bool) -> Iterator[Flaw]:
    """The flaws in the values of the expectation's arguments, each value by itself; paths are below the
    expectation. Where bounds may be `moments`, their types are not checked here."""
    for name, value in kwargs.items():
        argument = SIGNATURES[kind].get(name)
        if argument is None:
            continue
        path = ("kwargs", name)
        wanted, types = _COLUMN if name in _COLUMN_NAMES else _TYPES[argument.type]
        if value is None:
            if not argument.nullable:
                yield Flaw(path, f"{name} has no value", "set a value, or remove it")
        elif not (moments and name in _BOUNDS) and not _is(value, types):
            yield Flaw(path, f"{name} is {wanted}, found {shown(value)}", f"write {wanted}")
        elif not _is_finite(value):
            yield Flaw(path, f"{name} is not finite", "write a finite number")
        elif (fact_and_hint := _mistake(kind, name, value, argument.words)) is not None:
            yield Flaw(path, *fact_and_hint)


def _is(value: object, wanted: Types) -> bool:
    return isinstance(value, wanted) and (wanted is bool or not isinstance(value, bool))


def _is_finite(value: object) -> bool:
    if isinstance(value, Mapping):
        return all(map(_is_finite, value.values()))
    if isinstance(value, list):
        return all(map(_is_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def _mistake(kind: str, name: str, value: Any, words: tuple[str, ...]) -> tuple[str, str] | None:
    """The fact and the hint for a value that has the right type and still can't be used; None if it can."""
    if words:
        hint = nearest(value, words, otherwise=f"use {' or '.join(words)}")
        return None if value in words else (f"{name} is not {shown(value)}", hint)
    check = _CHECKS.get(name)
    return check(kind, value) if check is not None else None


def _mostly(_: str, value: float) -> tuple[str, str] | None:
    return None if 0 <= value <= 1 else (f"mostly is {value}, not between 0 and 1", "write 0.95")


def _multiplier(_: str, value: float) -> tuple[str, str] | None:
    return None if value >= 0 else (f"multiplier is {value}", "write a number from 0 on")


def _relative_error(_: str, value: bool) -> tuple[str, str] | None:
    return ("quantiles are exact on Spark", "leave allow_relative_error out") if value else None


def _columns(kind: str, value: list[Any]) -> tuple[str, str] | None:
    if not _are_texts(value):
        return f"{shown(value)} are not columns' names", "write [a, b]"
    if len(value) < 2 and not kind.startswith("expect_table"):
        return f"{kind} compares columns, but {len(value)} are listed", "list two or more"
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
        return f"{shown(value)} is not a time format, {error}", "write one like '%Y-%m-%d'"
    return None


def _quantiles(_: str, value: Mapping[str, Any]) -> tuple[str, str] | None:
    hint = "write {quantiles: [0.5], value_ranges: [[1, 9]]}, a range for each, null for no bound"
    points, ranges = value.get("quantiles"), value.get("value_ranges")
    if set(value) != {"quantiles", "value_ranges"} or not isinstance(points, list) or not points:
        return "quantile_ranges has quantiles and value_ranges", hint
    if not all(_is(point, (int, float)) and 0 <= point <= 1 for point in points):
        return f"{shown(points)} are not all from 0 to 1", hint
    if not isinstance(ranges, list) or len(ranges) != len(points):
        return f"there are {len(points)} quantiles, but not as many value_ranges", hint
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


# Expectations on the columns of a shard.

KNOWN: Final = frozenset(SIGNATURES)

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
    """The flaws in an expectation of a known kind on these columns; paths are below the expectation."""
    yield from _argument_flaws(kind, kwargs)
    if quarantines and (kind not in ROW_WISE or kwargs.get("mostly", 1) != 1):
        why = "with mostly it" if kind in ROW_WISE else "it"
        hint = "use warn, pause or fail; quarantine needs an expectation about single rows"
        yield Flaw(("action",), f"{kind} can't quarantine: {why} is not about single rows", hint)
    types = {name: column.type.name for name in columns if (column := schema.get(name)) is not None}
    for name, type_name in types.items():
        yield from _type_flaws(kind, kwargs, name, type_name)
    families = {_family(type_name) for type_name in types.values()}
    if _COMPARING.search(kind) and len(families) > 1:
        fact = f"{' and '.join(types)} are of types that can't be compared, {', '.join(types.values())}"
        yield Flaw(("kwargs",), fact, "compare numbers with numbers, text with text, times with times")


def _argument_flaws(kind: str, kwargs: Mapping[str, Any]) -> Iterator[Flaw]:
    known = SIGNATURES[kind]
    for name in kwargs:
        if name not in known:
            hint = nearest(name, known, otherwise=f"use {', '.join(known)}")
            yield Flaw(("kwargs", name), f"{kind} has no argument {shown(name)}", hint)
    for name, argument in known.items():
        if argument.required and kwargs.get(name) is None:
            yield Flaw(("kwargs",), f"{kind} needs {name}", f"add {name}")
    yield from value_flaws(kind, kwargs, moments=_BOUNDED.search(kind) is not None)
    yield from _bound_flaws(kind, kwargs, known)


def _bound_flaws(kind: str, kwargs: Mapping[str, Any], known: Collection[str]) -> Iterator[Flaw]:
    low, high = kwargs.get("min_value"), kwargs.get("max_value")
    if "min_value" in known and low is None and high is None:
        yield Flaw(("kwargs",), f"{kind} needs a bound", "add min_value or max_value")
    elif low is not None and high is not None:
        if isinstance(low, str) != isinstance(high, str):
            yield Flaw(("kwargs", "max_value"), "the bounds have different types", "write both with one type")
        elif _is_above(low, high):
            yield Flaw(("kwargs", "max_value"), f"{shown(high)} is below {shown(low)}", "swap the bounds")


def _is_above(low: object, high: object) -> bool:
    """Whether the lower bound is above the upper one; False where they can't be compared."""
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


# Suite files.

KEY: Final = "expectations"
_HINT: Final = "write a path relative to the project, or list the expectations here"


@dataclass(slots=True)
class SuiteReader:
    """Replaces the names of suite files by their content; `problems` lists the errors in them."""

    file: str
    root: Path
    problems: list[Problem] = field(default_factory=list)

    def expanded(self, tree: Node) -> Node:
        """The tree with every suite file replaced by its content: in the shards, in `defaults`, in the
        tables' overrides."""
        items = dict(tree.items)
        if "defaults" in items:
            items["defaults"] = self._settings(items["defaults"])
        if "shards" in items:
            items["shards"] = self._list(items["shards"])
        tables = items.get("tables")
        overrides = tables.child("overrides") if tables is not None else None
        if tables is not None and overrides is not None:
            items["tables"] = tables.with_items({**tables.items, "overrides": self._list(overrides)})
        return tree.with_items(items)

    def _list(self, node: Node) -> Node:
        if not isinstance(node.value, tuple):
            return node
        return replace(node, value=tuple(self._settings(element) for element in node.elements))

    def _settings(self, node: Node) -> Node:
        named = node.child(KEY) if isinstance(node.value, dict) else None
        if named is None or not isinstance(named.value, str):
            return node
        suite = self._suite(named, node)
        return node.with_items({**node.items, KEY: suite})

    def _suite(self, named: Node, settings: Node) -> Node:
        """The content of a named suite file; where it can't be read, an empty suite, and a problem."""
        nothing = replace(named, value=())
        try:
            place, content = read_named(named.value, root=self.root, hint=_HINT)
        except InvalidUsage as error:
            self.problems.append(problem_at(settings, (KEY,), error.fact, error.hint, file=self.file))
            return nothing
        return self._read(content, place, nothing)

    def _read(self, content: bytes, file: str, nothing: Node) -> Node:
        reader = DocumentReader(file)
        tree = reader.read(content)
        self.problems += reader.problems
        if tree is None:
            return nothing
        inner = tree.child(KEY) if set(tree.items) == {KEY} else None
        suite = inner or tree
        if not isinstance(suite.value, tuple):
            hint = "begin with '- type: …', or with the one key expectations"
            self.problems.append(problem_at(suite, (), "the suite is not a list", hint, file=file))
            return nothing
        return _of_file(suite, file)


def _of_file(node: Node, file: str) -> Node:
    """The tree, with each value marked with the file that it comes from."""
    value = node.value
    if isinstance(value, Mapping):
        value = {name: _of_file(child, file) for name, child in value.items()}
    elif isinstance(value, tuple):
        value = tuple(_of_file(child, file) for child in value)
    return replace(node, value=value, file=file)
