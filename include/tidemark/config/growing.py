"""Shards that get the columns of their records (`on_schema_change: add_columns`): what they have got so far.

The pipeline file declares what a shard has at least. Columns that came with records are on record in the
shard's log, before the first seal of a row that has them, and from then on they are declared as if someone
had written them into the pipeline file.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import ValidationError

from tidemark.config.ddl import parse_schema
from tidemark.config.model import PipelineConfig
from tidemark.config.schema import Column
from tidemark.config.shard import ShardConfig
from tidemark.core.errors import InvalidUsage
from tidemark.core.ids import ShardId

Columns = Mapping[ShardId, Mapping[str, str]]
"""The types of columns, as DDL, by shard and name."""


def grown(config: PipelineConfig, columns: Columns) -> PipelineConfig:
    """The configuration with those of the columns that its growing shards don't have; `InvalidUsage` where
    they can't have them."""
    new = {name: found for name in columns if (found := _new(config, name, columns[name]))}
    if not new:
        return config
    try:
        shards = tuple(_grown(shard, new.get(ShardId(shard.name), {})) for shard in config.shards)
        return PipelineConfig.model_validate({**dict(config), "shards": shards}).at(config.root)
    except (InvalidUsage, ValidationError) as error:
        said = error.fact if isinstance(error, InvalidUsage) else error.errors(include_input=False)[0]["msg"]
        named = "; ".join(f"{', '.join(map(repr, found))} of shard {name}" for name, found in new.items())
        raise InvalidUsage(
            f"new columns of the records can't be added, {named}: {said}",
            hint="mend the pipeline file, or rename the column where the records are made",
        ) from None


def added(declared: PipelineConfig, config: PipelineConfig) -> Columns:
    """What the shards of a grown configuration have and the declared one does not say."""
    said = {shard.name: shard.columns for shard in declared.shards}
    found = {
        ShardId(shard.name): {
            c.name: c.type.ddl for c in shard.columns if said[shard.name].get(c.name) is None
        }
        for shard in config.shards
    }
    return {shard: columns for shard, columns in found.items() if columns}


def _new(config: PipelineConfig, name: ShardId, columns: Mapping[str, str]) -> dict[str, str]:
    """What a shard gets of these columns."""
    shard = next((shard for shard in config.shards if shard.name == name), None)
    if shard is None or not config.grows(shard):
        return {}
    known = {shard.error_column, *shard.columns.names}
    return {column: kind for column, kind in columns.items() if column not in known}


def _grown(shard: ShardConfig, columns: Mapping[str, str]) -> ShardConfig:
    if not columns:
        return shard
    wider = shard.columns.widened(_column(name, kind) for name, kind in columns.items())
    # Names that are reserved, or that differ from others in case only, are refused by the parser.
    return ShardConfig.model_validate(
        {**shard.model_dump(by_alias=True), "schema": parse_schema(wider.ddl).ddl}
    )


def _column(name: str, kind: str) -> Column:
    (column,) = parse_schema(f"c {kind}").columns
    return Column(name, column.type)
