"""Which tables a pipeline takes when its file leaves that to the database, and what columns they have.

A table is taken as it is when it first goes to a shard, and that is put on record; with `on_schema_change:
add_columns`, columns that it gets later are too. What else happens to it (a column that is dropped, a type or
a key that changes, a table that is gone) is found by the checks that every declared schema goes through, and
refused there by name.
"""

from __future__ import annotations

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
from tidemark.sources.postgres.tables import Published, not_published, published_tables
from tidemark.sources.postgres.values import declared_for


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
    for name in tables.include:
        if not is_pattern(name) and tables.asks_source(name) and name not in published:
            raise not_published(name, source.publication)
    shapes = dict(recorded)
    for name, table in published.items():
        if not tables.asks_source(name):
            continue
        shard = config.table_settings(name)["name"]
        if shard not in shapes:
            shapes[shard] = shape_of(table)
        elif config.table_settings(name).get("on_schema_change") == "add_columns":
            shapes[shard] = shapes[shard].widened(shape_of(table).columns)
        if shapes[shard].table != name:
            raise InvalidUsage(
                f"tables {shapes[shard].table} and {name} would both go to shard {shard}",
                hint="give one of them another name under tables.overrides",
            )
    return shapes


def shape_of(table: Published) -> TableShape:
    """A table as it is now, in types that lose nothing. A key's columns are never NULL."""
    if not table.key:
        raise InvalidUsage(
            f"table {table.name} has no primary key",
            hint=f"ALTER TABLE {table.name} ADD PRIMARY KEY …, or name it under tables.exclude",
        )
    lines = [
        f"`{column.name}` {declared_for(column.type_oid, column.type_modifier)}"
        f"{' NOT NULL' if column.name in table.key else ''}"
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
