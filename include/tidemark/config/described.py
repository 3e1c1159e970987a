"""Tables that their source describes (`schema: from_source`): their shapes, and the shards that they make.

What a source said of a table is recorded beside its captured changes when the table first goes to a shard,
and from then on that record is the declared schema, as if someone had written it into the pipeline file: the
database is not asked again to know what a pipeline is. With `on_schema_change: add_columns` a shard gets the
columns that its table gets; a table that has changed in any other way goes to a shard of another name. Every
binding has the whole configuration, so a replay doesn't need the record.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from tidemark.config.ddl import parse_schema
from tidemark.config.model import PipelineConfig
from tidemark.config.schema import Schema
from tidemark.config.shard import ShardConfig
from tidemark.core.errors import InvalidUsage, InvariantViolation

RECORD: Final = "tables.json"


@dataclass(frozen=True, slots=True)
class TableShape:
    """A table's columns, in types that lose nothing, and its own key."""

    table: str
    columns: Schema
    keys: tuple[str, ...]

    def widened(self, columns: Schema) -> TableShape:
        """With those of the columns that it doesn't have; rows that are there are NULL in them."""
        return replace(self, columns=self.columns.widened(columns))


Shapes = Mapping[str, TableShape]
"""By the name of the shard."""


def record_of(config: PipelineConfig) -> Path:
    """Where the shapes of a pipeline's tables are recorded."""
    return Path(config.source_location) / RECORD


def recorded_shapes(config: PipelineConfig) -> Shapes:
    """The shapes on record; none for a pipeline that declares all of its schemas."""
    if not is_described(config):
        return {}
    try:
        found = json.loads(record_of(config).read_text(encoding="utf-8"))
        return {shard: _shape(fields) for shard, fields in found.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, InvalidUsage) as error:
        raise InvariantViolation(
            f"the record of tables {record_of(config)} can't be read: {type(error).__name__}",
            hint="it was changed by hand: restore it from a backup",
        ) from None


def shapes_text(shapes: Shapes) -> str:
    """The shapes as they are recorded."""
    found = {
        shard: {"table": shape.table, "schema": shape.columns.ddl, "keys": shape.keys}
        for shard, shape in sorted(shapes.items())
    }
    return json.dumps(found, indent=1, ensure_ascii=False)


def is_described(config: PipelineConfig) -> bool:
    """Whether the pipeline leaves any schema to its source."""
    return config.tables is not None and config.tables.asks_for_any


def completed(config: PipelineConfig, shapes: Shapes) -> PipelineConfig:
    """The configuration with a shard for each table that it takes and whose shape is known, in the order of
    their names, behind those that the pipeline file declares."""
    if not is_described(config):
        return config
    declared = [shard for shard in config.shards if not _is_described(config, shard)]
    told = [_shard(config, shapes[name]) for name in sorted(shapes) if _is_taken(config, name, shapes[name])]
    with _refusals():
        return PipelineConfig.model_validate({**dict(config), "shards": (*declared, *told)}).at(config.root)


def _is_taken(config: PipelineConfig, shard: str, shape: TableShape) -> bool:
    asks = config.tables is not None and config.tables.asks_source(shape.table)
    return asks and config.table_settings(shape.table)["name"] == shard


def _shard(config: PipelineConfig, shape: TableShape) -> ShardConfig:
    """The shard of a table that its source describes, with the settings of the pipeline file over it."""
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
        hint = "set it for this table under tables.overrides, or name the table under tables.exclude"
        raise InvalidUsage(f"{of}{facts}", hint=hint) from None
