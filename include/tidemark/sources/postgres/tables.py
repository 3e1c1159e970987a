"""The tables of a publication in the database's catalog, whether they fit the pipeline, and their discovery.

If the pipeline file leaves tables or columns to the database, they are discovered. A table's shape is
recorded when the table first goes to a shard. With `on_schema_change: add_columns`, later columns are
recorded too. The checks for declared schemas find every other change (a dropped column, a changed type or
key, a missing table), and refuse it by name.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Final

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

from tidemark.config.base import is_pattern
from tidemark.config.load import (
    TableShape,
    TableShapes,
    record_file,
    recorded_shapes,
    shapes_text,
    uses_source_schemas,
    with_discovered_shards,
)
from tidemark.config.model import PipelineConfig
from tidemark.config.schema import parse_schema
from tidemark.config.shard import ShardConfig
from tidemark.config.source import PostgresSource
from tidemark.core.errors import InvalidUsage
from tidemark.sources.postgres import slot as slots
from tidemark.sources.postgres.catalog import CatalogFacts, oldest_open
from tidemark.sources.postgres.change_files import ChangeFiles
from tidemark.sources.postgres.pgoutput import Relation, RelationColumn, plain_name
from tidemark.sources.postgres.records import Table
from tidemark.sources.postgres.slot import connect, translated_errors
from tidemark.sources.postgres.values import NUMERIC, declared_for, numeric_limits

_PRECISION_SHORT = 38
_OPTIONS: Final = ("insert", "update", "delete", "truncate")
_INDEX = """
i.indrelid = {0}.oid AND CASE {0}.relreplident WHEN 'i' THEN i.indisreplident ELSE i.indisprimary END
"""
_KEY = f"""
coalesce((SELECT array_agg(x.attname::text ORDER BY x.attnum) FROM pg_index i
          JOIN pg_attribute x ON x.attrelid = i.indrelid
              AND x.attnum = ANY((i.indkey::int2[])[0:i.indnkeyatts - 1]) WHERE {_INDEX}), '{{{{}}}}')
"""
_TABLES = f"""
SELECT p.schemaname AS schema, p.tablename AS table, coalesce(p.rowfilter, '') AS row_filter, c.oid::int8,
       c.relreplident AS identity, c.relkind = 'p' AS is_partitioned, {_KEY.format("c")} AS key,
       (SELECT coalesce(bool_or(NOT i.indimmediate), false) FROM pg_index i
        WHERE {_INDEX.format("c")}) AS is_deferrable,
       (SELECT coalesce(max(o.oid), 0)::int8 FROM pg_index i JOIN pg_constraint o
            ON o.conindid = i.indexrelid AND o.contype IN ('p', 'u') WHERE {_INDEX.format("c")}) AS key_oid,
       jsonb_agg(jsonb_build_array(a.attname, a.attnum, a.atttypid::int8, a.atttypmod,
                                   a.attlen = -1 AND a.attstorage <> 'p') ORDER BY a.attnum) AS columns,
       (SELECT coalesce(jsonb_agg(g.attname ORDER BY g.attnum), '[]') FROM pg_attribute g
        WHERE g.attrelid = c.oid AND g.attgenerated <> '' AND NOT g.attisdropped
            AND NOT g.attname = ANY(p.attnames)) AS generated,
       (SELECT coalesce(jsonb_agg(jsonb_build_array(format('%%I.%%I', s.nspname, l.relname), l.relreplident,
                   {_KEY.format("l")}, l.oid::int8, l.relfilenode::int8, l.reltoastrelid <> 0)), '[]')
        FROM pg_class l JOIN pg_namespace s ON s.oid = l.relnamespace
        WHERE l.relkind <> 'p' AND l.oid IN (
            WITH RECURSIVE tree AS (
                SELECT c.oid UNION ALL
                SELECT h.inhrelid FROM tree JOIN pg_inherits h ON h.inhparent = tree.oid AND c.relkind = 'p'
            ) SELECT oid FROM tree)) AS stored,
       ARRAY(SELECT r.oid::int8 FROM pg_publication_rel r WHERE r.prpubid = b.oid AND (r.prrelid = c.oid
                 OR r.prrelid IN (SELECT relid FROM pg_partition_ancestors(c.oid)))
             UNION SELECT m.oid::int8 FROM pg_publication_namespace m
             WHERE m.pnpubid = b.oid AND m.pnnspid = c.relnamespace
             UNION SELECT b.oid::int8 WHERE b.puballtables ORDER BY 1) AS members
