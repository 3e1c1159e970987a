"""The requirements for capturing changes from PostgreSQL: whether each is met, and how to fix it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg import sql

from tidemark.config.load import recorded_shapes, with_discovered_shards
from tidemark.config.model import PipelineConfig
from tidemark.config.shard import shard_name_of
from tidemark.config.source import PostgresSource
from tidemark.core.errors import InvalidUsage, TidemarkError
from tidemark.sources.postgres import slot as slots
from tidemark.sources.postgres.pgoutput import lsn_text
from tidemark.sources.postgres.slot import connect, translated_errors
from tidemark.sources.postgres.source import SlotSource
from tidemark.sources.postgres.tables import (
    PublishedTable,
    identity_flaws,
    left_out,
    publish_flaw,
    published_tables,
    shape_flaws,
    shapes_now,
    taken_shards,
)
from tidemark.sources.postgres.values import declared_for

VERSION_MIN: Final = 150_000
_MEGABYTE: Final = 1024**2
_RIGHTS: Final = """
SELECT has_schema_privilege(n.oid, 'USAGE'), has_table_privilege(c.oid, 'SELECT'), row_security_active(c.oid)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = %s
"""


@dataclass(frozen=True, slots=True)
class Requirement:
    """One requirement. `fix` is SQL or a sentence; it applies only if the requirement is not met."""

    what: str
    ok: bool
    found: str
    fix: str = ""


def requirements(config: PipelineConfig, known: SlotSource | None = None) -> list[Requirement]:
    """All requirements of a pipeline, checked now. If the check itself fails, the result has an unmet
    requirement with the reason. With `known`, tables that were read before are compared with the record of
    their catalog entries."""
    source = config.source
    if not isinstance(source, PostgresSource):
        raise InvalidUsage(
            f"pipeline {config.name!r} reads {source.type}, not a database",
            hint="`tidemark check` looks at its file",
        )
    found: list[Requirement] = []
    try:
        with translated_errors(), closing(connect(source.postgres_conn_id)) as db:
            found += _server(db)
            found += _slot(db, source)
            found += _tables(db, config, source)
        if known is not None and all(one.ok for one in found):
            found += _catalog(known)
    except TidemarkError as error:
        found.append(Requirement("connection", False, error.fact, error.hint))
    return found


def shards_yaml(conn_id: str, publication: str) -> str:
    """The `shards` section of a pipeline file for all tables of a publication, with lossless types."""
    with translated_errors(), closing(connect(conn_id)) as db:
        tables = published_tables(db, publication)
    lines = ["shards:"]
    for table in tables.values():
        lines += [
            f"  - name: {shard_name_of(table.name.removeprefix('public.'))}",
            f"    route: {{table: {json.dumps(table.name, ensure_ascii=False)}}}",
            f"    keys: [{', '.join(table.key)}]",
            "    schema: |",
            *(f"      {line}" for line in _ddl(table)),
        ]
    return "\n".join(lines)


def _ddl(table: PublishedTable) -> list[str]:
    columns = table.relation.columns
    listed = [
        f"{column.plain} {declared_for(column.type_oid, column.type_modifier)}"
        f"{' NOT NULL' if column.plain in table.key else ''}"
        for column in columns
    ]
    return [f"{line}," for line in listed[:-1]] + listed[-1:]


def _one(db: psycopg.Connection, query: str, *values: object) -> Any:
    row = db.execute(query, values).fetchone()
    return row[0] if row is not None else None


def _server(db: psycopg.Connection) -> Iterator[Requirement]:
    version = db.info.server_version
    yield Requirement(
        "server",
        version >= VERSION_MIN,
        f"PostgreSQL {version // 10_000}",
        "PostgreSQL 15 or later is needed",
    )
    user, role = _role(db)
    may = _one(db, "SELECT rolreplication OR rolsuper FROM pg_roles WHERE rolname = current_user")
    fact = f"{user} may {'' if may else 'not '}read replication slots"
    yield Requirement("role", bool(may), fact, f"ALTER ROLE {role} REPLICATION")
    level = _one(db, "SHOW wal_level")
    fix = "ALTER SYSTEM SET wal_level = logical, then restart the server"
    yield Requirement("wal_level", level == "logical", str(level), fix)
    slots_max, used = (
        int(_one(db, "SHOW max_replication_slots")),
        int(_one(db, "SELECT count(*) FROM pg_replication_slots")),
    )
    fix = f"ALTER SYSTEM SET max_replication_slots = {slots_max + 5}, then restart the server"
    fact = f"{used} of {slots_max} are in use; the first reading of a table needs a free one"
    yield Requirement("replication slots", used < slots_max, fact, fix)


def _role(db: psycopg.Connection) -> tuple[str, str]:
    """The name of the connected user, plain and quoted for SQL."""
    user = str(_one(db, "SELECT current_user"))
    return user, sql.Identifier(user).as_string(db)


def _rights(
    db: psycopg.Connection, config: PipelineConfig, published: Mapping[str, PublishedTable]
) -> Iterator[Requirement]:
    user, role = _role(db)
    for table in sorted(taken_shards(config).keys() & published.keys()):
        schema, name = published[table].relation.schema, published[table].relation.table
        found = db.execute(_RIGHTS, (schema, name)).fetchone()
        may_use, may_read, is_filtered = found if found is not None else (True, True, False)
        if not may_use:
            fix = f"GRANT USAGE ON SCHEMA {sql.Identifier(schema).as_string(db)} TO {role}"
            yield Requirement("rights", False, f"{user} may not use schema {schema}", fix)
        if not may_read:
            fix = f"GRANT SELECT ON {sql.Identifier(schema, name).as_string(db)} TO {role}"
            yield Requirement("rights", False, f"{user} may not read {table}", fix)
        if is_filtered:
            fact = f"policies (row-level security) hide rows of {table} from {user}"
            yield Requirement("rights", False, fact, f"ALTER ROLE {role} BYPASSRLS")


def _slot(db: psycopg.Connection, source: PostgresSource) -> Iterator[Requirement]:
    try:
        found = slots.usable_slot(db, source.slot)
    except InvalidUsage as error:
        yield Requirement("slot", False, error.fact, error.hint)
        return
    yield Requirement("slot", True, f"{source.slot} is at {lsn_text(found.confirmed)}")
    limit = str(_one(db, "SHOW max_slot_wal_keep_size"))
    bound = "without a limit (max_slot_wal_keep_size)" if limit == "-1" else f"up to {limit}"
    kept = f"{found.retained_bytes / _MEGABYTE:.1f} MB of log are retained for the slot, {bound}"
    yield Requirement("log retained", found.wal_status != "unreserved", kept, "run the pipeline at once")


def _catalog(known: SlotSource) -> Iterator[Requirement]:
    compared, flaws = known.changed_tables()
    for flaw in flaws:
        yield Requirement("catalog", False, flaw.fact, flaw.hint)
    if compared and not flaws:
        yield Requirement("catalog", True, f"no change of {compared} tables is missing in the database's log")


def _tables(db: psycopg.Connection, config: PipelineConfig, source: PostgresSource) -> Iterator[Requirement]:
    try:
        published = published_tables(db, source.publication)
    except InvalidUsage as error:
        yield Requirement("publication", False, error.fact, error.hint)
        return
    flaw = publish_flaw(db, source.publication)
    has = f"{source.publication} has {len(published)} tables"
    yield Requirement("publication", flaw is None, flaw.fact if flaw else has, flaw.hint if flaw else "")
    try:
        config = with_discovered_shards(config, shapes_now(config, published, recorded_shapes(config)))
    except InvalidUsage as error:
        yield Requirement("table", False, error.fact, error.hint)
        return
    yield from _rights(db, config, published)
    shards = taken_shards(config)
    flaws = [*identity_flaws(published, shards, source.publication), *shape_flaws(published, shards)]
    for flaw in flaws:
        yield Requirement("table", False, flaw.fact, flaw.hint)
    yield from (
        Requirement("table", True, left_out(published[table]))
        for table in shards
        if table in published and published[table].generated
    )
    if not flaws:
        yield Requirement("tables", True, f"all {len(shards)} can be captured without loss")
