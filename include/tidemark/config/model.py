"""The effective configuration of a pipeline: its file with defaults and environment applied.

A `PipelineConfig` is always valid: every rule is checked when it is made, from a file or from the copy that
a binding recorded. `canonical_json` is that copy: stable, complete and without secrets. Relative paths stay
as written, so moving a project does not change its fingerprint.

The rules between a pipeline's settings are here too: unsupported combinations fail at definition (Invariant
14).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, PrivateAttr, ValidationError, model_validator

from tidemark.config.base import (
    FROM_SOURCE,
    Model,
    ModelCache,
    PipelineName,
    Schedule,
    checked,
    is_pattern,
    parts_of,
)
from tidemark.config.document import Flaw, raise_flaws, shown
from tidemark.config.kafka import KafkaSource
from tidemark.config.schema import Array, DataType, Map, Schema, Struct
from tidemark.config.shard import Route, ShardConfig, Tables, shard_name_of
from tidemark.config.source import Debezium, PostgresSource, SourceConfig
from tidemark.config.storage import WAREHOUSE, checked_path, default_root, is_uri, resolved
from tidemark.core.errors import InvalidUsage
from tidemark.core.ids import ShardId
from tidemark.core.shape import Shape
from tidemark.core.status import BEHIND, CANDIDATE, QUARANTINE, REPLAYABLE, STALLED, WAL, Limits, limit


def _limit(kind: str) -> Callable[[str], str]:
    def check(value: str) -> str:
        limit(kind, value)
        return value

    return checked(check)


class Alarms(Model):
    """The limits of alarms as written: durations, a size, a share of records; null disables an alarm."""

    stalled: Annotated[str, AfterValidator(_limit(STALLED))] = "15m"
    behind: Annotated[str, AfterValidator(_limit(BEHIND))] | None = "2d"
    wal: Annotated[str, AfterValidator(_limit(WAL))] | None = "10GB"
    replayable: Annotated[str, AfterValidator(_limit(REPLAYABLE))] | None = "2d"
    quarantine: Annotated[str, AfterValidator(_limit(QUARANTINE))] | None = "5%"
    candidate: Annotated[str, AfterValidator(_limit(CANDIDATE))] | None = "2d"

    @property
    def limits(self) -> Limits:
        given: dict[str, Any] = {}
        for kind in type(self).model_fields:
            value = getattr(self, kind)
            given |= limit(kind, value) if value is not None else {}
        return Limits(**given)


CAPTURED = "_captured"
"""The folder for changes that the source can't send again; no shard can have this name."""

SHADOWS = "_generations"
"""The folder of the shadow folders of candidate generations."""

Days = Annotated[int, Field(ge=1, le=36_500)]
Count = Annotated[int, Field(ge=1, le=2**53)]
FilesPerTransaction = Annotated[int, Field(ge=1, le=100_000)]
"""A transaction names its files in one record, with about 170 bytes each."""


class Transaction(Model):
    """Limits for the size of a transaction; a single file above them is a transaction of its own."""

    max_records: Count | None = None
    max_files: FilesPerTransaction = 10_000
    max_bytes: Count = 4 * 1024**3


class Retention(Model):
    """Retention in days; None keeps everything. Leases and the published txn are always respected."""

    log_days: Days | None = None
    quarantine_days: Days | None = None
    state_history_days: Days = 7
    data_docs_days: Days | None = 90


class _Lookup(ModelCache):
    """Indexes of shards by name, and of the first shard by table."""

    def __init__(self, shards: tuple[ShardConfig, ...]) -> None:
        self.shards = shards
        self.names = {shard.name: at for at, shard in enumerate(shards)}
        self.tables: dict[str, int] = {}
        for at, shard in enumerate(shards):
            if shard.route is not None and shard.route.table is not None:
                self.tables.setdefault(shard.route.table, at)


