"""Loads `airflow_settings.yaml`, in the Astro CLI's format, into Airflow's database.

Loading it again updates the connections, pools and variables of the file and changes no others.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from tidemark.core.errors import InvalidUsage

SPARK_PORT: Final = "TIDEMARK_SPARK_PORT"
SPARK_TOKEN: Final = "TIDEMARK_SPARK_TOKEN"
Items = BeforeValidator(lambda value: value or [])


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ConnectionSetting(_Model):
    """One connection; empty values are ignored."""

    conn_id: str
    conn_type: str | None = None
    conn_host: str | None = None
    conn_schema: str | None = None
    conn_login: str | None = None
    conn_password: str | None = None
    conn_port: int | None = None
    conn_uri: str | None = None
    conn_extra: dict[str, Any] | str | None = None


class PoolSetting(_Model):
    """One pool."""

    pool_name: str
    pool_slot: int = Field(ge=-1)
    pool_description: str | None = None
    include_deferred: bool = False


class VariableSetting(_Model):
    """One variable."""

    variable_name: str
    variable_value: str | None = None


class AirflowSettings(_Model):
    """The contents of the file below its key `airflow`."""

    connections: Annotated[tuple[ConnectionSetting, ...], Items] = ()
    pools: Annotated[tuple[PoolSetting, ...], Items] = ()
    variables: Annotated[tuple[VariableSetting, ...], Items] = ()


def read_settings(file: Path) -> AirflowSettings:
    """The settings of a file; `InvalidUsage` with the problems if it is not valid."""
    try:
        document = yaml.safe_load(file.read_text())
        return AirflowSettings.model_validate((document or {}).get("airflow") or {})
    except (OSError, yaml.YAMLError) as error:
        raise InvalidUsage(f"{file.name} can't be read: {error}", hint="mend the file") from None
    except (ValidationError, AttributeError) as error:
        facts = (
            [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors(include_input=False)]
            if isinstance(error, ValidationError)
            else ["it has no top key 'airflow'"]
        )
        raise InvalidUsage(f"{file.name}: {'; '.join(facts[:5])}", hint="mend the file") from None


def load_settings(settings: AirflowSettings) -> None:
    """Write the settings to the database of the Airflow that this process is configured for."""
    from airflow.models import Connection, Pool, Variable
    from airflow.utils.session import create_session

    with create_session() as session:
        for one in settings.connections:
            session.query(Connection).filter(Connection.conn_id == one.conn_id).delete()
            session.add(_connection(Connection, one))
        for pool in settings.pools:
            Pool.create_or_update_pool(
                name=pool.pool_name,
                slots=pool.pool_slot,
                description=pool.pool_description or "",
                include_deferred=pool.include_deferred,
                session=session,
            )
        for variable in settings.variables:
            Variable.set(variable.variable_name, variable.variable_value or "", session=session)


def _connection(kind: Any, one: ConnectionSetting) -> Any:
    if one.conn_uri:
        return kind(conn_id=one.conn_id, uri=one.conn_uri)
    extra = json.dumps(one.conn_extra) if isinstance(one.conn_extra, dict) else one.conn_extra
    return kind(
        conn_id=one.conn_id,
        conn_type=one.conn_type,
        host=one.conn_host,
        schema=one.conn_schema,
        login=one.conn_login,
        password=one.conn_password,
        port=one.conn_port,
        extra=extra,
    )


def spark_settings(environ: Mapping[str, str]) -> AirflowSettings:
    """The connection to the Airflow's own Spark Connect server; empty if there is none."""
    if not environ.get(SPARK_PORT):
        return AirflowSettings()
    connection = ConnectionSetting(
        conn_id="spark_connect_default",
        conn_type="spark_connect",
        conn_host="localhost",
        conn_port=int(environ[SPARK_PORT]),
        conn_password=environ[SPARK_TOKEN],
    )
    return AirflowSettings(connections=(connection,))
