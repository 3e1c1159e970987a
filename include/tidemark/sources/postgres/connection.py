"""Connections by id: out of the environment, or from Airflow. No password ever leaves this module.

`AIRFLOW_CONN_<ID>` holds a connection as Airflow spells it, a URI or JSON; where there is none, Airflow is
asked. What PostgreSQL says when it refuses a connection names user, host and database, never the password.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import psycopg
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict

from tidemark.core.errors import Determinate, InvalidUsage, TidemarkError

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
}
"""A session's settings decide how values are spelled; these spell every value in full."""
_REFUSALS: Final = ("authentication", "does not exist", "pg_hba.conf", "no password supplied", "REPLICATION")


def parameters_of(conn_id: str, environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """The libpq parameters of a connection."""
    text = environ.get(f"AIRFLOW_CONN_{conn_id.upper()}")
    if text is None:
        return _from_airflow(conn_id)
    try:
        if text.lstrip().startswith("{"):
            return _from_fields(json.loads(text))
        return _checked(conninfo_to_dict(text.replace("postgres://", "postgresql://", 1)))
    except (ValueError, TypeError, psycopg.Error):
        # What is wrong with it may be told by its text, which holds the password: say nothing of it.
        raise InvalidUsage(
            f"connection {conn_id!r} in the environment can't be read",
            hint="write postgresql://user:password@host:5432/database, or Airflow's JSON",
        ) from None


def _from_airflow(conn_id: str) -> dict[str, Any]:
    hint = f"define it in Airflow, or set AIRFLOW_CONN_{conn_id.upper()}"
    try:
        from airflow.sdk import BaseHook

        found = BaseHook.get_connection(conn_id)
    except Exception as error:
        fact = f"there is no connection {conn_id!r} ({type(error).__name__})"
        raise InvalidUsage(fact, hint=hint) from None
    names = ("host", "port", "schema", "login", "password")
    return _from_fields({**{name: getattr(found, name) for name in names}, "extra": found.extra_dejson})


def _from_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    extra = fields.get("extra") or {}
    options = json.loads(extra) if isinstance(extra, str) else extra
    wanted = {"host": "host", "port": "port", "dbname": "schema", "user": "login", "password": "password"}
    found = {name: fields.get(field) for name, field in wanted.items()}
    kept = {name: str(value) for name, value in options.items() if name.startswith(("ssl", "target_session"))}
    return _checked({**{name: value for name, value in found.items() if value not in (None, "")}, **kept})


def _checked(parameters: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in parameters.items() if name != "options"}


def connect(conn_id: str, *, replication: bool = False) -> psycopg.Connection:
    """A session that spells values in full; one for `replication` may make slots, and takes no parameters."""
    options = " ".join(f"-c {name}={value}" for name, value in SETTINGS.items())
    more = {"replication": "database"} if replication else {}
    try:
        return psycopg.connect(
            **{**parameters_of(conn_id), **more},
            options=options,
            connect_timeout=CONNECT_SECONDS_MAX,
            application_name="tidemark",
            autocommit=replication,
        )
    except psycopg.OperationalError as error:
        said = "; ".join(line.strip() for line in str(error).splitlines() if line.strip())
        fact = f"connection {conn_id!r} was not made: {said}"
        if any(word in said for word in _REFUSALS):
            raise InvalidUsage(fact, hint="check its login, password, database and rights") from None
        raise Determinate(fact, hint="check that the server runs and can be reached") from None


@contextmanager
def told() -> Iterator[None]:
    """Let the database's own errors come out in our families, with the words it used."""
    try:
        yield
    except TidemarkError:
        raise
    except errors.InsufficientPrivilege as error:
        hint = "`tidemark source check` names the rights that are missing"
        raise InvalidUsage(f"the database refuses: {_said(error)}", hint=hint) from None
    except (errors.LockNotAvailable, errors.ObjectInUse) as error:
        hint = "another process works with the slot; try again when it is done"
        raise Determinate(f"the slot is in use: {_said(error)}", hint=hint) from None
    except psycopg.Error as error:
        raise Determinate(f"the database failed: {_said(error)}", hint="look at its log; retry") from None


def _said(error: psycopg.Error) -> str:
    return error.diag.message_primary or type(error).__name__
