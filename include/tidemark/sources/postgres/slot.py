"""The slot of a pipeline: where it stands, what it has, and how far it may forget.

Everything that reads or moves a slot does so under one lock in the database, named for the slot and held by
the transaction: two runs take turns, wherever they run, and a process that dies leaves no lock behind.

A slot is refused, with its remedy, when what is captured next could not follow what was captured last: when
it is missing, when the server has invalidated it, when it is ahead of what was acknowledged (it was made
anew, or somebody advanced it), and when the database's log ends before what is bound (an older copy).
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg import errors, sql

from tidemark.core.errors import InvalidUsage, InvariantViolation
from tidemark.sources.postgres.connection import SlotInUse
from tidemark.sources.postgres.pgoutput import lsn_text, parsed_lsn

PLUGIN: Final = "pgoutput"
MESSAGES_AT_ONCE: Final = 8
"""More make it no faster, and each may be big."""
_ANY_BYTES: Final = "SQL_ASCII"
BATCH_MESSAGES_MAX: Final = 4_000
BATCH_BYTES: Final = 4 * 1024**2


@dataclass(frozen=True, slots=True)
class SlotState:
    """A slot as the server describes it; positions are 0 where it has none."""

    name: str
    plugin: str
    database: str
    is_here: bool
    confirmed: int
    restart: int
    log_end: int
    wal_status: str
    invalidation: str

    @property
    def retained_bytes(self) -> int:
        """How much log the server keeps for this slot."""
        return max(0, self.log_end - self.restart) if self.restart else 0


class SlotLost(InvalidUsage):
    """The slot can't give what comes next, and never will."""


def create_sql(slot: str) -> str:
    return f"SELECT pg_create_logical_replication_slot('{slot}', '{PLUGIN}')"


def restart_hint(slot: str) -> str:
    """The way out when changes are lost for good."""
    return (
        f"changes are lost: {create_sql(slot)}, and begin a new pipeline with it, which reads the tables anew"
    )


def lock(db: psycopg.Connection, slot: str) -> None:
    """Wait for the slot to be ours until the transaction ends; the session's lock_timeout bounds it."""
    try:
        db.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (f"tidemark slot {slot}",))
    except errors.LockNotAvailable as error:
        raise SlotInUse.told(error) from None


def find_slot(db: psycopg.Connection, slot: str) -> SlotState | None:
    """The slot, if the server has it."""
    # A column that came with PostgreSQL 17 tells why; wal_status tells that it is lost in any version.
    row = db.execute(
        "SELECT slot_name, coalesce(plugin, ''), coalesce(database, ''),"
        " coalesce(database = current_database(), false), confirmed_flush_lsn::text, restart_lsn::text,"
        " pg_current_wal_flush_lsn()::text, coalesce(wal_status, ''),"
        " coalesce(to_jsonb(s) ->> 'invalidation_reason', '')"
        " FROM pg_replication_slots s WHERE slot_name = %s",
        (slot,),
    ).fetchone()
    if row is None:
        return None
    name, plugin, database, is_here, confirmed, restart, end, status, why = row
    confirmed, restart, end = (parsed_lsn(text) if text else 0 for text in (confirmed, restart, end))
    return SlotState(name, plugin, database, is_here, confirmed, restart, end, status, why)


def usable_slot(db: psycopg.Connection, slot: str) -> SlotState:
    """The slot, once it is known to be one that can be read."""
    found = find_slot(db, slot)
    if found is None:
        raise SlotLost(
            f"replication slot {slot!r} does not exist",
            hint=f"for a new pipeline: {create_sql(slot)}; if it was there, {restart_hint(slot)}",
        )
    if found.plugin != PLUGIN or not found.is_here:
        raise InvalidUsage(
            f"replication slot {slot!r} is of plugin {found.plugin!r} in database {found.database!r}",
            hint=f"use a slot of this database: {create_sql(slot)}",
        )
    if found.wal_status == "lost" or found.invalidation:
        why = found.invalidation or "its log was removed"
        drop = f"SELECT pg_drop_replication_slot('{slot}')"
        raise SlotLost(
            f"replication slot {slot!r} was invalidated by the server: {why}",
            hint=f"{drop}, raise max_slot_wal_keep_size; {restart_hint(slot)}",
        )
    return found