FROM pg_publication b JOIN pg_publication_tables p ON p.pubname = b.pubname
JOIN pg_namespace n ON n.nspname = p.schemaname
JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = ANY(p.attnames)
WHERE b.pubname = %s
GROUP BY b.oid, b.puballtables, 1, 2, 3, c.oid, c.relreplident, c.relkind, c.relnamespace, p.attnames
ORDER BY 1, 2
"""
_USER_OIDS_FROM = 16_384
_ENUMS = f"""
WITH RECURSIVE kinds AS (
    SELECT a.attrelid, a.atttypid AS kind FROM pg_attribute a WHERE a.attrelid = ANY(%s::oid[])
        AND a.attnum > 0 AND NOT a.attisdropped AND a.atttypid >= {_USER_OIDS_FROM}
    UNION
    SELECT k.attrelid, n.kind FROM kinds k JOIN pg_type t ON t.oid = k.kind CROSS JOIN LATERAL (
        SELECT t.typbasetype UNION ALL SELECT t.typelem
        UNION ALL SELECT r.rngsubtype FROM pg_range r WHERE t.oid IN (r.rngtypid, r.rngmultitypid)
        UNION ALL SELECT x.atttypid FROM pg_attribute x
            WHERE x.attrelid = t.typrelid AND x.attnum > 0 AND NOT x.attisdropped
    ) n (kind) WHERE n.kind >= {_USER_OIDS_FROM}
)
SELECT k.attrelid::int8, jsonb_object_agg(e.oid::int8, e.enumlabel)
FROM kinds k JOIN pg_enum e ON e.enumtypid = k.kind GROUP BY 1
"""


@dataclass(frozen=True, slots=True)
class Stored:
    """A table that stores rows of a published table: itself, or a partition of it. Its `identity` and `key`
    determine the old rows that the server sends, not those of the partitioned table. `name` is quoted for
    SQL. Without a `toast` table no value is stored out of line."""

    name: str
    identity: str
    key: tuple[str, ...]
    oid: int
    file: int
    toast: bool

    def sends(self, keys: Iterable[str]) -> bool:
        """Whether a deletion is sent with these columns of the row."""
        return self.identity == "f" or (self.identity != "n" and set(keys) <= set(self.key))


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """A table of the publication as it is now. `key` is its primary key, or the index of its replica
    identity. `big` are the columns that may have TOAST values, `generated` those that are not sent. The rows
    of a partitioned table are `stored` in its partitions, at any depth. With a deferrable key, rows may share
    a key until their transaction ends."""

    relation: Relation
    row_filter: str
    key: tuple[str, ...]
    big: tuple[str, ...]
    generated: tuple[str, ...]
    is_partitioned: bool
    is_deferrable: bool
    stored: tuple[Stored, ...]
    facts: CatalogFacts

    @property
    def name(self) -> str:
        return self.relation.name

    def is_same_but_for_files(self, other: PublishedTable) -> bool:
        """Whether the two differ at most in the files that store their rows."""
        return self._without_files() == other._without_files()

    def _without_files(self) -> PublishedTable:
        stored = tuple(replace(one, file=0) for one in self.stored)
        return replace(self, stored=stored, facts=replace(self.facts, files={}))


def published_tables(db: psycopg.Connection, publication: str) -> dict[str, PublishedTable]:
    """The tables of a publication by name. Raises `InvalidUsage` if the publication doesn't exist."""
    found = db.execute(
        "SELECT oid || ':' || xmin FROM pg_publication WHERE pubname = %s", (publication,)
    ).fetchone()
    if found is None:
        raise InvalidUsage(
            f"publication {publication!r} does not exist",
            hint=f"CREATE PUBLICATION {publication} FOR TABLE …, with every table of the pipeline",
        )
    # Read before the files, so that a transaction that rewrites a table later is not older than this one.
    since = oldest_open(db)
    rows = db.cursor(row_factory=dict_row).execute(_TABLES, (publication,)).fetchall()
    enums: dict[int, dict[str, str]] = dict(db.execute(_ENUMS, ([row["oid"] for row in rows],)).fetchall())
    tables = (_published(row, str(found[0]), enums.get(row["oid"], {}), since=since) for row in rows)
    return {table.name: table for table in tables}


