"""What a table has on record about its columns and its rows, as Delta keeps it.

A row's hash leaves NULL columns out (`spark.digest`), so rows that were written before a column came keep
their digests, and files that lack it are read as NULL. Anything else would change what is on record.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from deltalake import Field, Schema

from tidemark.core.errors import InvalidUsage
from tidemark.core.shape import Shape
from tidemark.delta.head import TableHead
from tidemark.delta.schema import LOG_COLUMNS, SCALARS

_KEYS: Final = "tidemark.keys"
_SEQUENCE_BY: Final = "tidemark.sequence_by"
NOT_NULL: Final = "tidemark.keys_not_null"
_EXPIRING_IDS: Final = "delta.setTransactionRetentionDuration"
_OURS: Final = frozenset(column.name for column in LOG_COLUMNS)
_DDL: Final = {kind: name for name, kind in SCALARS.items()}


def check_columns(table: str, there: Schema, declared: Schema | None) -> None:
    """`InvalidUsage` for a control table whose columns are not those of this version."""
    wanted = {field.name: field for field in (declared or there).fields}
    for field in there.fields:
        if wanted.get(field.name) != field:
            raise InvalidUsage(
                f"column {field.name!r} of {table} is not one that this version writes",
                hint="use the version of tidemark that made the warehouse",
            )


def check_marks_last(table: str, there: Mapping[str, str]) -> None:
    """`InvalidUsage` for a table that would forget its marks."""
    if _EXPIRING_IDS in there:
        raise InvalidUsage(
            f"{table} has {_EXPIRING_IDS}: its marks would expire, and old work would be done again",
            hint=f"unset {_EXPIRING_IDS} on the table",
        )


@lru_cache(maxsize=64)
def _schema(text: str) -> Schema:
    return Schema.from_json(text)


def schema_of(head: TableHead) -> Schema:
    """The columns of a table's version."""
    return _schema(str(head.metadata["schemaString"]))


def lacking(there: Schema | None, declared: Schema | None) -> list[Field]:
    """The declared columns that a table doesn't have yet; none where there is no table."""
    if there is None or declared is None:
        return []
    names = {field.name for field in there.fields}
    return [field for field in declared.fields if field.name not in names]


def properties_of(shape: Shape) -> dict[str, str]:
    """How a log's rows are folded, as properties of its table."""
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
    """A type of Delta's as a pipeline file has it."""
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
