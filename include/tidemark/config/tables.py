"""Which tables a pipeline includes, and their settings by pattern."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal
from unicodedata import combining, normalize

from pydantic import Field, PrivateAttr

from tidemark.config.base import (
    FROM_SOURCE,
    ColumnName,
    Model,
    ModelCache,
    PredicateText,
    SchemaChange,
    ShardName,
    TablePattern,
    TableSchemaText,
    is_pattern,
)
from tidemark.config.shard import Expectation, Publish


class ShardSettings(Model):
    """Optional settings of a shard: `defaults`, and the `overrides` of tables."""

    columns: TableSchemaText | None = Field(default=None, alias="schema")
    keys: tuple[ColumnName, ...] | None = None
    sequence_by: ColumnName | None = None
    lateness: Annotated[int, Field(ge=0, le=2**53)] | None = None
    max_advance: Annotated[int, Field(ge=1, le=2**53)] | None = None
    apply_as_deletes: PredicateText | None = None
    on_schema_change: SchemaChange | None = None
    on_error: Literal["quarantine", "fail", "inline"] | None = None
    error_column: ColumnName | None = None
    publish: Publish | None = None
    change_data_feed: bool | None = None
    deletion_vectors: bool | None = None
    masked: tuple[ColumnName, ...] | None = None
    expectations: tuple[Expectation, ...] | None = None


class TableOverride(ShardSettings):
    """Settings for the tables that match; a later override wins over an earlier one."""

    match: TablePattern
    name: ShardName | None = None

    def applies_to(self, table: str) -> bool:
        return matches_any(table, (self.match,))


class _Included(ModelCache):
    """Table patterns with fast lookup of plain names."""

    def __init__(self, given: tuple[str, ...]) -> None:
        self.given = given
        self._names = frozenset(one for one in given if not is_pattern(one))
        self._patterns = tuple(one for one in given if is_pattern(one))

    def has(self, table: str) -> bool:
        return table in self._names or matches_any(table, self._patterns)


class Tables(Model):
    """The included tables. A table that is both included and excluded is excluded, and its records are
    ignored."""

    include: Annotated[tuple[TablePattern, ...], Field(min_length=1)]
    exclude: tuple[TablePattern, ...] = ()
    overrides: tuple[TableOverride, ...] = ()

    _included: _Included | None = PrivateAttr(None)

    def takes(self, table: str) -> bool:
        if self._included is None or self._included.given is not self.include:
            self._included = _Included(self.include)
        return self._included.has(table) and not self.ignores(table)

    def ignores(self, table: str) -> bool:
        return matches_any(table, self.exclude)

    def settings_of(self, table: str) -> dict[str, Any]:
        """The settings of all matching overrides for a table, by the names of a pipeline file."""
        settings: dict[str, Any] = {}
        for override in self.overrides:
            if override.applies_to(table):
                settings |= override.model_dump(by_alias=True, exclude_none=True, exclude={"match"})
        return settings

    @property
    def asks_for_any(self) -> bool:
        """Whether any table takes its columns from the source."""
        return any(override.columns == FROM_SOURCE for override in self.overrides)

    def asks_source(self, table: str) -> bool:
        """Whether the table is included and takes its columns from the source."""
        if not self.asks_for_any:
            return False
        return self.takes(table) and self.settings_of(table).get("schema") == FROM_SOURCE


def matches_any(table: str, patterns: tuple[str, ...]) -> bool:
    """Whether the table matches one of the patterns: `*` is any run of characters, `?` is one."""
    return any(fnmatchcase(table, glob_of(pattern)) for pattern in patterns)


def glob_of(pattern: str) -> str:
    """The pattern for `fnmatch`, in which brackets are special."""
    return pattern.replace("[", "[[]")


def shard_name_of(table: str) -> str:
    """The default shard name of a table: `public.orders` becomes `public__orders`. Accents are removed, and
    characters that a name can't have become `_`."""
    letters = "".join(one for one in normalize("NFKD", table.lower()) if not combining(one))
    plain = re.sub(r"[^a-z0-9_]", "_", letters.replace(".", "__").replace('"', ""))
    return plain if plain[:1].isalpha() else f"t{plain}"
