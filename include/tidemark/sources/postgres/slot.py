"""Database sessions, and the replication slot of a pipeline: its status, its messages, and its advance.

Every operation that reads or advances a slot holds an advisory lock of the database, named for the slot and
bound to the database transaction. So two runs take turns, on any machines, and a process that dies leaves no
lock behind.

A slot is refused, with a remedy, if the next capture could not continue the last one: the slot is missing;
the server has invalidated it; it is ahead of the acknowledged position (it was created again, or another
client advanced it); or the write-ahead log ends before the bound position (the database is an older copy).

No password leaves this module: PostgreSQL's messages name user, host and database, never the password.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg import errors, sql

from tidemark.core.errors import Determinate, InvalidUsage, InvariantViolation, TidemarkError
from tidemark.sources.connections import find_connection
from tidemark.sources.postgres.pgoutput import lsn_text, parsed_lsn

CONNECT_SECONDS_MAX: Final = 10
LOCK_SECONDS_MAX: Final = 60
SETTINGS: Final = {
    "datestyle": "ISO",
    "intervalstyle": "iso_8601",
    "timezone": "UTC",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "lock_timeout": f"{LOCK_SECONDS_MAX}s",
    "client_encoding": "UTF8",
    "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "row_security": "off",
}
"""The settings of a session. The text form of values depends on them; these make it lossless. The timeouts of
statements and idle transactions are off, because a snapshot of a large table takes long. With `row_security`
off, the server refuses to read a table whose policies hide rows from this user, instead of omitting the rows
silently."""
NOT_UTF8: Final = (
    "a database with encoding SQL_ASCII may hold any bytes: correct the row, then run `tidemark source"
    " reread`"
    " for its table, which skips changes that still have such bytes"
)
_TRANSACTION_TIMEOUT_FROM: Final = 170_000
_OPTIONS: Final = ("ssl", "target_session")
_REFUSALS: Final = ("authentication", "does not exist", "pg_hba.conf", "no password supplied", "REPLICATION")


def parameters_of(conn_id: str, environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """The libpq parameters of a connection."""
    found = find_connection(
        conn_id, environ, example="postgresql://user:password@host:5432/database, or Airflow's JSON"
    )
    given = {
        "host": found.host, "port": found.port, "dbname": found.schema, "user": found.login,
        "password": found.password,
    }  # fmt: skip
    kept = {name: str(value) for name, value in found.extra.items() if name.startswith(_OPTIONS)}
    return {**{name: value for name, value in given.items() if value}, **kept}


def connect(conn_id: str, *, replication: bool = False) -> psycopg.Connection:
    """A session with lossless text values. A `replication` session can create slots, and its statements take
    no parameters."""
    options = " ".join(f"-c {name}={value}" for name, value in SETTINGS.items())
    more = {"replication": "database"} if replication else {}
    try:
        db = psycopg.connect(
            **{**parameters_of(conn_id), **more},
            options=options,
            connect_timeout=CONNECT_SECONDS_MAX,
            application_name="tidemark",
            autocommit=replication,
        )
    except psycopg.OperationalError as error:
        message = "; ".join(line.strip() for line in str(error).splitlines() if line.strip())
        fact = f"connection {conn_id!r} failed: {message}"
        if any(word in message for word in _REFUSALS):
            raise InvalidUsage(fact, hint="check its login, password, database and rights") from None
        raise Determinate(fact, hint="check that the server runs and can be reached") from None
    # Each statement must see all commits before it, whatever the server's default isolation level is.
    db.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
    if db.info.server_version >= _TRANSACTION_TIMEOUT_FROM:
        # Not in SETTINGS, because an older server would refuse the session.
        db.execute("SET transaction_timeout = 0")
        db.commit()
    return db


class SlotInUse(Determinate):
    """Another process holds the slot for longer than the session's lock timeout."""

    @classmethod
    def of(cls, error: psycopg.Error) -> SlotInUse:
        hint = "another process uses the slot; try again when it is done"
        return cls(f"the slot is in use: {_message(error)}", hint=hint)


@contextmanager
def translated_errors() -> Iterator[None]:
    """Translates the database's errors into Tidemark's error families, with the server's message."""
    try:
        yield
    except TidemarkError:
        raise
    except errors.InsufficientPrivilege as error:
        hint = "`tidemark source check` names the rights that are missing"
        raise InvalidUsage(f"the database refused: {_message(error)}", hint=hint) from None
    except errors.ObjectInUse as error:
        raise SlotInUse.of(error) from None
    except errors.LockNotAvailable as error:
        hint = (
            "wait for them, or end them: SELECT relation::regclass, pid, query FROM pg_locks JOIN"
            " pg_stat_activity USING (pid) WHERE mode = 'AccessExclusiveLock'; then run again"
        )
        raise Determinate(f"a table is locked by others: {_message(error)}", hint=hint) from None
    except (errors.CharacterNotInRepertoire, errors.UntranslatableCharacter) as error:
        raise InvalidUsage(f"a text is not UTF-8: {_message(error)}", hint=NOT_UTF8) from None
    except psycopg.Error as error:
        raise Determinate(
            f"the database failed: {_message(error)}", hint="check the server's log, then retry"
        ) from None


