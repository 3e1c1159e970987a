"""What the database's catalog says of the published tables, and whether it fits the pipeline."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import psycopg

from tidemark.config.model import PipelineConfig
from tidemark.config.shard import ShardConfig
from tidemark.core.errors import InvalidUsage
from tidemark.sources.pgoutput import Relation, RelationColumn
from tidemark.sources.postgres.records import Table
from tidemark.sources.postgres.values import NUMERIC, numeric_limits

_PRECISION_SHORT = 38
_KEY = """
coalesce((SELECT array_agg(x.attname::text ORDER BY x.attnum) FROM pg_index i
          JOIN pg_attribute x ON x.attrelid = i.indrelid
              AND x.attnum = ANY((i.indkey::int2[])[0:i.indnkeyatts - 1])
          WHERE i.indrelid = {0}.oid AND CASE {0}.relreplident
              WHEN 'i' THEN i.indisreplident ELSE i.indisprimary END), '{{}}')
"""
_TABLES = f"""
SELECT p.schemaname, p.tablename, coalesce(p.rowfilter, ''), c.oid, c.relreplident, {_KEY.format("c")},
       array_agg(a.attname::text ORDER BY a.attnum), array_agg(a.atttypid::int8 ORDER BY a.attnum),
       array_agg(a.atttypmod ORDER BY a.attnum),
       array_agg(a.attlen = -1 AND a.attstorage <> 'p' ORDER BY a.attnum), c.relkind = 'p',
       (SELECT coalesce(jsonb_agg(jsonb_build_array(
                   format('%%I.%%I', s.nspname, l.relname), l.relreplident, {_KEY.format("l")})), '[]')
        FROM pg_class l JOIN pg_namespace s ON s.oid = l.relnamespace
        WHERE l.relkind <> 'p' AND l.oid IN (
            WITH RECURSIVE tree AS (
                SELECT c.oid UNION ALL
                SELECT h.inhrelid FROM tree JOIN pg_inherits h ON h.inhparent = tree.oid AND c.relkind = 'p'
            ) SELECT oid FROM tree))
FROM pg_publication_tables p
JOIN pg_namespace n ON n.nspname = p.schemaname
JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = ANY(p.attnames)
WHERE p.pubname = %s
GROUP BY 1, 2, 3, c.oid, c.relreplident, c.relkind ORDER BY 1, 2
"""


@dataclass(frozen=True, slots=True)
class Stored:
    """A table that rows of a published one are stored in: itself, or a partition of it. The server sends old
    rows by its `identity` and `key`, whatever the partitioned table has. `name` is as SQL writes it."""

    name: str
    identity: str
    key: tuple[str, ...]

    def sends(self, keys: Iterable[str]) -> bool:
        """Whether a row that is gone comes with these columns."""
        return self.identity == "f" or (self.identity != "n" and set(keys) <= set(self.key))


@dataclass(frozen=True, slots=True)
class Published:
    """A table of the publication as it is now. `key` is its primary key, or the index that is its identity;
    `big` are the columns whose values may be stored out of line. Rows of a partitioned one are `stored` in
    its partitions, at any depth."""

    relation: Relation
    row_filter: str
    key: tuple[str, ...]
    big: tuple[str, ...]
    is_partitioned: bool
    stored: tuple[Stored, ...]

    @property
    def name(self) -> str:
        return self.relation.name


def published_tables(db: psycopg.Connection, publication: str) -> dict[str, Published]:
    """The tables of a publication by name."""
    if db.execute("SELECT 1 FROM pg_publication WHERE pubname = %s", (publication,)).fetchone() is None:
        raise InvalidUsage(
            f"publication {publication!r} does not exist",
            hint=f"CREATE PUBLICATION {publication} FOR TABLE …, with every table of the pipeline",
        )
    found = (_published(row) for row in db.execute(_TABLES, (publication,)))
    return {table.name: table for table in found}


def _published(row: tuple[Any, ...]) -> Published:
    schema, name, row_filter, oid, identity, key, names, kinds, modifiers, is_big, is_partitioned, stored = (
        row
    )
    columns, big = [], []
    for column, kind, modifier, may_be_big in zip(names, kinds, modifiers, is_big, strict=True):
        in_key = identity == "f" or column in key
        columns.append(RelationColumn(column, kind, modifier, in_key))
        limits = numeric_limits(modifier) if kind == NUMERIC else None
        if may_be_big and (limits is None or limits[0] > _PRECISION_SHORT):
            big.append(column)
    shape = Relation(oid, schema, name, identity, tuple(columns))
    found = tuple(Stored(one, its, tuple(columns)) for one, its, columns in sorted(stored))
    return Published(shape, str(row_filter), tuple(key), tuple(big), is_partitioned, found)


def taken_shards(config: PipelineConfig) -> dict[str, ShardConfig]:
    """The shards by the table that each follows."""
    return {shard.route.table: shard for shard in config.shards if shard.route and shard.route.table}


def not_published(table: str, publication: str) -> InvalidUsage:
    return InvalidUsage(
        f"table {table} is not in publication {publication!r}, or does not exist",
        hint=f"ALTER PUBLICATION {publication} ADD TABLE {table}, or take it out of the pipeline",
    )


def identity_flaws(
    published: Mapping[str, Published], shards: Mapping[str, ShardConfig], publication: str
) -> Iterator[InvalidUsage]:
    """Every table whose rows could not be told apart, or not be told whole, each with what to do."""
    for name, shard in shards.items():
        table = published.get(name)
        if table is None:
            yield not_published(name, publication)
            continue
        if set(shard.keys) != set(table.key):
            have = ", ".join(table.key) or "none"
            yield InvalidUsage(
                f"table {name}: the key is ({', '.join(shard.keys)}), and the table's own is ({have})",
                hint=f"declare keys: [{', '.join(table.key)}] in shard {shard.name}, or give the table that"
                " primary key",
            )
        big = [column for column in table.big if column not in shard.keys]
        if big and (lacking := [one for one in table.stored if one.identity != "f"]):
            fact = f"an update does not send {', '.join(big)} when the value is big and unchanged"
            yield InvalidUsage(f"table {name}: {fact}", hint=_to_full(lacking))
        elif lacking := [one for one in table.stored if not one.sends(table.key)]:
            fact = f"rows that are gone come without the key ({', '.join(table.key)})"
            yield InvalidUsage(f"table {name}: {fact}", hint=_to_full(lacking))


def _to_full(tables: Iterable[Stored]) -> str:
    return "; ".join(f"ALTER TABLE {one.name} REPLICA IDENTITY FULL" for one in tables)


def shape_flaws(
    published: Mapping[str, Published], shards: Mapping[str, ShardConfig]
) -> Iterator[InvalidUsage]:
    """Every table whose columns, as they are now, are not those that are declared, each with what to do."""
    for name, shard in shards.items():
        try:
            if name in published:
                Table.of(published[name].relation, shard)
        except InvalidUsage as error:
            yield error


def raise_first(flaws: Iterator[InvalidUsage]) -> None:
    for flaw in flaws:
        raise flaw
