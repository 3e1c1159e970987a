"""Which tables a pipeline takes when its file leaves that to the database, and what columns they have.

A table is taken as it is when it first goes to a shard, and that is put on record; with `on_schema_change:
add_columns`, columns that it gets later are too. What else happens to it (a column that is dropped, a type or
a key that changes, a table that is gone) is found by the checks that every declared schema goes through, and
refused there by name.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import closing

from tidemark.config.base import is_pattern
from tidemark.config.ddl import parse_schema
from tidemark.config.described import (
    Shapes,
    TableShape,
    completed,
    is_described,
    record_of,
    recorded_shapes,
    shapes_text,
)
from tidemark.config.model import PipelineConfig
from tidemark.config.source import PostgresSource
from tidemark.core.errors import InvalidUsage
from tidemark.sources.postgres import slot as slots
from tidemark.sources.postgres.changes import ChangeFiles
from tidemark.sources.postgres.connection import connect, told
from tidemark.sources.postgres.tables import Published, not_published, published_tables, raise_all
from tidemark.sources.postgres.values import declared_for

logger = logging.getLogger(__name__)


def discovered(config: PipelineConfig) -> PipelineConfig:
    """The configuration with every table that it takes by now; those that are new are on record when this
    returns. The database is asked only where the pipeline file leaves a schema to it."""
    source = config.source
    if not isinstance(source, PostgresSource) or not is_described(config):
        return config
    with told(), closing(connect(source.postgres_conn_id)) as db, db.transaction():
        slots.lock(db, source.slot)
        recorded = recorded_shapes(config)
        shapes = shapes_now(config, published_tables(db, source.publication), recorded)
        found = completed(config, shapes)
        if shapes != recorded:
            ChangeFiles(config.source_location).replace(record_of(config), shapes_text(shapes).encode())
    return found


def shapes_now(config: PipelineConfig, published: Mapping[str, Published], recorded: Shapes) -> Shapes:
    """The shapes on record, with what is new in the database."""
    tables, source = config.tables, config.source
    if tables is None or not isinstance(source, PostgresSource):
        return recorded
    flaws = [
        not_published(name, source.publication)
        for name in tables.include
        if not is_pattern(name) and tables.asks_source(name) and name not in published
    ]
    shapes = dict(recorded)
    for name, table in published.items():
        try:
            if tables.asks_source(name):
                shard = config.table_settings(name)["name"]
                shapes[shard] = _shape_now(config, shapes.get(shard), shard, table)
        except InvalidUsage as error:
            flaws.append(error)
    raise_all(flaws)
    return shapes


def _shape_now(
    config: PipelineConfig, recorded: TableShape | None, shard: str, table: Published
) -> TableShape:
    """The shape of a shard that the table goes to."""
    if recorded is None:
        if table.generated:
            logger.warning("%s", left_out(table))
        return shape_of(table)
    if recorded.table != table.name:
        raise InvalidUsage(
            f"tables {recorded.table} and {table.name} would both go to shard {shard}",
            hint="give one of them another name under tables.overrides",
        )
    if config.table_settings(table.name).get("on_schema_change") == "add_columns":
        return recorded.widened(shape_of(table).columns)
    return recorded


def left_out(table: Published) -> str:
    """What is not captured of a table, for a message."""
    return f"table {table.name}: generated columns are not sent, and left out: {', '.join(table.generated)}"


def shape_of(table: Published) -> TableShape:
    """A table as it is now, in types that lose nothing. A key's columns are never NULL."""
    if not table.key:
        raise InvalidUsage(
            f"table {table.name} has no primary key",
            hint=f"ALTER TABLE {table.name} ADD PRIMARY KEY …, or name it under tables.exclude",
        )
    lines = [
        f"`{column.plain}` {declared_for(column.type_oid, column.type_modifier)}"
        f"{' NOT NULL' if column.plain in table.key else ''}"
        for column in table.relation.columns
    ]
    try:
        return TableShape(table.name, parse_schema(", ".join(lines)), table.key)
    except InvalidUsage as error:
        raise InvalidUsage(
            f"table {table.name}: {error.fact}",
            hint="leave the column out of the publication's column list, or name the table under"
            " tables.exclude",
        ) from None
