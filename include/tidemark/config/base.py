"""The base of all models of a pipeline file (frozen, strict, no unknown keys), and its checked kinds of
text.

Among these is the condition of `apply_as_deletes`, which marks a record as a deletion: `column = 'text'`,
`column = 123`, `column = true`, `column IN ('a', 'b')` or `column IS NULL`. It is parsed into a value: no
SQL text from a pipeline file reaches an engine.
"""

from __future__ import annotations

import re
from calendar import monthrange
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, PlainSerializer, model_validator

from tidemark.config.document import COLUMN_NAME, refused, shown
from tidemark.config.schema import Schema, parse_schema
from tidemark.core.errors import InvalidUsage
from tidemark.core.ids import QUARANTINE, checked_name

PREDICATE_CHARACTERS_MAX: Final = 4_096
_SHAPE = "write column = 'text', column = 123, column = true, column IN ('a', 'b') or column IS NULL"
_LITERAL = r"(?:'(?:[^']|'')*'|[+-]?\d{1,18}|true|false)"
_CONDITION = re.compile(
    rf"\s*`?(?P<column>\w+)`?\s*(?:(?P<null>\bIS\s+NULL)|=\s*(?P<one>{_LITERAL})"
    rf"|\bIN\s*\(\s*(?P<many>{_LITERAL}(?:\s*,\s*{_LITERAL})*)\s*\))\s*\Z",
    re.IGNORECASE | re.ASCII,
)
_LITERALS = re.compile(_LITERAL, re.IGNORECASE | re.ASCII)

Value = str | int | bool


# Conditions.


@dataclass(frozen=True, slots=True)
class Predicate:
    """True for a record whose `column` is one of `values`, or is NULL if there are none.

    As in SQL, a NULL column equals no value. All values have one type.
    """

    column: str
    values: tuple[Value, ...] = ()

    @property
    def is_null(self) -> bool:
        return not self.values

    @property
    def type_name(self) -> str:
        """The type for reading an undeclared column."""
        match self.values[:1]:
            case (bool(),):
                return "BOOLEAN"
            case (int(),):
                return "BIGINT"
        return "STRING"

    @property
    def text(self) -> str:
        """The canonical spelling, which `parse_predicate` reads back."""
        match [_written(value) for value in self.values]:
            case []:
                return f"{self.column} IS NULL"
            case [value]:
                return f"{self.column} = {value}"
            case values:
                return f"{self.column} IN ({', '.join(values)})"


def parse_predicate(text: str) -> Predicate:
    """The condition in the text. Raises `InvalidUsage`."""
    if len(text) > PREDICATE_CHARACTERS_MAX:
        raise InvalidUsage(f"the condition has {len(text)} characters, {PREDICATE_CHARACTERS_MAX} at most")
    match = _CONDITION.match(text)
    if match is None:
        is_null = re.search(r"=\s*NULL\s*\Z", text, re.IGNORECASE)
        hint = "nothing equals NULL: write column IS NULL" if is_null else _SHAPE
        raise InvalidUsage(f"{shown(text)} is not a condition that can be read", hint=hint)
    if not COLUMN_NAME.match(match["column"]):
        raise InvalidUsage(f"{shown(match['column'])} is not a column name", hint=_SHAPE)
    values = tuple(_read(literal) for literal in _LITERALS.findall(match["one"] or match["many"] or ""))
    if len({type(value) for value in values}) > 1:
        raise InvalidUsage(f"{shown(text)} mixes types", hint="use literals of one type")
    return Predicate(match["column"], values)


def _read(literal: str) -> Value:
    if literal.startswith("'"):
        return literal[1:-1].replace("''", "'")
    if literal.lower() in ("true", "false"):
        return literal.lower() == "true"
    return int(literal)


def _written(value: Value) -> str:
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return str(value).lower()


# Models and their kinds of text.

TABLE_CHARACTERS_MAX: Final = 200
FROM_SOURCE: Final = "from_source"
"""As a schema: the columns come from the source, and so do the keys if none are given."""
SchemaChange = Literal["fail", "missing_as_null", "add_columns"]
_PART = r'(?:[^\x00-\x1f\x7f."\s](?:[^\x00-\x1f\x7f."]*[^\x00-\x1f\x7f."\s])?|"(?:[^\x00-\x1f\x7f"]|"")+")'
_TABLE = re.compile(rf"{_PART}(?:\.{_PART}){{0,2}}\Z")
"""Up to three names with dots between them; a name with a dot or a quote in it must be quoted, as in SQL."""
_PRESETS = {"@once", "@continuous", "@hourly", "@daily", "@weekly", "@monthly", "@quarterly", "@yearly"}
_CRON_FIELDS = (("minute", 0, 59), ("hour", 0, 23), ("day", 1, 31), ("month", 1, 12), ("weekday", 0, 7))
_CRON_NAMES = {
    "month": ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"],
    "weekday": ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"],
}
_CRON_ITEM = re.compile(r"(?:\*|(\w{1,3})(?:-(\w{1,3}))?)(?:/([1-9]\d{0,2}))?", re.ASCII)


class Model(BaseModel):
    """Frozen and strict: values are not converted to other types, and unknown keys are refused."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        arbitrary_types_allowed=True,
        hide_input_in_errors=True,
        defer_build=True,  # The first use builds one validator for the whole file; an import builds none.
    )

    @model_validator(mode="before")
    @classmethod
    def _tuples(cls, value: Any) -> Any:
        # JSON has lists, but a frozen value needs tuples, and strict mode does not convert.
        if not isinstance(value, dict):
            return value
        return {key: tuple(item) if isinstance(item, list) else item for key, item in value.items()}


class ModelCache:
    """A cache in a model that follows from the fields; it does not affect equality."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