class PipelineConfig(Model):
    """One pipeline. Made by `load_pipeline`, or by `from_canonical_json` for a replay."""

    name: PipelineName
    schedule: Schedule = None
    source: SourceConfig
    envelope: Literal["upsert", "debezium", "append"] = "upsert"
    debezium: Debezium | None = None
    shards: tuple[ShardConfig, ...] = ()
    tables: Tables | None = None
    transaction: Transaction = Field(default_factory=Transaction)
    retention: Retention = Field(default_factory=Retention)
    alarms: Alarms = Field(default_factory=Alarms)
    on_red: Literal["ask", "fail"] = "fail"
    warehouse: Annotated[str, AfterValidator(checked(checked_path))] = WAREHOUSE
    generation: Annotated[int, Field(ge=0, le=2**31)] = 0

    _root: Path = PrivateAttr(default_factory=default_root)
    _shadow: str = PrivateAttr("")
    _lookup: _Lookup | None = PrivateAttr(None)

    @model_validator(mode="after")
    def _rules(self) -> Self:
        raise_flaws(pipeline_flaws(self))
        return self

    @property
    def root(self) -> Path:
        """The folder that contains all relative paths."""
        return self._root

    @property
    def warehouse_location(self) -> str:
        """The warehouse as an absolute path or a URI, checked on every access."""
        return resolved(self.warehouse, root=self._root)

    @property
    def tables_warehouse(self) -> str:
        """Where the folder of the pipeline's tables is: in the warehouse or, for a candidate generation, in
        its shadow folder."""
        place = self.warehouse_location
        return f"{place}/{self.name}/{SHADOWS}/{self._shadow}" if self._shadow else place

    @property
    def is_shadow(self) -> bool:
        """Whether this is the configuration of a candidate generation."""
        return bool(self._shadow)

    def shadowed(self, folder: str) -> Self:
        """The same configuration with its tables in a shadow folder; its source stays where it is."""
        copy = self.model_copy()
        copy._shadow = folder
        return copy

    @property
    def source_location(self) -> str:
        """The location of the source's records; for files an absolute path, checked on every access."""
        if isinstance(self.source, PostgresSource):
            return f"{self.warehouse_location}/{self.name}/{CAPTURED}"
        return self.source.located(self._root)

    def at(self, root: Path) -> Self:
        """The same configuration with another root."""
        copy = self.model_copy()
        copy._root = root
        return copy

    def setting_aside(self) -> Self:
        """The same configuration, with `quarantine` in place of `fail` for each expectation that single rows
        break; itself if there is none."""
        shards = tuple(shard.setting_aside() for shard in self.shards)
        return self if shards == self.shards else self.model_copy(update={"shards": shards})

    @property
    def records_are_typed(self) -> bool:
        """Whether records may have the types of their columns. For a database the answer is no: it is
        queried itself (`discovered_tables`)."""
        if isinstance(self.source, PostgresSource):
            return False
        return self.source.format in ("parquet", "avro") or (
            self.source.format == "json" and self.envelope == "debezium"
        )

    def grows(self, shard: ShardConfig) -> bool:
        """Whether the shard gets the columns that are new in its records."""
        return shard.on_schema_change == "add_columns" and self.records_are_typed

    @property
    def shapes(self) -> dict[ShardId, Shape]:
        """The shape of each shard: the columns of its log, and how its rows are folded."""
        return {ShardId(shard.name): self._shape(shard) for shard in self.shards}

    def _shape(self, shard: ShardConfig) -> Shape:
        columns = {column.name: column.type.ddl for column in shard.columns}
        if shard.error_column is not None:
            columns[shard.error_column] = "STRING"
        keys = () if self.envelope == "append" else shard.keys
        not_null = frozenset(column.name for column in shard.columns if not column.nullable) & {*keys}
        return Shape(columns, keys, shard.sequence_by or "", not_null, self.grows(shard))

    @property
    def _looked_up(self) -> _Lookup:
        """The lookup for the current shards; a model copy with other shards inherits an outdated one."""
        if self._lookup is None or self._lookup.shards is not self.shards:
            self._lookup = _Lookup(self.shards)
        return self._lookup

    def shard(self, name: str) -> ShardConfig:
        """The shard with this name. Raises `InvalidUsage` if there is none."""
        found = self._looked_up.names.get(name)
        if found is not None:
            return self.shards[found]
        known = ", ".join(shard.name for shard in self.shards)
        raise InvalidUsage(f"pipeline {self.name!r} has no shard {name!r}", hint=f"it has {known}")

    @property
    def only_shard(self) -> ShardConfig:
        """The only shard. Raises `InvalidUsage` if there are several."""
        if len(self.shards) == 1:
            return self.shards[0]
        known = ", ".join(shard.name for shard in self.shards) or "those of its tables"
        raise InvalidUsage(f"pipeline {self.name!r} has several shards", hint=f"choose one: {known}")

    def shard_for_table(self, table: str) -> ShardConfig | None:
        """The shard of a table's records; None if the table is not included, or if only its source can
        describe it."""
        tables = self._looked_up.tables
        found = [tables[name] for name in (table, table.rpartition(".")[2]) if name in tables]
        if found:
            return self.shards[min(found)]
        if self.tables is None or not self.tables.takes(table) or self.tables.asks_source(table):
            return None
        return ShardConfig.model_validate(self.table_settings(table))

    def table_settings(self, table: str) -> dict[str, Any]:
        """The settings for the shard of an included table, as in a pipeline file."""
        given = self.tables.settings_of(table) if self.tables is not None else {}
        return {"name": shard_name_of(table), "route": {"table": table}, **given}

    def canonical_json(self) -> str:
        """The effective configuration as text: equal texts are equal configurations. Alarms and `on_red` do
        not affect rows, so they are left out."""
        return json.dumps(
            self.model_dump(mode="json", by_alias=True, exclude={"alarms", "on_red"}),
            sort_keys=True,
            separators=(",", ":"),
            ensure_ascii=False,
        )

    @classmethod
    def from_canonical_json(cls, text: str, *, root: Path | None = None) -> Self:
        """The configuration that a binding recorded, checked like a new one."""
        try:
            config = cls.model_validate_json(text)
        except ValidationError as error:
            facts = "; ".join(str(item["msg"]) for item in error.errors(include_input=False)[:5])
            raise InvalidUsage(
                f"the recorded configuration can't be used: {facts}",
                hint="it was recorded by another version of tidemark; use that version for the replay",
            ) from None
        return config.at(root) if root is not None else config


