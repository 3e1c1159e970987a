"""Debezium's envelope, opened: a change with its `before` and `after`, with or without its schema.

Kafka Connect's JSON converter writes `{"schema": …, "payload": …}`, values and keys alike, or the payload
alone. Both are read, record by record. What the schema says of the columns goes along (see `values`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import DataFrame

from tidemark.spark.read import KEY_DOCUMENT, RAW
from tidemark.spark.sql import case, literal
from tidemark.spark.values import TYPES, TYPES_TYPE

ORIGIN_TYPE: Final = "struct<db:string,schema:string,table:string>"
_CHANGE: Final = f"before:string,after:string,op:string,source:{ORIGIN_TYPE}"
_SCHEMA: Final = f"schema:struct<fields:array<struct<field:string,fields:{TYPES_TYPE}>>>"
_TOMBSTONE: Final = literal('{"schema":null,"payload":null}')
IS_EMPTY: Final = f"coalesce(trim({RAW}) IN ('null', {_TOMBSTONE}), false)"
_TABLE: Final = "concat('of ', nullif(concat_ws('.', _inner.source.schema, _inner.source.table), ''))"
TRUNCATES: Final = case("_inner.op = 't'", f"concat_ws(' ', 'a truncate', {_TABLE}, 'can\\'t be applied')")


def opened(frame: DataFrame, kept: Sequence[str], *, typed: bool) -> DataFrame:
    """What is kept of a record, with the change as `_inner`, whether it stands alone or not; and what its
    schema says of the columns."""
    schema = f",{_SCHEMA}" if typed else ""
    outer = f"from_json({RAW}, 'struct<payload:struct<{_CHANGE}>,{_CHANGE}{schema}>') AS _all"
    inner = "coalesce(_all.payload, struct(_all.before, _all.after, _all.op, _all.source)) AS _inner"
    types = f"get(filter(_all.schema.fields, f -> f.field = 'after'), 0).fields AS {TYPES}"
    return frame.selectExpr("*", outer).selectExpr(*kept, inner, *([types] if typed else []))


def document(*, keyed: bool) -> str:
    """The row of an opened change; of a deletion without a `before` the key of its record."""
    by_key = case("_inner.op = 'd'", KEY_DOCUMENT) if keyed else "cast(null as string)"
    return f"coalesce(_inner.after, _inner.before, {by_key})"


def broken(corrupt: str, gone: str, needed: Sequence[str]) -> str:
    """Whether a record is broken: a deletion needs no more than its key, and its place in the order."""
    readable = " AND ".join(f"isnotnull({value})" for value in needed)
    return f"({corrupt} AND NOT ({gone} AND {readable}))"


def key() -> str:
    """The key as a JSON object, without its schema."""
    opened = f"from_json({KEY_DOCUMENT}, 'struct<schema:struct<type:string>,payload:string>')"
    alone = f"isnull({opened}.schema.type)"
    return f"CASE WHEN {alone} THEN {KEY_DOCUMENT} ELSE {opened}.payload END AS {KEY_DOCUMENT}"
