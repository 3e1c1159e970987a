"""Airflow connections by id, read from the environment as JSON or as a URI.

The connection `orders_db` comes from the variable `AIRFLOW_CONN_ORDERS_DB`. When Airflow runs a step, it
sets this variable from its own backend (`tidemark.airflow.steps`). A connection stays in memory: no message,
record or command line contains a value of it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from tidemark.core.errors import InvalidUsage


@dataclass(frozen=True, slots=True)
class Connection:
    """The fields of a connection, empty where it has none. Its `repr` shows none of them."""

    host: str = field(default="", repr=False)
    port: str = field(default="", repr=False)
    schema: str = field(default="", repr=False)
    login: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    extra: Mapping[str, Any] = field(default_factory=dict, repr=False)


def variable_of(conn_id: str) -> str:
    """The name of the environment variable that holds a connection."""
    return f"AIRFLOW_CONN_{conn_id.upper()}"


def find_connection(
    conn_id: str, environ: Mapping[str, str] = os.environ, *, example: str = ""
) -> Connection:
    """The connection. Raises `InvalidUsage` when it is missing or can't be parsed; `example` is a connection
    of the same kind for the hint."""
    text = environ.get(variable_of(conn_id), "")
    if not text:
        hint = f"create it in Airflow, or set {variable_of(conn_id)} to its JSON or URI"
        raise InvalidUsage(f"there is no connection {conn_id!r}", hint=hint)
    try:
        return _from_json(text) if text.lstrip().startswith("{") else _from_uri(text)
    except (ValueError, TypeError, AttributeError):
        # The parser's error may quote the text, which holds the password, so the message omits it.
        raise InvalidUsage(f"connection {conn_id!r} can't be read", hint=f"write {example}") from None


def _from_json(text: str) -> Connection:
    fields = json.loads(text)
    named = {name: str(fields.get(name) or "") for name in ("host", "port", "schema", "login", "password")}
    return Connection(**named, extra=_extra(fields.get("extra") or {}))


def _from_uri(text: str) -> Connection:
    found = urlsplit(text)
    query = dict(parse_qsl(found.query, keep_blank_values=True))
    extra = _extra(query.pop("__extra__", "{}"))
    return Connection(
        host=unquote(found.hostname or ""),
        port=str(found.port or ""),
        schema=unquote(found.path.removeprefix("/")),
        login=unquote(found.username or ""),
        password=unquote(found.password or ""),
        extra={**query, **extra},
    )


def _extra(found: Any) -> dict[str, Any]:
    extra = json.loads(found) if isinstance(found, str) else found
    if not isinstance(extra, dict):
        raise ValueError("extra is not an object")
    return extra