_NESTED = ("ARRAY", "MAP", "STRUCT")


def pipeline_flaws(config: PipelineConfig) -> Iterator[Flaw]:
    """Every broken rule, with the path of the setting that breaks it."""
    yield from _shard_list_flaws(config)
    yield from _envelope_flaws(config)
    yield from _route_flaws(config)
    yield from _format_flaws(config)
    yield from _postgres_flaws(config)
    yield from _debezium_flaws(config)


def _shard_list_flaws(config: PipelineConfig) -> Iterator[Flaw]:
    if not config.shards and config.tables is None:
        yield Flaw(
            ("shards",), "the pipeline has no shard", "list at least one under shards, or under tables"
        )
    first: dict[str, int] = {}
    for index, shard in enumerate(config.shards):
        if shard.name in first:
            hint = f"shards[{first[shard.name]}] has it already"
            yield Flaw(("shards", index, "name"), f"shard name {shard.name!r} is used twice", hint)
        first.setdefault(shard.name, index)
    yield from _table_flaws(config)


def _table_flaws(config: PipelineConfig) -> Iterator[Flaw]:
    if config.tables is None:
        return
    lists_tables = config.source.lists_tables
    for index, table in enumerate(config.tables.include):
        path = ("tables", "include", index)
        if is_pattern(table) and not lists_tables:
            hint = "list the tables by name; patterns work in overrides and exclude"
            fact = (
                f"a {config.source.type} source can't list its tables, so the pattern {table!r} can't"
                " be resolved"
            )
            yield Flaw(path, fact, hint)
        elif is_pattern(table) and not config.tables.asks_for_any:
            hint = f"write defaults: {{schema: {FROM_SOURCE}}}, or name the tables with their schemas"
            yield Flaw(path, f"the tables of {table!r} have no schema", hint)
        elif not is_pattern(table) and config.source.type == "postgres" and table.count(".") != 1:
            yield Flaw(path, f"table {table!r} has no schema before its name", "write schema.table")
    for index, override in enumerate(config.tables.overrides):
        if override.columns == FROM_SOURCE and not lists_tables:
            fact = f"a {config.source.type} source can't describe the columns of its tables"
            yield Flaw(("tables", "overrides", index, "schema"), fact, "write the schema as DDL")


