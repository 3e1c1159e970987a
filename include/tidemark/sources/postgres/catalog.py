"""Changes to a table that only the database's catalog shows, and whether a table's columns fit its shard.

The write-ahead log carries rows, with the table's columns by name. It does not show that a column got another
column's name, that `ALTER TABLE` gave new values to all rows, that an enum's label was renamed, or that a
publication left a table out. The catalog does:

==========================================  ===========================================================
change                                      evidence in the catalog
==========================================  ===========================================================
columns were renamed, or swapped names      another name for a column's number (`attnum`)
a column was dropped and added again        another number for its name
an enum's label was renamed                 another label for its oid
the publication was recreated or altered    its oid, and the version of its row (`xmin`)
the table was out of the publication        the oid of its membership
the key was recreated                       the oid of its constraint
all rows were rewritten                     the file (`relfilenode`), and no row older than the record
==========================================  ===========================================================

These facts are recorded when a table is read, in a file that every binding names (`TableRead.catalog`). Every
run compares them before it binds anything more. If they differ, the captured rows may differ from the table's
rows, and the table is refused by name until it is read again.

`VACUUM FULL` and `CLUSTER` also give a table another file, but they keep the transaction ids of its rows;
`ALTER TABLE` writes every row with a new one. So one row that is older than the record shows that nothing was
rewritten. A truncate that is not captured yet explains another file as well.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import closing
from dataclasses import dataclass, field, replace
from shlex import quote
from typing import Final

import psycopg
from psycopg import sql

from tidemark.config.shard import ShardConfig
from tidemark.core.errors import InvalidUsage
from tidemark.sources.files.bound_files import TableRead
from tidemark.sources.postgres.change_files import ChangeFiles
from tidemark.sources.postgres.pgoutput import Begin, Relation, RelationColumn, Truncate, parse, plain_name
from tidemark.sources.postgres.slot import peek
from tidemark.sources.postgres.values import declared_for, lossless

_AGE_MAX: Final = 2**31 - 1
_WHOLE_SLOT: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class CatalogFacts:
    """The recorded facts of a table. `files` are the files of the tables that store its rows, by table oid.
    `since` is the oldest transaction that may have been open when each file was recorded."""

    publication: str
    members: tuple[int, ...]
    key: int
    columns: Mapping[str, int]
    enums: Mapping[int, str]
    files: Mapping[int, int]
    since: Mapping[int, int] = field(default_factory=dict, compare=False)

    def to_json(self) -> str:
        found = {
            "publication": self.publication, "members": self.members, "key": self.key,
            "columns": self.columns, "enums": self.enums, "files": self.files, "since": self.since,
        }  # fmt: skip
        return json.dumps(found, sort_keys=True, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> CatalogFacts:
        found = json.loads(text)
        enums, files, since = (
            {int(oid): value for oid, value in found[name].items()} for name in ("enums", "files", "since")
        )
        members = tuple(found["members"])
        return cls(found["publication"], members, found["key"], found["columns"], enums, files, since)

    def differences(self, now: CatalogFacts) -> Iterator[str]:
        """The changes to the table since the record, except rewrites, which need a look at its rows."""
        if self.publication != now.publication:
            yield "its publication was created again or altered, and may have omitted changes"
        elif self.members and not set(self.members) & set(now.members):
            yield "it was removed from the publication and added again, and changes in between were omitted"
        if self.key != now.key:
            yield "its key was created again, and rows may have shared a key in between"
        names = {number: name for name, number in now.columns.items()}
        for name, number in self.columns.items():
            if names.get(number, name) != name:
                yield f"column {name!r} was renamed to {names[number]!r}"
            elif now.columns.get(name, number) != number:
                yield f"column {name!r} was dropped, and another column has its name"
        for oid, label in self.enums.items():
            if now.enums.get(oid, label) != label:
                yield f"the label {label!r} of an enum was renamed to {now.enums[oid]!r}"

    def other_files(self, now: CatalogFacts) -> list[int]:
        """The oids of the tables whose file has changed."""
        return [oid for oid, file in self.files.items() if now.files.get(oid, file) != file]

    def carried_on(self, now: CatalogFacts) -> CatalogFacts:
        """The facts to record now. Dropped columns and labels are kept, because their names may come back."""
        same = {oid: since for oid, since in self.since.items() if self.files.get(oid) == now.files.get(oid)}
        columns, enums = {**self.columns, **now.columns}, {**self.enums, **now.enums}
        return replace(now, columns=columns, enums=enums, since={**now.since, **same})


def oldest_open(db: psycopg.Connection) -> int:
    """The oldest open transaction; all older ones have ended."""
    row = db.execute("SELECT pg_snapshot_xmin(pg_current_snapshot())::text").fetchone()
    return int(row[0]) if row is not None else 0


def put_facts(files: ChangeFiles, facts: CatalogFacts) -> str:
    """Record the facts, durable when this returns; returns the record's name."""
    data = facts.to_json().encode()
    name = hashlib.blake2b(data, digest_size=8).hexdigest()
    path = files.folder / f"catalog-{name}.json"
    try:
        os.utime(path)  # Maintenance removes old records that no binding names, so make this one young.
    except FileNotFoundError:
        files.write(path, data)
    return name


