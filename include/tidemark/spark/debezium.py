"""Debezium's envelope, opened: a change with its `before` and `after`, with or without its schema.

Kafka Connect's JSON converter writes `{"schema": …, "payload": …}`, values and keys alike, or the payload
alone. Both are read, record by record. What the schema says of the columns goes along (see `values`).
"""

from __future__ import annotations

from typing import Final

from tidemark.spark.read import KEY_DOCUMENT, RAW
from tidemark.spark.sql import case, literal
from tidemark.spark.values import TYPES, TYPES_TYPE

ORIGIN_TYPE: Final = "struct<db:string,schema:string,table:string>"
_CHANGE: Final = f"before:string,after:string,op:string,source:{ORIGIN_TYPE}"
_SCHEMA: Final = f"schema:struct<fields:array<struct<field:string,fields:{TYPES_TYPE}>>>"
_TOMBSTONE: Final = literal('{"schema":null,"payload":null}')
IS_EMPTY: Final = f"trim({RAW}) IN ('null', {_TOMBSTONE})"
_TABLE: Final = "concat('of ', nullif(concat_ws('.', _inner.source.schema, _inner.source.table), ''))"
TRUNCATES: Final = case("_inner.op = 't'", f"concat_ws(' ', 'a truncate', {_TABLE}, 'can\\'t be applied')")


def outer(*, typed: bool) -> str:
    """The record as `_all`."""
    schema = f",{_SCHEMA}" if typed else ""
    return f"from_json({RAW}, 'struct<payload:struct<{_CHANGE}>,{_CHANGE}{schema}>') AS _all"


def inner(*, typed: bool) -> list[str]:
    """The change as `_inner`, whether it stands alone or not; and what its schema says of the columns."""
    change = "coalesce(_all.payload, struct(_all.before, _all.after, _all.op, _all.source)) AS _inner"
    types = f"get(filter(_all.schema.fields, f -> f.field = 'after'), 0).fields AS {TYPES}"
    return [change, *([types] if typed else [])]


def key() -> str:
    """The key as a JSON object, without its schema."""
    opened = f"from_json({KEY_DOCUMENT}, 'struct<schema:struct<type:string>,payload:string>')"
    alone = f"isnull({opened}.schema.type)"
    return f"CASE WHEN {alone} THEN {KEY_DOCUMENT} ELSE {opened}.payload END AS {KEY_DOCUMENT}"