def _envelope_flaws(config: PipelineConfig) -> Iterator[Flaw]:
    for index, shard in enumerate(config.shards):
        path = ("shards", index)
        if config.envelope != "append" and not shard.keys:
            hint = "list the columns that identify a row, or use envelope: append"
            yield Flaw((*path, "keys"), f"envelope {config.envelope} needs keys", hint)
        if config.envelope == "append" and shard.sequence_by is not None:
            yield Flaw((*path, "sequence_by"), "envelope append keeps every record, in no order", "remove it")
        if config.envelope != "upsert" and shard.apply_as_deletes is not None:
            keeps = config.envelope == "append"
            why = "append keeps every record" if keeps else "debezium marks its own deletions"
            fact = f"apply_as_deletes needs envelope upsert, {why}"
            yield Flaw((*path, "apply_as_deletes"), fact, "remove it")


def _route_flaws(config: PipelineConfig) -> Iterator[Flaw]:
    seen = _Taken()
    columns: set[str] = set()
    for index, shard in enumerate(config.shards):
        path = ("shards", index, "route")
        route = shard.route
        if route is None:
            if len(config.shards) > 1 or config.tables is not None:
                hint = "add {column: …, equals: …} or {table: …}"
                yield Flaw(
                    path, f"shard {shard.name!r} needs a route, because there are several shards", hint
                )
            continue
        if route.table is not None and config.envelope != "debezium":
            hint = "use {column: …, equals: …}"
            yield Flaw((*path, "table"), f"records of envelope {config.envelope} name no table", hint)
        if route.column is not None:
            columns.add(route.column)
            if config.envelope == "debezium":
                hint = "use {table: …}; a deletion may carry no other columns than its key"
                yield Flaw((*path, "column"), "debezium records are routed by their table", hint)
            elif len(columns) > 1:
                hint = f"route all shards by one column, so that no record fits two: {sorted(columns)}"
                yield Flaw((*path, "column"), f"routes use different columns: {shown(route.column)}", hint)
        other = seen.take(route, index)
        if other is not None:
            yield Flaw(path, f"shards[{other}] takes the same records", "make the routes differ")


class _Taken:
    """The records that each shard takes. A route to `orders` matches the records of `public.orders` too, so
    a table is compared by every suffix of its name."""

    def __init__(self) -> None:
        self._whole: dict[Hashable, int] = {}
        self._ends: dict[Hashable, int] = {}

    def take(self, route: Route, index: int) -> int | None:
        """Register a shard's route. Returns an earlier shard that takes some of the same records, if there
        is one."""
        if route.table is None:
            key = (route.column, type(route.equals).__name__, route.equals)
            other = self._whole.setdefault(key, index)
            return other if other != index else None
        parts = route.table.split(".")
        ends = [tuple(parts[at:]) for at in range(len(parts))]
        found = [self._whole[end] for end in ends if end in self._whole]
        found += [self._ends[ends[0]]] if ends[0] in self._ends else []
        self._whole.setdefault(ends[0], index)
        for end in ends:
            self._ends.setdefault(end, index)
        return min(found, default=None)


def _format_flaws(config: PipelineConfig) -> Iterator[Flaw]:
    if config.source.type == "kafka":
        yield from _kafka_flaws(config, config.source)
        return
    if config.source.format != "csv":
        return
    if config.envelope == "debezium":
        yield Flaw(("envelope",), "csv can't hold a debezium envelope", "use format: json or parquet")
    for index, shard in enumerate(config.shards):
        path = ("shards", index)
        nested = [column.name for column in shard.columns if column.type.name in _NESTED]
        if nested:
            fact = f"csv can't hold nested columns: {shown(', '.join(nested))}"
            yield Flaw((*path, "schema"), fact, "use format: json or parquet, or a STRING column")
        if config.source.csv_options.header:
            continue
        if shard.on_schema_change != "fail":
            fact = "csv without a header has no column names that could be new or missing"
            yield Flaw((*path, "on_schema_change"), fact, "use on_schema_change: fail")
        condition = shard.apply_as_deletes
        if condition is not None and shard.columns.get(condition.column) is None:
            fact = f"csv without a header has no column {condition.column!r} beside the schema's"
            yield Flaw((*path, "apply_as_deletes"), fact, "declare it in the schema")
        column = shard.route.column if shard.route else None
        if column is not None and shard.columns.get(column) is None:
            fact = f"csv without a header has no column {column!r} beside the schema's"
            yield Flaw((*path, "route", "column"), fact, "declare it in the schema")


