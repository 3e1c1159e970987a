"""The settings of one shard (one target table), their rules, and settings for tables by pattern."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Annotated, Any, Final, Literal
from unicodedata import combining, normalize

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    JsonValue,
    PrivateAttr,
    model_serializer,
    model_validator,
)

from tidemark.config import expectations
from tidemark.config.base import (
    FROM_SOURCE,
    ColumnName,
    Model,
    ModelCache,
    PredicateText,
    SchemaChange,
    SchemaText,
    ShardName,
    TablePattern,
    TableSchemaText,
    checked,
    is_pattern,
)
from tidemark.config.document import Flaw, nearest, raise_flaws, refused, shown
from tidemark.config.expectations import defaults_of
from tidemark.config.row_rules import broken_when
from tidemark.config.schema import FLOATS, INTEGERS, RESERVED, TIMESTAMPS, Column, Schema
from tidemark.core.errors import InvalidUsage

KEY_TYPES_REFUSED: Final = {
    **dict.fromkeys(FLOATS, "NaN and -0.0 make equality of such keys ambiguous; use DECIMAL or STRING"),
    **dict.fromkeys(("ARRAY", "MAP", "STRUCT"), "use a column with a plain value"),
}
SEQUENCE_TYPES: Final = INTEGERS | TIMESTAMPS | {"DATE", "DECIMAL", "STRING"}
LATENESS_UNITS: Final = {
    **dict.fromkeys(INTEGERS, "the sequence's own unit"),
    **dict.fromkeys(TIMESTAMPS, "seconds"),
    "DATE": "days",
}
DAYS_AHEAD_MAX: Final = 366
NUMBERS_AHEAD_MAX: Final = 2**31
ERROR_COLUMN: Final = "_error"
LITERAL_TYPES: Final = {"STRING": {"STRING"}, "BOOLEAN": {"BOOLEAN"}, "BIGINT": INTEGERS | {"DECIMAL"}}


def _route_value(value: Any) -> Any:
    if value is None or (isinstance(value, str | bool | int) and len(str(value)) <= 1_000):
        return value
    hint = "use text, an integer, true or false"
    raise refused(InvalidUsage(f"{shown(value)} can't be compared with", hint=hint))


class Route(Model):
    """The records of a shard: those whose `column` equals a value, or those of a `table`."""

    column: ColumnName | None = None
    equals: Annotated[Any, BeforeValidator(_route_value)] = None
    table: TablePattern | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> Route:
        by_column = self.column is not None and self.equals is not None and self.table is None
        by_table = self.table is not None and self.column is None and self.equals is None
        if not (by_column or by_table):
            hint = "write {column: …, equals: …} or {table: …}"
            raise_flaws(iter([Flaw((), "a route needs one column's value or one table", hint)]))
        if self.table is not None and is_pattern(self.table):
            hint = "write one table; patterns belong under `tables`"
            raise_flaws(iter([Flaw(("table",), f"{self.table!r} is a pattern", hint)]))
        return self


class Publish(Model):
    """When the log is published into the state: every N transactions, or only on request (`manual`, None)."""

    every_transactions: Annotated[int, Field(ge=1, le=1_000_000)] | None

    @model_validator(mode="before")
    @classmethod
    def _manual(cls, value: Any) -> Any:
        if value == "manual":
            return {"every_transactions": None}
        if isinstance(value, str) or value == {"every_transactions": None}:
            hint = "write manual, or {every_transactions: 10}"
            raise refused(InvalidUsage(f"{shown(value)} is not a publish policy", hint=hint))
        return value

    @model_serializer
    def _as_written(self) -> Any:
        every = self.every_transactions
        return "manual" if every is None else {"every_transactions": every}


def _listed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _listed(item) for key, item in value.items()}
    return [_listed(item) for item in value] if isinstance(value, list | tuple) else value


def _known_expectation(name: str) -> str:
    if name not in expectations.KNOWN:
        hint = nearest(
            name, expectations.KNOWN, otherwise="write one like expect_column_values_to_not_be_null"
        )
        raise InvalidUsage(f"{shown(name)} is not a known expectation", hint=hint)
    return name


class Expectation(Model):
    """One Great Expectations check of a transaction's staged rows, and the action on failure."""

    type: Annotated[str, AfterValidator(checked(_known_expectation))]
    kwargs: Annotated[dict[str, JsonValue], BeforeValidator(_listed)] = Field(default_factory=dict)
    action: Literal["warn", "quarantine", "pause", "fail"] = "fail"

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the check names, in any of Great Expectations' arguments."""
        single = (self.kwargs.get(name) for name in ("column", "column_A", "column_B"))
        several = [self.kwargs.get(name) for name in ("column_list", "column_set")]
        listed = [item for items in several if isinstance(items, list) for item in items]
        return tuple(name for name in (*single, *listed) if isinstance(name, str))

    @property
    def arguments(self) -> dict[str, Any]:
        """What the check was given, and the library's defaults for the rest."""
        return {**defaults_of(self.type), **self.kwargs}