def _published(
    row: Mapping[str, Any], publication: str, enums: Mapping[str, str], *, since: int
) -> PublishedTable:
    key = tuple(map(plain_name, row["key"]))
    stored = tuple(
        Stored(name, its, tuple(map(plain_name, columns)), oid, file, toast)
        for name, its, columns, oid, file, toast in sorted(row["stored"])
    )
    columns, big = [], []
    for name, _, kind, modifier, may_be_big in row["columns"]:
        in_key = row["identity"] == "f" or name in row["key"]
        columns.append(RelationColumn(name, kind, modifier, in_key))
        limits = numeric_limits(modifier) if kind == NUMERIC else None
        is_short = limits is not None and limits[0] <= _PRECISION_SHORT
        if may_be_big and not is_short and any(one.toast for one in stored):
            big.append(plain_name(name))
    facts = CatalogFacts(
        publication=publication,
        members=tuple(row["members"]),
        key=row["key_oid"],
        columns={name: number for name, number, *_ in row["columns"]},
        enums={int(oid): label for oid, label in enums.items()},
        files={one.oid: one.file for one in stored},
        since={one.oid: since for one in stored},
    )
    return PublishedTable(
        relation=Relation(row["oid"], row["schema"], row["table"], row["identity"], tuple(columns)),
        row_filter=row["row_filter"],
        key=key,
        big=tuple(big),
        generated=tuple(row["generated"]),
        is_partitioned=row["is_partitioned"],
        is_deferrable=row["is_deferrable"],
        stored=stored,
        facts=facts,
    )


def publish_flaw(db: psycopg.Connection, publication: str) -> InvalidUsage | None:
    """The error for a publication that leaves out kinds of changes; None if it sends all of them."""
    columns = ", ".join(f"pub{option}" for option in _OPTIONS)
    query = f"SELECT {columns} FROM pg_publication WHERE pubname = %s"
    row = db.execute(query, (publication,)).fetchone()
    left_out = [option for option, is_sent in zip(_OPTIONS, row or (), strict=False) if not is_sent]
    if not left_out:
        return None
    name = sql.Identifier(publication).as_string(db)
    return InvalidUsage(
        f"publication {publication!r} does not publish {', '.join(left_out)}",
        hint=f"ALTER PUBLICATION {name} SET (publish = '{', '.join(_OPTIONS)}'); tables that were read before"
        " that have to be read again",
    )


def taken_shards(config: PipelineConfig) -> dict[str, ShardConfig]:
    """The shards by their source table."""
    return {shard.route.table: shard for shard in config.shards if shard.route and shard.route.table}


def not_published(table: str, publication: str) -> InvalidUsage:
    return InvalidUsage(
        f"table {table} is not in publication {publication!r}, or does not exist, or is UNLOGGED",
        hint=f"ALTER PUBLICATION {publication} ADD TABLE {table}, or ALTER TABLE {table} SET LOGGED and read"
        " it again, or remove it from the pipeline",
    )


