"""Table schemas as frozen values: columns, their types, and the one canonical DDL of each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

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
    """The declared columns in declared order; make it with `ddl.parse_schema`."""

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
        """With those of the columns that it doesn't have; rows that are there are NULL in them."""
        new = [replace(column, nullable=True) for column in columns if self.get(column.name) is None]
        return Schema((*self.columns, *new))