class ShardConfig(Model):
    """One shard. `schema` in the file is `columns` here, because `BaseModel` has a `schema` method."""

    name: ShardName
    columns: SchemaText = Field(alias="schema")
    keys: tuple[ColumnName, ...] = ()
    sequence_by: ColumnName | None = None
    lateness: Annotated[int, Field(ge=0, le=2**53)] | None = None
    max_advance: Annotated[int, Field(ge=1, le=2**53)] | None = None
    apply_as_deletes: PredicateText | None = None
    route: Route | None = None
    on_schema_change: SchemaChange = "fail"
    on_error: Literal["quarantine", "fail", "inline"] = "quarantine"
    error_column: ColumnName | None = None
    publish: Publish = Field(default_factory=lambda: Publish(every_transactions=1))
    change_data_feed: bool = False
    deletion_vectors: bool = True
    masked: tuple[ColumnName, ...] = ()
    expectations: tuple[Expectation, ...] = ()

    @property
    def lateness_unit(self) -> str:
        """The unit of `lateness`, by the type of `sequence_by`; empty if it has none."""
        column = self.columns.get(self.sequence_by) if self.sequence_by else None
        return LATENESS_UNITS.get(column.type.name, "") if column else ""

    @property
    def lateness_number(self) -> int | None:
        """The lateness in the unit of the watermark: microseconds for times."""
        is_time = self.lateness_unit == "seconds"
        return self.lateness * 1_000_000 if self.lateness is not None and is_time else self.lateness

    @property
    def advance_max(self) -> int:
        """The maximum distance of a sequence above the watermark, in the unit of `lateness`. The default is
        more than any source advances in one transaction, unless the pipeline was paused for long."""
        if self.max_advance is not None:
            return self.max_advance
        lateness = self.lateness or 0
        match self.lateness_unit:
            case "seconds":
                return max(lateness, DAYS_AHEAD_MAX * 86_400)
            case "days":
                return max(lateness, DAYS_AHEAD_MAX)
            case _:
                return max(1_000 * lateness, NUMBERS_AHEAD_MAX)

    def setting_aside(self) -> ShardConfig:
        """This shard, with `quarantine` in place of `fail` for each expectation that single rows break."""
        if self.on_error == "fail":
            return self
        found = tuple(_set_aside(one, self.columns) for one in self.expectations)
        return self if found == self.expectations else self.model_copy(update={"expectations": found})

    @model_validator(mode="before")
    @classmethod
    def _error_column_by_default(cls, value: Any) -> Any:
        if isinstance(value, dict) and value.get("on_error") == "inline":
            return {**value, "error_column": value.get("error_column") or ERROR_COLUMN}
        return value

    @model_validator(mode="after")
    def _rules(self) -> ShardConfig:
        raise_flaws(shard_flaws(self))
        return self


def _set_aside(expectation: Expectation, columns: Schema) -> Expectation:
    if expectation.action != "fail":
        return expectation
    changed = expectation.model_copy(update={"action": "quarantine"})
    return expectation if any(_expectation_flaws(changed, columns)) else changed


def shard_flaws(shard: ShardConfig) -> Iterator[Flaw]:
    """Every broken rule between a shard's settings (Invariant 14: refused at definition)."""
    yield from _key_flaws(shard)
    yield from _sequence_flaws(shard)
    yield from _delete_flaws(shard)
    yield from _error_flaws(shard)
    for index, name in enumerate(shard.masked):
        yield from _known(shard.columns, name, ("masked", index))
    for index, expectation in enumerate(shard.expectations):
        path = ("expectations", index)
        for name in expectation.columns:
            yield from _known(shard.columns, name, (*path, "kwargs"))
        if expectation.action == "quarantine" and shard.on_error == "fail":
            yield Flaw(
                (*path, "action"),
                "with on_error: fail nothing is quarantined",
                "use fail, or on_error: quarantine",
            )
        yield from (
            replace(flaw, path=(*path, *flaw.path)) for flaw in _expectation_flaws(expectation, shard.columns)
        )