def _message(error: psycopg.Error) -> str:
    return error.diag.message_primary or type(error).__name__


PLUGIN: Final = "pgoutput"
MESSAGES_AT_ONCE: Final = 8
"""Fetching more at once is no faster, and each message may be large."""
_ANY_BYTES: Final = "SQL_ASCII"
BATCH_MESSAGES_MAX: Final = 4_000
BATCH_BYTES: Final = 4 * 1024**2


@dataclass(frozen=True, slots=True)
class SlotState:
    """A slot as the server reports it. A position that it doesn't have is 0."""

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
        """How many bytes of WAL the server retains for this slot."""
        return max(0, self.log_end - self.restart) if self.restart else 0


class SlotLost(InvalidUsage):
    """The slot has lost changes, or can't be used any more. No retry fixes this."""


def create_sql(slot: str) -> str:
    return f"SELECT pg_create_logical_replication_slot('{slot}', '{PLUGIN}')"


def restart_hint(slot: str) -> str:
    """The remedy if changes are lost permanently."""
    return (
        f"changes are lost: {create_sql(slot)}, and use it with a new pipeline, which reads the tables again"
    )


def lock(db: psycopg.Connection, slot: str) -> None:
    """Lock the slot until the database transaction ends. Raises `SlotInUse` after the session's
    lock_timeout."""
    try:
        db.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (f"tidemark slot {slot}",))
    except errors.LockNotAvailable as error:
        raise SlotInUse.of(error) from None


def find_slot(db: psycopg.Connection, slot: str) -> SlotState | None:
    """The slot, or None if the server doesn't have it."""
    # `invalidation_reason` exists since PostgreSQL 17; in every version, wal_status shows a lost slot.
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
    """The slot. Raises `SlotLost` if it is missing or invalidated, and `InvalidUsage` if it belongs to
    another plugin or database."""
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
    """Raise `SlotLost` if the slot does not continue at the bound position."""
    if found.log_end < bound:
        raise SlotLost(
            f"the database's log ends at {lsn_text(found.log_end)}, and changes are bound up to"
            f" {lsn_text(bound)}",
            hint="this is another database or an older copy; if it is the right one,"
            f" {restart_hint(found.name)}",
        )
    known = max(bound, acknowledged)
    if found.confirmed > known:
        raise SlotLost(
            f"replication slot {found.name!r} is at {lsn_text(found.confirmed)}, but only"
            f" {lsn_text(known)} was acknowledged: it was created again, or advanced by another process",
            hint=restart_hint(found.name),
        )


def peek(
    db: psycopg.Connection, slot: str, publication: str, *, changes_max: int
) -> Generator[Sequence[bytes]]:
    """The slot's messages from its position on, in complete source transactions. They stay in the slot.

    The server checks `changes_max` after each source transaction, so the last one may exceed it. Messages are
    streamed in batches of bounded size, so a large transaction is never held in memory. The session can't be
    used for anything else until the generator ends or is closed; if it is closed early, the database
    transaction must end next."""
    query = (
        "SELECT data FROM pg_logical_slot_peek_binary_changes(%s, NULL, %s,"
        " 'proto_version', '1', 'publication_names', %s)"
    )
    values = (slot, changes_max, sql.Identifier(publication).as_string(db))
    batch, size = list[bytes](), 0
    # A SQL_ASCII server would refuse to send bytes that are not UTF-8. Here it sends them; `values` checks.
    is_raw = db.info.parameter_status("server_encoding") == _ANY_BYTES
    if is_raw:
        db.execute(f"SET LOCAL client_encoding = {_ANY_BYTES}")
    with db.cursor() as cursor:
        # It is declared as an iterator, but is a generator, which can be closed.
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
    """Batches of messages, with the `count` of messages so far."""

    def __init__(self, batches: Iterator[Sequence[bytes]]) -> None:
        self._batches = batches
        self.count = 0

    def __next__(self) -> Sequence[bytes]:
        found = next(self._batches)
        self.count += len(found)
        return found


def advance(db: psycopg.Connection, slot: str, lsn: int) -> None:
    """Advance the slot, so that the server may remove the WAL below. This can't be undone."""
    db.execute("SELECT pg_replication_slot_advance(%s, %s::pg_lsn)", (slot, lsn_text(lsn)))


def mark(db: psycopg.Connection) -> int:
    """Write a mark into the write-ahead log, durable when this returns; returns the position of its end.

    That position is the end of a WAL record, and everything before it is flushed. Neither is certain for the
    positions that the server reports: a slot that is advanced into the middle of a commit record never sends
    that commit. Must be called outside of a database transaction."""
    with db.transaction():
        db.execute("SET LOCAL synchronous_commit = on")
        row = db.execute("SELECT pg_logical_emit_message(true, 'tidemark', '')::text").fetchone()
    if row is None:
        raise InvariantViolation("the server did not report the position of its message")
    return parsed_lsn(row[0])
