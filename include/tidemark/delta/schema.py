"""Schemas of Delta tables: declared columns as a Delta schema, and the shape that a log has on record.

Both work without Spark, so that a log can be created without starting it.

A row's hash leaves out NULL columns (`spark.digest`). So rows that were written before a column was added
keep their digests, and files that lack it are read as NULL. Any other change would contradict the recorded
data.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

from deltalake import Field, Schema

from tidemark.config.schema import Array, Column, DataType, Decimal, Map, Scalar, Struct, parse_schema
from tidemark.config.schema import Schema as Columns
from tidemark.core.errors import InvalidUsage
from tidemark.core.shape import Shape
from tidemark.delta.head import TableHead

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
    """The schema of a shard's log. All columns are nullable: a delete has only its key and its sequence."""
    columns = (Column(name, _parsed(kind)) for name, kind in shape.columns.items())
    return _schema((*columns, *LOG_COLUMNS))


def declared_json(columns: Columns) -> dict[str, Any]:
    """Declared columns in the JSON format of Spark and Delta."""
    fields = [_field(column.name, column.type, nullable=column.nullable) for column in columns]
    return {"type": "struct", "fields": fields}


def quarantine_schema() -> Schema:
    """The schema of the log for a pipeline's rejected records."""
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


_KEYS: Final = "tidemark.keys"
_SEQUENCE_BY: Final = "tidemark.sequence_by"
NOT_NULL: Final = "tidemark.keys_not_null"
_EXPIRING_IDS: Final = "delta.setTransactionRetentionDuration"
_OURS: Final = frozenset(column.name for column in LOG_COLUMNS)
_DDL: Final = {kind: name for name, kind in SCALARS.items()}


def check_columns(table: str, there: Schema, declared: Schema | None) -> None:
    """`InvalidUsage` if a table has columns that this version doesn't write."""
    wanted = {field.name: field for field in (declared or there).fields}
    for field in there.fields:
        if wanted.get(field.name) != field:
            raise InvalidUsage(
                f"column {field.name!r} of {table} is not one of this version's columns",
                hint="use the version of tidemark that made the warehouse",
            )


def check_marks_last(table: str, there: Mapping[str, str]) -> None:
    """`InvalidUsage` if the table's application transactions expire, because marks would be lost."""
    if _EXPIRING_IDS in there:
        raise InvalidUsage(
            f"{table} has {_EXPIRING_IDS}: its marks would expire, and finished work would be repeated",
            hint=f"unset {_EXPIRING_IDS} on the table",
        )


@lru_cache(maxsize=64)
def _recorded_schema(text: str) -> Schema:
    return Schema.from_json(text)


def schema_of(head: TableHead) -> Schema:
    return _recorded_schema(str(head.metadata["schemaString"]))


def lacking(there: Schema | None, declared: Schema | None) -> list[Field]:
    """The declared columns that a table lacks; empty if there is no table."""
    if there is None or declared is None:
        return []
    names = {field.name for field in there.fields}
    return [field for field in declared.fields if field.name not in names]


def properties_of(shape: Shape) -> dict[str, str]:
    """A shape's keys and sequence as table properties."""
    found = {
        _KEYS: None if shape.keys is None else json.dumps(list(shape.keys)),
        _SEQUENCE_BY: shape.sequence_by,
        NOT_NULL: None if shape.not_null is None else json.dumps(sorted(shape.not_null)),
    }
    return {name: value for name, value in found.items() if value is not None}


def shape_of(schema: Schema, properties: Mapping[str, str]) -> Shape:
    """The shape that a log's table has on record."""
    columns = {
        field.name: _ddl(json.loads(field.to_json())["type"])
        for field in schema.fields
        if field.name not in _OURS
    }
    keys, not_null = (json.loads(properties.get(name, "null")) for name in (_KEYS, NOT_NULL))
    return Shape(
        columns,
        None if keys is None else tuple(keys),
        properties.get(_SEQUENCE_BY),
        None if not_null is None else frozenset(not_null),
    )


def _ddl(kind: Any) -> str:
    """A Delta type in the notation of pipeline files."""
    if isinstance(kind, str):
        return _DDL.get(kind, kind.upper())
    match kind["type"]:
        case "array":
            return f"ARRAY<{_ddl(kind['elementType'])}>"
        case "map":
            return f"MAP<{_ddl(kind['keyType'])},{_ddl(kind['valueType'])}>"
        case _:
            fields = (
                f"`{field['name']}`:{_ddl(field['type'])}{'' if field['nullable'] else ' NOT NULL'}"
                for field in kind["fields"]
            )
            return f"STRUCT<{','.join(fields)}>"