def _expectation_flaws(expectation: Expectation, columns: Schema) -> Iterator[Flaw]:
    quarantines = expectation.action == "quarantine"
    flaws = expectations.expectation_flaws(
        expectation.type, expectation.kwargs, expectation.columns, columns, quarantines=quarantines
    )
    found = list(flaws)
    yield from found
    if not quarantines or found:
        return
    try:
        condition = broken_when(expectation)
    except Exception as error:  # Any error here would fail every transaction at staging.
        why = error.fact if isinstance(error, InvalidUsage) else f"{type(error).__name__}: {error}"
        yield Flaw(
            ("kwargs",), f"{expectation.type} can't be decided row by row, {why}", "correct its arguments"
        )
    else:
        if condition is None:
            hint = "correct its arguments, or use warn, pause or fail"
            yield Flaw(("kwargs",), f"{expectation.type} can't be decided row by row", hint)


def _known(schema: Schema, name: str, path: tuple[str | int, ...]) -> Iterator[Flaw]:
    if schema.get(name) is None:
        known = shown(", ".join(schema.names), 200)
        hint = nearest(name, schema.names, otherwise=f"the columns are {known}")
        yield Flaw(path, f"{name!r} is not a column of the schema", hint)


def _key_flaws(shard: ShardConfig) -> Iterator[Flaw]:
    for index, key in enumerate(shard.keys):
        column = shard.columns.get(key)
        if key in shard.keys[:index]:
            yield Flaw(("keys", index), f"key {key!r} is listed twice", "remove one")
        if column is None:
            yield from _known(shard.columns, key, ("keys", index))
        elif column.type.name in KEY_TYPES_REFUSED:
            reason = KEY_TYPES_REFUSED[column.type.name]
            yield Flaw(("keys", index), f"key {key!r} is of type {column.type.name}", reason)


def _sequence_flaws(shard: ShardConfig) -> Iterator[Flaw]:
    if shard.max_advance is not None and shard.lateness is None:
        hint = "add lateness, or remove max_advance: without a lateness there is no watermark"
        yield Flaw(("max_advance",), "max_advance needs lateness", hint)
    if shard.sequence_by is None:
        if shard.lateness is not None:
            yield Flaw(("lateness",), "lateness needs sequence_by", "add sequence_by, or remove lateness")
        return
    column = shard.columns.get(shard.sequence_by)
    if column is None:
        yield from _known(shard.columns, shard.sequence_by, ("sequence_by",))
    elif column.type.name not in SEQUENCE_TYPES:
        hint = f"use a column of type {', '.join(sorted(SEQUENCE_TYPES))}"
        yield Flaw(("sequence_by",), f"{column.name!r} of type {column.type.name} has no usable order", hint)
    elif shard.lateness is not None and column.type.name not in LATENESS_UNITS:
        hint = "remove lateness (tombstones are then kept forever), or use a number or a time in sequence_by"
        yield Flaw(("lateness",), f"lateness can't be measured in {column.type.name}", hint)
    if shard.sequence_by in shard.keys:
        hint = "use another column: records of one key need different sequences"
        yield Flaw(("sequence_by",), f"{shard.sequence_by!r} is also a key", hint)


def _delete_flaws(shard: ShardConfig) -> Iterator[Flaw]:
    condition = shard.apply_as_deletes
    column = shard.columns.get(condition.column) if condition else None
    if condition is None or column is None or condition.is_null:
        return
    if column.type.name not in LITERAL_TYPES[condition.type_name]:
        fact = f"column {column.name!r} is {column.type.name}, compared with {shown(condition.values[0])}"
        yield Flaw(("apply_as_deletes",), fact, "compare with a literal of the column's type")


def _error_flaws(shard: ShardConfig) -> Iterator[Flaw]:
    name = shard.error_column
    if name is None:
        return
    if shard.on_error != "inline":
        yield Flaw(("error_column",), "error_column needs on_error: inline", "set on_error, or remove it")
        return
    if name.lower() in RESERVED:
        yield Flaw(("error_column",), f"error column {name!r} is reserved", "choose another name")
    if name.lower() in {column.name.lower() for column in shard.columns}:
        yield Flaw(("error_column",), f"error column {name!r} is also a data column", "choose another name")
    broken = [column.name for column in shard.columns if _must_be_set(column, shard.keys)]
    if broken:
        hint = "remove NOT NULL, or use on_error: quarantine"
        fact = f"inline errors leave NULL in NOT NULL columns: {shown(', '.join(broken))}"
        yield Flaw(("on_error",), fact, hint)


def _must_be_set(column: Column, keys: tuple[str, ...]) -> bool:
    return not column.nullable and column.name not in keys


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
