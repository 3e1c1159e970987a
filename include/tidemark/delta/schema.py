"""Declared columns as Delta's own schema, so that a log can be made without starting Spark."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

from deltalake import Schema

from tidemark.config.ddl import parse_schema
from tidemark.config.schema import Array, Column, DataType, Decimal, Map, Scalar, Struct
from tidemark.config.schema import Schema as Columns
from tidemark.core.shape import Shape

SCALARS: Final = {
    "BOOLEAN": "boolean",
    "TINYINT": "byte",
    "SMALLINT": "short",
    "INT": "integer",
    "BIGINT": "long",
    "FLOAT": "float",
    "DOUBLE": "double",
    "STRING": "string",
    "BINARY": "binary",
    "DATE": "date",
    "TIMESTAMP": "timestamp",
    "TIMESTAMP_NTZ": "timestamp_ntz",
}
_TEXT, _LONG = Scalar("STRING"), Scalar("BIGINT")
_POSITION: Final = (Column("_partition", _TEXT), Column("_offset", _LONG), Column("_ordinal", _LONG))
LOG_COLUMNS: Final = (Column("_txn", _LONG), Column("_op", _TEXT), *_POSITION)
QUARANTINE_COLUMNS: Final = (
    Column("_txn", _LONG),
    *(Column(name, _TEXT) for name in ("_shard", "_key", "_raw", "_reason")),
    *_POSITION,
)


def log_schema(shape: Shape) -> Schema:
    """The columns of a shard's log. All are nullable: a delete has its key and its sequence only."""
    columns = (Column(name, _parsed(kind)) for name, kind in shape.columns.items())
    return _schema((*columns, *LOG_COLUMNS))


def declared_json(columns: Columns) -> dict[str, Any]:
    """Declared columns as Spark and Delta write them in JSON."""
    fields = [_field(column.name, column.type, nullable=column.nullable) for column in columns]
    return {"type": "struct", "fields": fields}


def quarantine_schema() -> Schema:
    """The columns of the log that takes a pipeline's bad records."""
    return _schema(QUARANTINE_COLUMNS)


def _parsed(kind: str) -> DataType:
    (column,) = parse_schema(f"c {kind}").columns
    return column.type


def _schema(columns: Iterable[Column]) -> Schema:
    fields = [_field(column.name, column.type, nullable=True) for column in columns]
    return Schema.from_json(json.dumps({"type": "struct", "fields": fields}))


def _field(name: str, kind: DataType, *, nullable: bool) -> dict[str, Any]:
    return {"name": name, "type": _type(kind), "nullable": nullable, "metadata": {}}


def _type(kind: DataType) -> Any:
    match kind:
        case Decimal(precision, scale):
            return f"decimal({precision},{scale})"
        case Array(element):
            return {"type": "array", "elementType": _type(element), "containsNull": True}
        case Map(key, value):
            return {
                "type": "map",
                "keyType": _type(key),
                "valueType": _type(value),
                "valueContainsNull": True,
            }
        case Struct(fields):
            inner = [_field(field.name, field.type, nullable=field.nullable) for field in fields]
            return {"type": "struct", "fields": inner}
        case Scalar(name):
            return SCALARS[name]
