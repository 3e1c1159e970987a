"""Table schemas as frozen values, and the parser for their DDL.

`parse_schema("id BIGINT NOT NULL, tags ARRAY<STRING>")` returns a `Schema`. It reads a subset of Spark's
DDL, without Spark, and refuses everything else, so the result is safe to pass to an engine. Each schema has
one canonical DDL.

Restrictions: column names are letters, digits and _; names that differ only in case are refused, because
Spark treats them as equal; names that Tidemark, Delta's change data feed or Spark's file reader add are
reserved.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from tidemark.config.document import COLUMN_NAME, nearest, shown
from tidemark.core.errors import InvalidUsage

RESERVED: Final = frozenset(
    {"_txn", "_op", "_partition", "_offset", "_ordinal", "_shard", "_key", "_raw", "_reason"}
    | {"_change_type", "_commit_version", "_commit_timestamp"}  # Delta's change data feed
    | {"_metadata"}  # Spark's file reader
)
INTEGERS: Final = frozenset({"TINYINT", "SMALLINT", "INT", "BIGINT"})
FLOATS: Final = frozenset({"FLOAT", "DOUBLE"})
TIMESTAMPS: Final = frozenset({"TIMESTAMP", "TIMESTAMP_NTZ"})
SCALARS: Final = INTEGERS | FLOATS | TIMESTAMPS | {"BOOLEAN", "STRING", "BINARY", "DATE"}
TYPES: Final = SCALARS | {"DECIMAL", "ARRAY", "STRUCT", "MAP"}


@dataclass(frozen=True, slots=True)
class Scalar:
    """A type without parameters, by its canonical name."""

    name: str

    @property
    def ddl(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Decimal:
    """A decimal number; `name` is DECIMAL."""

    precision: int
    scale: int
    name: str = "DECIMAL"

    @property
    def ddl(self) -> str:
        return f"DECIMAL({self.precision},{self.scale})"


@dataclass(frozen=True, slots=True)
class Array:
    """A list of nullable elements."""

    element: DataType
    name: str = "ARRAY"

    @property
    def ddl(self) -> str:
        return f"ARRAY<{self.element.ddl}>"


@dataclass(frozen=True, slots=True)
class Map:
    """Keys to nullable values."""

    key: DataType
    value: DataType
    name: str = "MAP"

    @property
    def ddl(self) -> str:
        return f"MAP<{self.key.ddl},{self.value.ddl}>"


@dataclass(frozen=True, slots=True)
class Struct:
    """Named fields in order."""

    fields: tuple[Column, ...]
    name: str = "STRUCT"

    @property
    def ddl(self) -> str:
        return f"STRUCT<{','.join(field.ddl_with(':') for field in self.fields)}>"


DataType = Scalar | Decimal | Array | Map | Struct


@dataclass(frozen=True, slots=True)
class Column:
    """One column, or one field of a struct."""

    name: str
    type: DataType
    nullable: bool = True

    def ddl_with(self, separator: str) -> str:
        return f"`{self.name}`{separator}{self.type.ddl}{'' if self.nullable else ' NOT NULL'}"


@dataclass(frozen=True, slots=True)
class Schema:
    """The declared columns in declared order; `parse_schema` makes it."""

    columns: tuple[Column, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @property
    def ddl(self) -> str:
        """The canonical text; Spark and `parse_schema` read it back to the same columns."""
        return ", ".join(column.ddl_with(" ") for column in self.columns)

    def __iter__(self) -> Iterator[Column]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns)

    def get(self, name: str) -> Column | None:
        return next((column for column in self.columns if column.name == name), None)

    def widened(self, columns: Iterable[Column]) -> Schema:
        """The schema with the columns that it lacks added as nullable; existing rows are NULL in them."""
        new = [replace(column, nullable=True) for column in columns if self.get(column.name) is None]
        return Schema((*self.columns, *new))


# The DDL parser.

DDL_CHARACTERS_MAX: Final = 65_536
COLUMNS_MAX: Final = 2_000
DEPTH_MAX: Final = 16
PRECISION_MAX: Final = 38
SYNONYMS: Final = {
    "BYTE": "TINYINT", "SHORT": "SMALLINT", "INTEGER": "INT", "LONG": "BIGINT", "REAL": "FLOAT",
    "DEC": "DECIMAL", "NUMERIC": "DECIMAL", "TIMESTAMP_LTZ": "TIMESTAMP",
}  # fmt: skip

_TOKEN = re.compile(r"\s*(?:(?P<word>[^\W\d]\w*)|`(?P<quoted>[^`]*)`|(?P<number>[0-9]+)|(?P<mark>[<>(),:]))")


class SchemaInvalid(InvalidUsage):
    """The DDL is not supported. `offset` is the position in the text."""

    def __init__(self, fact: str, *, hint: str = "", offset: int = 0) -> None:
        super().__init__(fact, hint=hint)
        self.offset = offset


def parse_schema(text: str) -> Schema:
    """The schema that a DDL text declares. Raises `SchemaInvalid`."""
    if len(text) > DDL_CHARACTERS_MAX:
        raise SchemaInvalid(
            f"the schema has {len(text)} characters, {DDL_CHARACTERS_MAX} at most", hint="split the table"
        )
    parser = _Parser(text)
    columns = parser.columns(separator="", depth=0)
    parser.end()
    for column, offset in columns:
        if column.name.lower() in RESERVED:
            raise SchemaInvalid(
                f"column name {column.name!r} is reserved", hint="choose another name", offset=offset
            )
    return Schema(tuple(column for column, _ in columns))


class _Parser:
    """Recursive descent over the tokens; the depth is bounded."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._advance()

    def _advance(self) -> None:
        match = _TOKEN.match(self._text, self._at)
        if match is None:
            rest = self._text[self._at :].lstrip()
            self.start = len(self._text) - len(rest)
            if rest:
                fact = f"character {rest[0]!r} has no meaning in a schema"
                raise SchemaInvalid(fact, hint="write name TYPE, …", offset=self.start)
            self.kind, self.value = "end", "end of the schema"
            return
        self.kind = str(match.lastgroup)
        self.value = match[self.kind]
        self.start = match.start(self.kind)
        self._at = match.end()

    def _fail(self, wanted: str, hint: str = "write: name TYPE [NOT NULL], …") -> SchemaInvalid:
        return SchemaInvalid(f"expected {wanted}, found {shown(self.value)}", hint=hint, offset=self.start)

    def _take(self, mark: str) -> None:
        if self.kind != "mark" or self.value != mark:
            raise self._fail(repr(mark))
        self._advance()

    def _found(self, mark: str) -> bool:
        if self.kind == "mark" and self.value == mark:
            self._advance()
            return True
        return False

    def end(self) -> None:
        if self.kind != "end":
            hint = "remove COMMENT, DEFAULT and other clauses" if self.kind == "word" else ""
            raise self._fail("a comma or the end", hint=hint)

    def columns(self, *, separator: str, depth: int) -> list[tuple[Column, int]]:
        found: list[tuple[Column, int]] = []
        seen: set[str] = set()
        while True:
            start = self.start
            column = self._column(separator, depth)
            if column.name.lower() in seen:
                hint = "column names must differ in more than case"
                raise SchemaInvalid(f"column {column.name!r} is declared twice", hint=hint, offset=start)
            seen.add(column.name.lower())
            found.append((column, start))
            if len(found) > COLUMNS_MAX:
                raise SchemaInvalid(f"more than {COLUMNS_MAX} columns", hint="split the table", offset=start)
            if not self._found(","):
                return found

    def _column(self, separator: str, depth: int) -> Column:
        if self.kind not in ("word", "quoted"):
            raise self._fail("a column name")
        name, start = self.value, self.start
        if not COLUMN_NAME.match(name):
            raise SchemaInvalid(
                f"{shown(name)} is not a column name",
                hint="use a letter or _, then letters, digits and _, 128 at most",
                offset=start,
            )
        self._advance()
        if separator:
            self._found(separator)
        kind = self._type(depth)
        return Column(name, kind, nullable=not self._not_null())

    def _not_null(self) -> bool:
        if self.kind != "word" or self.value.upper() != "NOT":
            return False
        self._advance()
        if self.kind != "word" or self.value.upper() != "NULL":
            raise self._fail("NULL after NOT")
        self._advance()
        return True

    def _type(self, depth: int) -> DataType:
        if self.kind != "word":
            raise self._fail("a type", hint=f"one of {', '.join(sorted(TYPES))}")
        if depth > DEPTH_MAX:
            fact = f"types are nested more than {DEPTH_MAX} deep"
            raise SchemaInvalid(fact, hint="flatten them", offset=self.start)
        written, start = self.value.upper(), self.start
        name = SYNONYMS.get(written, written)
        if name not in TYPES:
            raise SchemaInvalid(f"{shown(self.value)} is not a type", hint=_type_hint(written), offset=start)
        self._advance()
        match name:
            case "DECIMAL":
                return self._decimal(start)
            case "ARRAY":
                self._take("<")
                element = self._type(depth + 1)
                self._take(">")
                return Array(element)
            case "MAP":
                self._take("<")
                key = self._type(depth + 1)
                self._take(",")
                value = self._type(depth + 1)
                self._take(">")
                return Map(key, value)
            case "STRUCT":
                self._take("<")
                fields = self.columns(separator=":", depth=depth + 1)
                self._take(">")
                return Struct(tuple(field for field, _ in fields))
        return Scalar(name)

    def _decimal(self, start: int) -> Decimal:
        if not self._found("("):
            return Decimal(10, 0)
        precision = self._number()
        scale = self._number() if self._found(",") else 0
        self._take(")")
        if not (1 <= precision <= PRECISION_MAX and 0 <= scale <= precision):
            raise SchemaInvalid(
                f"DECIMAL({precision},{scale}) is not possible",
                hint=f"precision 1 to {PRECISION_MAX}, scale 0 to the precision",
                offset=start,
            )
        return Decimal(precision, scale)

    def _number(self) -> int:
        if self.kind != "number" or len(self.value) > 4:
            raise self._fail("a small number")
        number = int(self.value)
        self._advance()
        return number


def _type_hint(written: str) -> str:
    if written in ("VARCHAR", "CHAR", "TEXT"):
        return "write STRING"
    return nearest(written, sorted(TYPES | set(SYNONYMS)), otherwise=f"one of {', '.join(sorted(TYPES))}")