def _kafka_flaws(config: PipelineConfig, source: KafkaSource) -> Iterator[Flaw]:
    for index, shard in enumerate(config.shards):
        if source.has_single_key and len(shard.keys) > 1:
            kind = "a string" if source.key_format == "string" else "a single value"
            fact = f"{kind} is one key column, but shard {shard.name!r} has {len(shard.keys)}"
            hint = f"use keys with several fields, or one key in shards[{index}]"
            yield Flaw(("source", "key_format"), fact, hint)
    for name in source.headers:
        path = ("source", "headers", name)
        found = [shard.columns.get(name) for shard in config.shards]
        columns = [column for column in found if column is not None]
        if not columns and config.tables is None:
            yield Flaw(path, f"no shard has the column {name!r} for a header", "declare it as STRING")
        if any(column.type.name != "STRING" for column in columns):
            fact = f"a header is a text, and column {name!r} is not a STRING"
            yield Flaw(path, fact, "declare it as STRING")
        if any(name in shard.keys for shard in config.shards):
            fact = f"column {name!r} is a key, and a deletion is found by its record's key"
            yield Flaw(path, fact, "give the header a column of its own")


def _postgres_flaws(config: PipelineConfig) -> Iterator[Flaw]:
    if config.source.type != "postgres":
        return
    if config.envelope != "debezium":
        fact = f"changes of a database are captured as debezium records, not {config.envelope}"
        yield Flaw(("envelope",), fact, "write envelope: debezium")
    if is_uri(config.warehouse):
        fact = "captured changes need a local or mounted warehouse"
        yield Flaw(("warehouse",), fact, "changes of a slot can't be captured into an object store")
    for index, shard in enumerate(config.shards):
        if shard.sequence_by is not None:
            fact = "a replication slot has its own order, and its deletions carry no sequence"
            yield Flaw(("shards", index, "sequence_by"), fact, "remove sequence_by")
        table = shard.route.table if shard.route is not None else None
        if table is None or parts_of(table) != 2:
            fact = f"shard {shard.name!r} does not name its table"
            hint = "write route: {table: schema.table}, with the schema"
            yield Flaw(("shards", index, "route"), fact, hint)


def _debezium_flaws(config: PipelineConfig) -> Iterator[Flaw]:
    """Settings without effect, and a missing setting that is required."""
    if config.debezium is not None and config.envelope != "debezium":
        fact = f"debezium settings with envelope: {config.envelope}"
        yield Flaw(("debezium",), fact, "write envelope: debezium, or remove them")
    if config.debezium is not None and config.source.type == "postgres":
        fact = "changes captured from a database do not come from a connector"
        yield Flaw(("debezium",), fact, "remove the debezium settings")
    is_set = config.debezium is not None and config.debezium.decimal_handling_mode is not None
    read_as_text = config.source.type != "postgres" and config.source.format == "json"
    if config.envelope != "debezium" or is_set or not read_as_text:
        return
    tables = config.tables.overrides if config.tables is not None else ()
    places = [
        *((("shards", index, "schema"), shard.columns) for index, shard in enumerate(config.shards)),
        *((("tables", "overrides", index, "schema"), table.columns) for index, table in enumerate(tables)),
    ]
    for path, columns in places:
        named = [c.name for c in columns if _has_decimal(c.type)] if isinstance(columns, Schema) else []
        if named:
            fact = f"column {named[0]!r} is a DECIMAL, and debezium.decimal_handling_mode is not set"
            hint = "write debezium: {decimal_handling_mode: precise}, or the connector's mode"
            yield Flaw(path, fact, hint)


def _has_decimal(kind: DataType) -> bool:
    match kind:
        case Array():
            return _has_decimal(kind.element)
        case Map():
            return _has_decimal(kind.value)
        case Struct():
            return any(_has_decimal(field.type) for field in kind.fields)
    return kind.name == "DECIMAL"
