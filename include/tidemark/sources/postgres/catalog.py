"""What the database's catalog says of a table that its log does not: recorded, and compared by every run.

The log carries rows, and with them a table's columns by name. It says nothing when a column gets another
column's name, when `ALTER TABLE` gives new values to all rows, when an enum's label is renamed, or while a
publication leaves a table out. Each of these leaves a trace in the catalog:

==========================================  ===========================================================
what happened                               what tells it
==========================================  ===========================================================
columns were renamed, or swapped names      another name for a column's number (`attnum`)
a column was dropped and added again        another number for its name
an enum's label was renamed                 another label for its oid
the publication was made anew or altered    its oid, and the row that has its options
the table was out of the publication        the oid of its membership
the key was made anew                       the oid of its constraint
all rows were rewritten                     the file (`relfilenode`), and no row older than the record
==========================================  ===========================================================

These facts are recorded when a table is read, in a file that every binding names (`TableRead.catalog`), and
compared before anything more is bound. Where they differ, rows that are there may not be what was captured:
the table is refused by name until it is read anew.

`VACUUM FULL` and `CLUSTER` give a table another file too, and keep its rows with the transactions that wrote
them, where `ALTER TABLE` writes every row anew. So one row that is older than the record shows that nothing
was rewritten. A truncate that is still to be captured explains another file as well.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from shlex import quote
from typing import Final

import psycopg
from psycopg import sql

from tidemark.core.errors import InvalidUsage
from tidemark.sources.manifest import TableRead
from tidemark.sources.pgoutput import Begin, Truncate, parse
from tidemark.sources.postgres.changes import ChangeFiles
from tidemark.sources.postgres.slot import peek

_AGE_MAX: Final = 2**31 - 1
_WHOLE_SLOT: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Facts:
    """A table's facts. `files` are those of the tables that its rows are stored in, by their oids; `since` is
    the oldest transaction that may have been open when each was recorded."""

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
    def from_json(cls, text: str) -> Facts:
        found = json.loads(text)
        enums, files, since = (
            {int(oid): value for oid, value in found[name].items()} for name in ("enums", "files", "since")
        )
        members = tuple(found["members"])
        return cls(found["publication"], members, found["key"], found["columns"], enums, files, since)

    def differences(self, now: Facts) -> Iterator[str]:
        """What has happened to the table since, as far as it needs no look at its rows."""
        if self.publication != now.publication:
            yield "its publication was made anew or altered, and may have left changes out"
        elif self.members and not set(self.members) & set(now.members):
            yield "it was taken out of the publication and put back, and changes meanwhile were left out"
        if self.key != now.key:
            yield "its key was made anew, and rows may have shared one meanwhile"
        names = {number: name for name, number in now.columns.items()}
        for name, number in self.columns.items():
            if names.get(number, name) != name:
                yield f"column {name!r} was renamed to {names[number]!r}"
            elif now.columns.get(name, number) != number:
                yield f"column {name!r} was dropped, and another one has its name"
        for oid, label in self.enums.items():
            if now.enums.get(oid, label) != label:
                yield f"the label {label!r} of an enum was renamed to {now.enums[oid]!r}"

    def other_files(self, now: Facts) -> list[int]:
        """The tables of rows that have another file now."""
        return [oid for oid, file in self.files.items() if now.files.get(oid, file) != file]

    def carried_on(self, now: Facts) -> Facts:
        """What to record now. A column or a label that is gone is kept: its name may come back."""
        same = {oid: since for oid, since in self.since.items() if self.files.get(oid) == now.files.get(oid)}
        columns, enums = {**self.columns, **now.columns}, {**self.enums, **now.enums}
        return replace(now, columns=columns, enums=enums, since={**now.since, **same})


def oldest_open(db: psycopg.Connection) -> int:
    """The oldest transaction that is open; rows of older ones were there before."""
    row = db.execute("SELECT pg_snapshot_xmin(pg_current_snapshot())::text").fetchone()
    return int(row[0]) if row is not None else 0


def put_facts(files: ChangeFiles, facts: Facts) -> str:
    """Record facts, durable when this returns; returns their name."""
    data = facts.to_json().encode()
    name = hashlib.blake2b(data, digest_size=8).hexdigest()
    path = files.folder / f"catalog-{name}.json"
    try:
        os.utime(path)  # It is young again: maintenance removes old ones that no binding names.
    except FileNotFoundError:
        files.write(path, data)
    return name


def recorded_facts(files: ChangeFiles, table: str, read: TableRead) -> Facts | None:
    """What is on record of a table; None where nothing was recorded yet."""
    if not read.catalog:
        return None
    path = files.folder / f"catalog-{read.catalog}.json"
    try:
        return Facts.from_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        fact = f"table {table}: the record of its catalog, {path.name}, can't be read: {type(error).__name__}"
        raise InvalidUsage(fact, hint=f"restore the file; or {reread(table)}") from None


def reread(table: str) -> str:
    """What has a table read anew, as a hint."""
    return f"`tidemark source reread PIPELINE {quote(table)}` replaces what its shard has with the rows now"


def is_rewritten(db: psycopg.Connection, oid: int, *, since: int) -> bool:
    """Whether the table, by its oid, has no row that is older than a transaction. The age of a row's
    transaction counts from now and goes round, so beyond half of that nothing can be told."""
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
    """The tables whose truncate the slot has, from a position on, by their oids."""
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
