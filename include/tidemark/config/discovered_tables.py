"""Columns that are not in the pipeline file: schemas from the source, and columns that records add.

With `schema: from_source`, the source's description of a table is recorded beside its captured changes when
the table is first routed to a shard. From then on the record is the declared schema, as if it were in the
pipeline file: loading a pipeline does not query the database. With `on_schema_change: add_columns`, a shard
gets the columns that its table gets; after any other change, the table goes to a shard with another name.
Every binding has the whole configuration, so a replay does not need the record.

With `on_schema_change: add_columns`, a shard also gets new columns from its records. The pipeline file
declares the minimum. New columns are recorded in the shard's log before the first seal of a row that has
them, and count as declared from then on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from tidemark.config.model import PipelineConfig
from tidemark.config.schema import Column, Schema, parse_schema
from tidemark.config.shard import ShardConfig
from tidemark.core.errors import InvalidUsage, InvariantViolation
from tidemark.core.ids import ShardId

RECORD: Final = "tables.json"


@dataclass(frozen=True, slots=True)
class TableShape:
    """A table's columns, in types without loss, and its primary key."""

    table: str
    columns: Schema
    keys: tuple[str, ...]

    def widened(self, columns: Schema) -> TableShape:
        """The shape with the columns that it lacks added; existing rows are NULL in them."""
        return replace(self, columns=self.columns.widened(columns))


TableShapes = Mapping[str, TableShape]
"""By shard name."""


def record_file(config: PipelineConfig) -> Path:
    """The file that records the shapes of a pipeline's tables."""
    return Path(config.source_location) / RECORD


def recorded_shapes(config: PipelineConfig) -> TableShapes:
    """The recorded shapes; empty for a pipeline that declares all its schemas."""
    if not uses_source_schemas(config):
        return {}
    try:
        found = json.loads(record_file(config).read_text(encoding="utf-8"))
        return {shard: _shape(fields) for shard, fields in found.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, InvalidUsage) as error:
        raise InvariantViolation(
            f"the record of tables {record_file(config)} can't be read: {type(error).__name__}",
            hint="the file was changed by hand: restore it from a backup",
        ) from None


def shapes_text(shapes: TableShapes) -> str:
    """The shapes in the format of the record."""
    found = {
        shard: {"table": shape.table, "schema": shape.columns.ddl, "keys": shape.keys}
        for shard, shape in sorted(shapes.items())
    }
    return json.dumps(found, indent=1, ensure_ascii=False)


def uses_source_schemas(config: PipelineConfig) -> bool:
    """Whether the pipeline takes any schema from its source."""
    return config.tables is not None and config.tables.asks_for_any


def with_discovered_shards(config: PipelineConfig, shapes: TableShapes) -> PipelineConfig:
    """The configuration with one shard for each included table with a known shape, in the order of names,
    after the shards that the pipeline file declares."""
    if not uses_source_schemas(config):
        return config
    declared = [shard for shard in config.shards if not _is_described(config, shard)]
    discovered = [
        _shard(config, shapes[name]) for name in sorted(shapes) if _is_taken(config, name, shapes[name])
    ]
    with _refusals():
        return PipelineConfig.model_validate({**dict(config), "shards": (*declared, *discovered)}).at(
            config.root
        )


def _is_taken(config: PipelineConfig, shard: str, shape: TableShape) -> bool:
    asks = config.tables is not None and config.tables.asks_source(shape.table)
    return asks and config.table_settings(shape.table)["name"] == shard


def _shard(config: PipelineConfig, shape: TableShape) -> ShardConfig:
    """The shard of a described table; settings of the pipeline file override the description."""
    settings = {"keys": shape.keys, **config.table_settings(shape.table), "schema": shape.columns.ddl}
    with _refusals(f"table {shape.table}: "):
        return ShardConfig.model_validate(settings)


def _is_described(config: PipelineConfig, shard: ShardConfig) -> bool:
    table = shard.route.table if shard.route is not None else None
    return table is not None and config.tables is not None and config.tables.asks_source(table)


def _shape(fields: Mapping[str, Any]) -> TableShape:
    return TableShape(str(fields["table"]), parse_schema(fields["schema"]), tuple(fields["keys"]))


@contextmanager
def _refusals(of: str = "") -> Iterator[None]:
    try:
        yield
    except ValidationError as error:
        facts = "; ".join(str(item["msg"]) for item in error.errors(include_input=False)[:5])
        hint = "set it for this table under tables.overrides, or list the table under tables.exclude"
        raise InvalidUsage(f"{of}{facts}", hint=hint) from None


# Shards that get columns from their records.

Columns = Mapping[ShardId, Mapping[str, str]]
"""Column types as DDL, by shard and column name."""


def with_new_columns(config: PipelineConfig, columns: Columns) -> PipelineConfig:
    """The configuration with the new columns added to its growing shards. Raises `InvalidUsage` if a column
    can't be added."""
    new = {name: found for name in columns if (found := _new(config, name, columns[name]))}
    if not new:
        return config
    try:
        shards = tuple(_grown(shard, new.get(ShardId(shard.name), {})) for shard in config.shards)
        return PipelineConfig.model_validate({**dict(config), "shards": shards}).at(config.root)
    except (InvalidUsage, ValidationError) as error:
        why = error.fact if isinstance(error, InvalidUsage) else error.errors(include_input=False)[0]["msg"]
        named = "; ".join(f"{', '.join(map(repr, found))} of shard {name}" for name, found in new.items())
        raise InvalidUsage(
            f"new columns of the records can't be added, {named}: {why}",
            hint="correct the pipeline file, or rename the column at the producer",
        ) from None


def new_columns(declared: PipelineConfig, config: PipelineConfig) -> Columns:
    """The columns that the grown configuration has and the declared one lacks."""
    columns_declared = {shard.name: shard.columns for shard in declared.shards}
    found = {
        ShardId(shard.name): {
            c.name: c.type.ddl for c in shard.columns if columns_declared[shard.name].get(c.name) is None
        }
        for shard in config.shards
    }
    return {shard: columns for shard, columns in found.items() if columns}


def _new(config: PipelineConfig, name: ShardId, columns: Mapping[str, str]) -> dict[str, str]:
    """Those of the columns that a shard would add."""
    shard = next((shard for shard in config.shards if shard.name == name), None)
    if shard is None or not config.grows(shard):
        return {}
    known = {shard.error_column, *shard.columns.names}
    return {column: kind for column, kind in columns.items() if column not in known}


def _grown(shard: ShardConfig, columns: Mapping[str, str]) -> ShardConfig:
    if not columns:
        return shard
    wider = shard.columns.widened(_column(name, kind) for name, kind in columns.items())
    # The parser refuses reserved names and names that differ only in case.
    return ShardConfig.model_validate(
        {**shard.model_dump(by_alias=True), "schema": parse_schema(wider.ddl).ddl}
    )


def _column(name: str, kind: str) -> Column:
    (column,) = parse_schema(f"c {kind}").columns
    return Column(name, column.type)