def identity_flaws(
    published: Mapping[str, PublishedTable], shards: Mapping[str, ShardConfig], publication: str
) -> Iterator[InvalidUsage]:
    """An error, with the remedy, for every table that is missing or whose rows would be sent without their
    keys or TOAST values."""
    for name, shard in shards.items():
        table = published.get(name)
        if table is None:
            yield not_published(name, publication)
            continue
        if set(shard.keys) != set(table.key):
            have = ", ".join(table.key) or "none"
            yield InvalidUsage(
                f"table {name}: the key is ({', '.join(shard.keys)}), but the table's own key is ({have})",
                hint=f"declare keys: [{', '.join(table.key)}] in shard {shard.name}, or change the primary"
                " key of the table",
            )
        big = [column for column in table.big if column not in shard.keys]
        if big and (lacking := [one for one in table.stored if one.identity != "f"]):
            fact = f"an update does not send {', '.join(big)} when a large value is unchanged"
            yield InvalidUsage(f"table {name}: {fact}", hint=_to_full(lacking))
        elif lacking := [one for one in table.stored if not one.sends(table.key)]:
            fact = f"deleted rows are sent without the key ({', '.join(table.key)})"
            yield InvalidUsage(f"table {name}: {fact}", hint=_to_full(lacking))


def _to_full(tables: Iterable[Stored]) -> str:
    return "; ".join(f"ALTER TABLE {one.name} REPLICA IDENTITY FULL" for one in tables)


def shape_flaws(
    published: Mapping[str, PublishedTable], shards: Mapping[str, ShardConfig]
) -> Iterator[InvalidUsage]:
    """An error, with the remedy, for every table whose current columns don't fit the declared ones."""
    for name, shard in shards.items():
        try:
            if name in published:
                Table.of(published[name].relation, shard)
        except InvalidUsage as error:
            yield error


def raise_all(flaws: Iterable[InvalidUsage]) -> None:
    """Raise all flaws as one error: a single one as it is, several with numbers. Does nothing without one."""
    found = list(flaws)
    if len(found) == 1:
        raise found[0]
    if found:
        facts, hints = (
            "; ".join(f"({number}) {text}" for number, text in enumerate(texts, 1))
            for texts in ([flaw.fact for flaw in found], [flaw.hint for flaw in found])
        )
        raise InvalidUsage(f"{len(found)} problems: {facts}", hint=hints)


# Discovery.

logger = logging.getLogger(__name__)


def discovered(config: PipelineConfig) -> PipelineConfig:
    """The configuration with all its tables. New shapes are recorded when this returns. The database is
    queried only if the pipeline file leaves a schema to it."""
    source = config.source
    if not isinstance(source, PostgresSource) or not uses_source_schemas(config):
        return config
    with translated_errors(), closing(connect(source.postgres_conn_id)) as db, db.transaction():
        slots.lock(db, source.slot)
        recorded = recorded_shapes(config)
        shapes = shapes_now(config, published_tables(db, source.publication), recorded)
        found = with_discovered_shards(config, shapes)
        if shapes != recorded:
            ChangeFiles(config.source_location).replace(record_file(config), shapes_text(shapes).encode())
    return found


def shapes_now(
    config: PipelineConfig, published: Mapping[str, PublishedTable], recorded: TableShapes
) -> TableShapes:
    """The recorded shapes, with the tables and columns that are new in the database."""
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
    config: PipelineConfig, recorded: TableShape | None, shard: str, table: PublishedTable
) -> TableShape:
    """The current shape of the table's shard."""
    if recorded is None:
        if table.generated:
            logger.warning("%s", left_out(table))
        return shape_of(table)
    if recorded.table != table.name:
        raise InvalidUsage(
            f"tables {recorded.table} and {table.name} both map to shard {shard}",
            hint="give one of them another name under tables.overrides",
        )
    if config.table_settings(table.name).get("on_schema_change") == "add_columns":
        return recorded.widened(shape_of(table).columns)
    return recorded


def left_out(table: PublishedTable) -> str:
    """A message about the generated columns of a table, which are not captured."""
    return f"table {table.name}: generated columns are not sent: {', '.join(table.generated)}"


def shape_of(table: PublishedTable) -> TableShape:
    """The shape of a table as it is now, with lossless types. Key columns are NOT NULL. Raises `InvalidUsage`
    for a table without a key."""
    if not table.key:
        raise InvalidUsage(
            f"table {table.name} has no primary key",
            hint=f"ALTER TABLE {table.name} ADD PRIMARY KEY …, or list it under tables.exclude",
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
            hint="leave the column out of the publication's column list, or list the table under"
            " tables.exclude",
        ) from None