def checked(check: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A validator that reports `InvalidUsage` with its fact and hint."""

    def run(value: Any) -> Any:
        try:
            return check(value)
        except InvalidUsage as error:
            raise refused(error) from None

    return run


def _column(value: str) -> str:
    if not COLUMN_NAME.match(value):
        hint = "use a letter or _, then letters, digits and _, 128 at most"
        raise InvalidUsage(f"{shown(value)} is not a column name", hint=hint)
    return value


def _table(value: str) -> str:
    if len(value) > TABLE_CHARACTERS_MAX or not _TABLE.match(value):
        hint = 'write table or schema.table, with quotes around a name that has a dot: schema."my.table"'
        raise InvalidUsage(f"{shown(value)} is not a table name", hint=hint)
    return value


def parts_of(table: str) -> int:
    """How many names a table's name has: `schema.table` has two."""
    return 1 + re.sub(r'"(?:[^"]|"")*"', "", table).count(".")


def is_pattern(table: str) -> bool:
    return "*" in table or "?" in table


def _shard(value: str) -> str:
    if checked_name(value, what="shard") == QUARANTINE:
        hint = "rejected records go there; choose another"
        raise InvalidUsage(f"shard name {value!r} is taken", hint=hint)
    return value


def _text_of(kind: type, parse: Callable[[str], Any]) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if isinstance(value, kind):
            return value
        if not isinstance(value, str):
            raise InvalidUsage(f"expected text, found {shown(value)}", hint="put it in quotes")
        return parse(value)

    return checked(read)


def _declared(text: str) -> Schema:
    if text == FROM_SOURCE:
        hint = "list the table under tables.include, and its settings under tables.overrides"
        raise InvalidUsage(f"schema: {FROM_SOURCE} is for the tables of `tables`, not for shards", hint=hint)
    return parse_schema(text)


def _schedule(value: str | None) -> str | None:
    if value is None or value.lower() == "none":
        return None
    if value in _PRESETS:
        return value
    fields = value.split()
    if len(value) > 100 or len(fields) != len(_CRON_FIELDS):
        hint = f"write five cron fields, or one of {', '.join(sorted(_PRESETS))}, or null"
        raise InvalidUsage(f"{shown(value)} is not a schedule", hint=hint)
    for text, (what, low, high) in zip(fields, _CRON_FIELDS, strict=True):
        names = _CRON_NAMES.get(what, [])
        if not all(_is_cron_item(item, low, high, names) for item in text.split(",")):
            named = f" or {names[0]} to {names[-1]}" if names else ""
            hint = f"use *, {low} to {high}{named}, ranges a-b, lists a,b and steps /n"
            raise InvalidUsage(f"{shown(text)} is not a cron {what}", hint=hint)
    days_max = max(monthrange(2000, month)[1] for month in _cron_values(fields, "month"))
    if min(_cron_values(fields, "day")) > days_max:
        raise InvalidUsage(
            f"no date ever matches {shown(value)}", hint="use a day that one of the months has"
        )
    return value


def _is_cron_item(item: str, low: int, high: int, names: Sequence[str]) -> bool:
    match = _CRON_ITEM.fullmatch(item)
    if match is None:
        return False
    ends = [end for end in match.groups()[:2] if end is not None]
    return all(low <= int(end) <= high if end.isdecimal() else end.upper() in names for end in ends)


def _cron_values(fields: Sequence[str], wanted: str) -> Iterator[int]:
    """The values that a field selects. A range may run past the end of the year or month, such as 11-2."""
    index = [what for what, *_ in _CRON_FIELDS].index(wanted)
    _, low, high = _CRON_FIELDS[index]
    names = _CRON_NAMES.get(wanted, [])
    for item in fields[index].split(","):
        start, end, step = _CRON_ITEM.fullmatch(item).groups()  # type: ignore[union-attr]
        end = end or (start if start and not step else str(high))
        first, last = (
            int(text) if text.isdecimal() else low + names.index(text.upper())
            for text in (start or str(low), end)
        )
        every = range(first, last + 1) if first <= last else (*range(first, high + 1), *range(low, last + 1))
        yield from every[:: int(step or 1)]


PipelineName = Annotated[str, AfterValidator(checked(lambda value: checked_name(value, what="pipeline")))]
ShardName = Annotated[str, AfterValidator(checked(_shard))]
ColumnName = Annotated[str, AfterValidator(checked(_column))]
TablePattern = Annotated[str, AfterValidator(checked(_table))]
Schedule = Annotated[str | None, AfterValidator(checked(_schedule))]
SchemaText = Annotated[
    Schema,
    BeforeValidator(_text_of(Schema, _declared)),
    PlainSerializer(lambda schema: schema.ddl, return_type=str),
]
TableSchemaText = Annotated[
    Schema | str,
    BeforeValidator(_text_of(Schema, lambda text: text if text == FROM_SOURCE else parse_schema(text))),
    PlainSerializer(lambda found: found if isinstance(found, str) else found.ddl, return_type=str),
]
"""A declared schema, or the word `from_source`."""
PredicateText = Annotated[
    Predicate,
    BeforeValidator(_text_of(Predicate, parse_predicate)),
    PlainSerializer(lambda predicate: predicate.text, return_type=str),
]
