"""`apply_as_deletes`: the few SQL-looking conditions that mark a record as a deletion.

Read are `column = 'text'`, `column = 123`, `column = true`, `column IN ('a', 'b')` and `column IS NULL`.
The result is a value, not text: no SQL from a pipeline file ever reaches an engine.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from tidemark.config.text import COLUMN_NAME, shown
from tidemark.core.errors import InvalidUsage

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


@dataclass(frozen=True, slots=True)
class Predicate:
    """True for a record whose `column` is one of `values`, or is NULL when there are none.

    As in SQL, a NULL column equals no value. All values have one type."""

    column: str
    values: tuple[Value, ...] = ()

    @property
    def is_null(self) -> bool:
        return not self.values

    @property
    def type_name(self) -> str:
        """The type to read an undeclared column with."""
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

    def holds(self, value: object) -> bool:
        """What the condition says of one value of the column."""
        if self.is_null:
            return value is None
        return any(type(value) is type(known) and value == known for known in self.values)


def parse_predicate(text: str) -> Predicate:
    """The condition that the text spells, or `InvalidUsage`."""
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
