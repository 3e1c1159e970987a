"""What a task's connection says of Spark: the master of a `spark` one, the address of a `spark_connect` one.

Both as the Spark provider reads them. Its own URL of a server leaves a slash in the token as it is, and
PySpark then refuses the URL and quotes it: here the token is no part of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from tidemark.core.errors import InvalidUsage

if TYPE_CHECKING:
    from airflow.sdk import Connection

CONNECT_TYPE = "spark_connect"
LOCAL = "local[*]"


def master_of(found: Connection) -> str:
    """The master: of a connection from a URI its scheme is the type, and host and port stand apart."""
    if not found.host and not found.port:
        return LOCAL
    port = f":{found.port}" if found.port else ""
    if found.conn_type == "spark" and found.host and ("://" in found.host or not port):
        return f"{found.host}{port}"
    return f"{found.conn_type}://{found.host or ''}{port}"


def connect_url(found: Connection) -> str:
    """The server's address, without the token. `InvalidUsage` where the connection has no host."""
    host = (found.host or "").removeprefix("sc://").rstrip("/")
    if not host:
        raise InvalidUsage(f"the connection {found.conn_id!r} has no host", hint="give it the server's name")
    given = {"user_id": found.login, "use_ssl": found.extra_dejson.get("use_ssl")}
    more = ";".join(f"{name}={quote(str(value), safe='')}" for name, value in given.items() if value)
    return f"sc://{host}{f':{found.port}' if found.port else ''}{f'/;{more}' if more else ''}"