def recorded_facts(files: ChangeFiles, table: str, read: TableRead) -> CatalogFacts | None:
    """The recorded facts of a table; None if nothing is recorded yet."""
    if not read.catalog:
        return None
    path = files.folder / f"catalog-{read.catalog}.json"
    try:
        return CatalogFacts.from_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        fact = f"table {table}: the record of its catalog, {path.name}, can't be read: {type(error).__name__}"
        raise InvalidUsage(fact, hint=f"restore the file; or {reread(table)}") from None


def reread(table: str) -> str:
    """A hint with the command that reads a table again."""
    return (
        f"`tidemark source reread PIPELINE {quote(table)}` replaces the rows of its shard with the"
        " current ones"
    )


def is_rewritten(db: psycopg.Connection, oid: int, *, since: int) -> bool:
    """Whether the table with this oid has no row older than the transaction `since`. True as well if that is
    unknown: the table is gone, or `since` is so old that transaction ids have wrapped around."""
    row = db.execute(
        "SELECT format('%%I.%%I', n.nspname, c.relname) FROM pg_class c"
        " JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = %s",
        (oid,),
    ).fetchone()
    current = db.execute("SELECT pg_snapshot_xmax(pg_current_snapshot())::text").fetchone()
    age = int(current[0]) - since if current is not None else _AGE_MAX
    if row is None or age >= _AGE_MAX:
        return True
    query = sql.SQL("SELECT EXISTS (SELECT FROM ONLY {} WHERE age(xmin) > {})")
    found = db.execute(query.format(sql.SQL(row[0]), sql.Literal(age))).fetchone()
    return not (found is not None and found[0])


def truncated_tables(db: psycopg.Connection, slot: str, publication: str, *, lower: int) -> set[int]:
    """The oids of the tables with a truncate in the slot, at or above a position."""
    found: set[int] = set()
    begun = 0
    with closing(peek(db, slot, publication, changes_max=_WHOLE_SLOT)) as batches:
        for batch in batches:
            for message in map(parse, (one for one in batch if one[:1] in (b"B", b"T"))):
                if isinstance(message, Begin):
                    begun = message.lsn
                elif isinstance(message, Truncate) and begun >= lower:
                    found.update(message.relations)
    return found


# Whether columns fit.


def refused(table: str, fact: str, hint: str) -> InvalidUsage:
    return InvalidUsage(f"table {table}: {fact}", hint=hint)


def written_columns(relation: Relation, shard: ShardConfig, has: Set[str] | None) -> tuple[int, ...]:
    """The positions of the captured columns. Raises `InvalidUsage` if they don't fit the shard. `has` are the
    columns that the table has now; None if unknown."""
    names = [column.name for column in relation.columns]
    plain = [column.plain for column in relation.columns]
    if twice := [name for at, name in enumerate(names) if plain[at] in plain[:at]]:
        fact = f"column {twice[0]!r} would get the name {plain_name(twice[0])!r}, which another column has"
        raise refused(relation.name, fact, "rename it, or leave it out of the publication's column list")
    dropped = _dropped(names, shard, has)
    written = tuple(at for at, name in enumerate(names) if name not in dropped)
    _check_columns(relation, [relation.columns[at] for at in written], shard, has)
    return written


def _dropped(names: Sequence[str], shard: ShardConfig, has: Set[str] | None) -> Set[str]:
    """The columns that were added and dropped again before they were declared. A missing column could also
    have been renamed, unless the table now has only columns that these rows have too."""
    if has is None or not has <= set(names):
        return frozenset()
    return {name for name in names if name not in has and shard.columns.get(plain_name(name)) is None}


def _check_columns(
    relation: Relation, columns: Sequence[RelationColumn], shard: ShardConfig, has: Set[str] | None
) -> None:
    for column in columns:
        declared = shard.columns.get(column.plain)
        wanted = declared_for(column.type_oid, column.type_modifier)
        if declared is None and has is not None and column.name not in has:
            fact = f"column {column.name!r} is not declared, and the table no longer has it"
            raise refused(relation.name, fact, reread(relation.name))
        if declared is None:
            raise refused(
                relation.name,
                f"column {column.name!r} is not declared",
                f"declare {column.plain} {wanted} in shard {shard.name}, and if existing rows got a"
                " default, run `tidemark source reread` for the table; with schema: from_source, set"
                " on_schema_change: add_columns",
            )
        if not lossless(column.type_oid, column.type_modifier, declared.type):
            raise refused(
                relation.name,
                f"column {column.name!r} can't be read as {declared.type.ddl} without loss",
                f"declare it as {wanted}: {_where(shard)}",
            )
    names = {column.plain for column in columns}
    for declared in shard.columns:
        may_lack = shard.on_schema_change != "fail" and declared.nullable
        if declared.name not in names and not (may_lack and declared.name not in shard.keys):
            raise refused(
                relation.name,
                f"the declared column {declared.name!r} is not sent",
                "it was dropped, is generated, or is not in the publication's column list: set"
                f" on_schema_change: missing_as_null for shard {shard.name}",
            )


def _where(shard: ShardConfig) -> str:
    """Where to declare another type. A shard that has rows keeps its types."""
    return (
        f"in shard {shard.name} if that has no rows yet; else in a shard with another name and with"
        " a higher generation of the pipeline, which reads the table again"
    )