def check_continues(found: SlotState, *, bound: int, acknowledged: int) -> None:
    """Refuse a slot that does not continue what is bound."""
    if found.log_end < bound:
        raise SlotLost(
            f"the database's log ends at {lsn_text(found.log_end)}, and changes are bound up to"
            f" {lsn_text(bound)}",
            hint=f"this is another or an older database; if it is the right one, {restart_hint(found.name)}",
        )
    known = max(bound, acknowledged)
    if found.confirmed > known:
        raise SlotLost(
            f"replication slot {found.name!r} stands at {lsn_text(found.confirmed)}, and only"
            f" {lsn_text(known)} was acknowledged: it was made anew, or advanced by somebody else",
            hint=restart_hint(found.name),
        )


def peek(
    db: psycopg.Connection, slot: str, publication: str, *, changes_max: int
) -> Generator[Sequence[bytes]]:
    """The slot's messages from its position on, whole transactions only; they stay in the slot.

    `changes_max` is asked for after each transaction, so the last one may go beyond it. The messages come as
    the server sends them, a few at a time, in batches that are cut by their bytes: neither a big transaction
    nor rows that grow ever are in our memory. Until this ends or is closed, nothing else may be said in the
    session; if it is closed before its end, nothing but the end of the transaction."""
    query = (
        "SELECT data FROM pg_logical_slot_peek_binary_changes(%s, NULL, %s,"
        " 'proto_version', '1', 'publication_names', %s)"
    )
    values = (slot, changes_max, sql.Identifier(publication).as_string(db))
    batch, size = list[bytes](), 0
    # Such a server would refuse to send bytes that are no UTF-8; who takes the change looks at them.
    is_raw = db.info.parameter_status("server_encoding") == _ANY_BYTES
    if is_raw:
        db.execute(f"SET LOCAL client_encoding = {_ANY_BYTES}")
    with db.cursor() as cursor:
        # A generator, and not only the iterator that it is declared as.
        stream: Any = cursor.stream(query, values, binary=True, size=MESSAGES_AT_ONCE)
        with closing(stream) as rows:
            for (data,) in rows:
                batch.append(data)
                size += len(data)
                if size >= BATCH_BYTES or len(batch) == BATCH_MESSAGES_MAX:
                    yield batch
                    batch, size = [], 0
    if is_raw:
        db.execute("SET LOCAL client_encoding = UTF8")
    if batch:
        yield batch


class Counted(Iterator[Sequence[bytes]]):
    """Batches of messages, and how many messages there were so far."""

    def __init__(self, batches: Iterator[Sequence[bytes]]) -> None:
        self._batches = batches
        self.count = 0

    def __next__(self) -> Sequence[bytes]:
        found = next(self._batches)
        self.count += len(found)
        return found


def advance(db: psycopg.Connection, slot: str, lsn: int) -> None:
    """Let the server forget everything below. Can't be taken back."""
    db.execute("SELECT pg_replication_slot_advance(%s, %s::pg_lsn)", (slot, lsn_text(lsn)))


def mark(db: psycopg.Connection) -> int:
    """Write a mark into the log, durable when this returns, and tell where it ends.

    It is the end of a record, and everything before it is flushed. Neither holds for the positions that the
    server tells by itself: a slot that is advanced into the middle of a commit's record never shows that
    commit. Must be called outside of a transaction."""
    with db.transaction():
        db.execute("SET LOCAL synchronous_commit = on")
        row = db.execute("SELECT pg_logical_emit_message(true, 'tidemark', '')::text").fetchone()
    if row is None:
        raise InvariantViolation("the server did not say where it wrote the mark")
    return parsed_lsn(row[0])
