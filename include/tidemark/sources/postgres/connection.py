"""Database sessions by connection id, and the translation of database errors.

No password leaves this module: PostgreSQL's messages name user, host and database, never the password.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import psycopg
from psycopg import errors

from tidemark.core.errors import Determinate, InvalidUsage, TidemarkError
from tidemark.sources.connections import find_connection

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
