"""New columns in a transaction's records, for shards that accept them (`add_columns`), and their types.

The search runs only after the transaction was refused, so records without new columns cost nothing. It
covers all records of the transaction, so the order of records does not matter; their schemas must agree.

Kafka Connect schemas in JSON, Avro schemas and Parquet footers each have their own types. This module maps
each one to a type that holds its values without loss. A type without such a match is refused; the user then
declares the column's type in the pipeline file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from tidemark.config import PipelineConfig, ShardConfig
from tidemark.config.kafka import AvroSchemas
from tidemark.config.source import Debezium
from tidemark.config.storage import opened
from tidemark.core.errors import InvalidUsage
from tidemark.core.ids import ShardId, Txn
from tidemark.spark import documents as doc
from tidemark.spark.columns import OFFSET, ORDINAL, PARTITION, literal, texts
from tidemark.spark.inputs import FilesInput, Input, TopicsInput
from tidemark.spark.read import RAW, RECORD, WIRE_BYTES

COLUMNS_MAX: Final = 10_000
_NAME: Final = "_name"
_EVIDENCE: Final = "_told"
_PLACE: Final = "_place"
_SCHEMA: Final = "struct<schema:struct<fields:array<struct<field:string,fields:array<string>>>>>"
_SEND: Final = "; or have the connector send schemas along (value.converter.schemas.enable=true)"


@dataclass(frozen=True, slots=True)
class DeclaredColumn:
    """A new column and its type in the schema of a record or file; `kind` is None without a schema."""

    shard: str
    column: str
    kind: str | None
    place: str


def columns_of(declared: Iterator[DeclaredColumn], txn: Txn) -> dict[ShardId, dict[str, str]]:
    """The types of the new columns by shard. Raises `InvalidUsage` for a column with two types or with
    none."""
    found: dict[ShardId, dict[str, DeclaredColumn]] = {}
    for one in declared:
        if one.kind is None:
            fact = f"undeclared column {one.column!r}, whose type the record does not carry"
            fact = f"transaction {txn} is refused at {one.place}: {fact}"
            raise InvalidUsage(fact, hint=f"{DECLARE}{_SEND}")
        first = found.setdefault(ShardId(one.shard), {}).setdefault(one.column, one)
        if first.kind != one.kind:
            kinds = f"{first.kind} at {first.place}, but {one.kind} at {one.place}"
            fact = f"transaction {txn} is refused: new column {one.column!r} of shard {one.shard} is {kinds}"
            raise InvalidUsage(fact, hint=DECLARE)
    return {shard: {name: str(one.kind) for name, one in sorted(by.items())} for shard, by in found.items()}


def growing_shards(config: PipelineConfig) -> tuple[ShardConfig, ...]:
    return tuple(shard for shard in config.shards if config.grows(shard))


def columns_of_files(config: PipelineConfig, read: FilesInput, txn: Txn) -> Iterator[DeclaredColumn]:
    """The new columns in the footers of Parquet files. Columns belong to the file, not to records: every
    growing shard gets them."""
    for file in read.files:
        place = f"file {file.name!r}"
        columns = parquet_columns(f"{read.folder}/{file.name}")
        for shard in growing_shards(config):
            for name in columns.keys() - set(doc.known_schema(shard).names):
                with _named(txn, place, name):
                    yield DeclaredColumn(shard.name, name, parquet_type(*columns[name]), place)


def columns_of_records(
    config: PipelineConfig, read: Input, form: doc.RecordForm, routed: DataFrame, txn: Txn
) -> Iterator[DeclaredColumn]:
    """The new columns in the schemas of records: Kafka Connect schemas beside them, or Avro schemas."""
    schemas = read.value_schemas(config) if isinstance(read, TopicsInput) else None
    settings = (config.debezium or Debezium()) if config.envelope == "debezium" else None
    types = _AvroTypes(schemas, settings) if schemas is not None else _ConnectTypes(settings or Debezium())
    for shard in growing_shards(config):
        names = texts([*doc.known_schema(shard).names, *form.headers])
        there = f"{doc.SHARD} = {literal(shard.name)} AND NOT {doc.SKIP}"
        if form.envelope != "debezium":
            there += f" AND NOT {doc.GONE}"  # A deletion has only its key.
        new = routed.where(there).selectExpr(
            "*", f"explode(array_except(json_object_keys({doc.DOCUMENT}), {names})) AS {_NAME}"
        )
        found = new.groupBy(_NAME, F.expr(types.evidence).alias(_EVIDENCE)).agg(
            F.expr(f"min(struct({PARTITION}, {OFFSET}, {ORDINAL})) AS {_PLACE}")
        )
        rows = [(row[_NAME], row[_EVIDENCE], row[_PLACE]) for row in found.limit(COLUMNS_MAX).collect()]
        for name, evidence, at in sorted(rows, key=lambda row: (row[0], tuple(row[2]))):
            place = read.place(*at)
            with _named(txn, place, name):
                yield DeclaredColumn(shard.name, name, types.of(name, evidence), place)


@contextmanager
def _named(txn: Txn, place: str, column: str) -> Iterator[None]:
    """Add the column and its place to an error about its type."""
    try:
        yield
    except InvalidUsage as error:
        fact = f"transaction {txn} is refused at {place}: new column {column!r}: {error.fact}"
        raise InvalidUsage(fact, hint=error.hint) from None


class _ConnectTypes:
    """Types from the schemas that Kafka Connect's JSON converter writes beside its records."""

    _row = f"get(filter(from_json({RAW}, '{_SCHEMA}').schema.fields, f -> f.field = 'after'), 0)"
    evidence = f"get(filter({_row}.fields, c -> get_json_object(c, '$.field') = {_NAME}), 0)"

    def __init__(self, settings: Debezium) -> None:
        self._settings = settings

    def of(self, column: str, evidence: str | None) -> str | None:
        if evidence is None:
            return None
        try:
            return connect_type(json.loads(evidence), self._settings)
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
            raise InvalidUsage("its schema can't be read", hint=DECLARE) from None


class _AvroTypes:
    """Types from the Avro schemas of the records. In a connector's schema, the row is in `after`."""

    def __init__(self, schemas: AvroSchemas, settings: Debezium | None) -> None:
        self._settings = settings
        row = "after" if settings is not None else ""
        self._by_wire = {f"00{number:08X}": avro_columns(text, row=row) for number, text in schemas.by_id}
        if schemas.plain:
            self._by_wire[""] = avro_columns(schemas.plain, row=row)
        self.evidence = "''" if schemas.plain else f"hex(substring({RECORD}.value, 1, {WIRE_BYTES}))"

    def of(self, column: str, evidence: str | None) -> str | None:
        columns = self._by_wire.get(evidence or "", {})
        return avro_type(columns[column], self._settings) if column in columns else None


DECLARE: Final = "declare it in the pipeline file, with a type that holds its values"
PRECISION_MAX: Final = 38

_CONNECT: Final = {
    "boolean": "BOOLEAN",
    "int8": "TINYINT",
    "int16": "SMALLINT",
    "int32": "INT",
    "int64": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "string": "STRING",
    "bytes": "BINARY",
}
_DECIMAL: Final = "org.apache.kafka.connect.data.Decimal"
_NAMED: Final = {
    "io.debezium.time.Date": "DATE",
    "io.debezium.time.IsoDate": "DATE",
    "org.apache.kafka.connect.data.Date": "DATE",
    "io.debezium.time.Timestamp": "TIMESTAMP_NTZ",
    "io.debezium.time.MicroTimestamp": "TIMESTAMP_NTZ",
    "io.debezium.time.NanoTimestamp": "TIMESTAMP_NTZ",
    "io.debezium.time.IsoTimestamp": "TIMESTAMP_NTZ",
    "org.apache.kafka.connect.data.Timestamp": "TIMESTAMP_NTZ",
    "io.debezium.time.ZonedTimestamp": "TIMESTAMP",
}
_AS_WRITTEN: Final = frozenset(
    {f"io.debezium.time.{name}" for name in ("Time", "MicroTime", "NanoTime", "Year")}
    | {f"io.debezium.time.{name}" for name in ("MicroDuration", "NanoDuration")}
    | {"io.debezium.data.Bits", "org.apache.kafka.connect.data.Time"}
)
"""Types whose values are read as the connector writes them."""
_UNIT_OF_MODE: Final = {
    "connect": "org.apache.kafka.connect.data.Timestamp",
    "microseconds": "io.debezium.time.MicroTimestamp",
    "nanoseconds": "io.debezium.time.NanoTimestamp",
}

_AVRO: Final = {
    "boolean": "BOOLEAN",
    "int": "INT",
    "long": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "string": "STRING",
    "bytes": "BINARY",
    "enum": "STRING",
    "fixed": "BINARY",
}
_AVRO_LOGICAL: Final = {
    ("int", "date"): "DATE",
    ("long", "timestamp-millis"): "TIMESTAMP",
    ("long", "timestamp-micros"): "TIMESTAMP",
    ("long", "local-timestamp-millis"): "TIMESTAMP_NTZ",
    ("long", "local-timestamp-micros"): "TIMESTAMP_NTZ",
    ("string", "uuid"): "STRING",
}


def _no_type(what: str, hint: str = DECLARE) -> InvalidUsage:
    return InvalidUsage(f"{what} has no type in Tidemark", hint=hint)


def _decimal(precision: int, scale: int) -> str:
    if not 0 <= scale <= precision <= PRECISION_MAX:
        raise _no_type(f"a decimal of {precision} digits, {scale} of them behind the point,")
    return f"DECIMAL({precision},{scale})"


def _struct(fields: Iterator[tuple[str, str]]) -> str:
    return f"STRUCT<{','.join(f'`{name}`:{kind}' for name, kind in fields)}>"


# Kafka Connect.


def connect_type(schema: Mapping[str, Any], settings: Debezium, *, depth: int = 0) -> str:
    """The type of a field of a Connect schema, as a JSON converter writes it. Times and decimals are decoded
    in a column or in the elements of an array, not deeper (`spark.values`); deeper ones are refused."""
    kind, name = str(schema.get("type")), str(schema.get("name") or "")
    if depth > 1 and (name == _DECIMAL or name in _NAMED):
        raise _no_type(f"{name} inside another type")
    if name == _DECIMAL:
        return _connect_decimal(schema, settings)
    if name in _NAMED:
        return _NAMED[name]
    # A string is read as it is, whatever its schema's name.
    if name and name not in _AS_WRITTEN and kind not in ("string", "struct"):
        raise _no_type(name)
    match kind:
        case "array":
            return f"ARRAY<{connect_type(schema['items'], settings, depth=depth + 1)}>"
        case "map" if schema["keys"].get("type") == "string":
            return f"MAP<STRING,{connect_type(schema['values'], settings, depth=depth + 2)}>"
        case "struct" if not name.startswith("io.debezium."):
            inner = ((f["field"], connect_type(f, settings, depth=depth + 2)) for f in schema["fields"])
            return _struct(inner)
    if kind not in _CONNECT:
        raise _no_type(name or kind)
    return _CONNECT[kind]


def _connect_decimal(schema: Mapping[str, Any], settings: Debezium) -> str:
    if settings.decimal_handling_mode != "precise":
        raise InvalidUsage(
            f"it is a precise decimal, and debezium.decimal_handling_mode is"
            f" {settings.decimal_handling_mode or 'not set'}",
            hint="write debezium: {decimal_handling_mode: precise}",
        )
    given = schema.get("parameters") or {}
    return _decimal(int(given.get("connect.decimal.precision", PRECISION_MAX)), int(given.get("scale", 0)))


# Avro.


def avro_columns(text: str, *, row: str = "") -> dict[str, Any]:
    """The columns of a record, or of the record in its field `row`, with their schemas. References to named
    types are resolved."""
    from fastavro.schema import parse_schema

    named: dict[str, Any] = {}
    whole = _resolved(parse_schema(json.loads(text), named), named)
    fields = {field["name"]: field["type"] for field in whole["fields"]}
    if row:
        inner, _ = _nullable(fields.get(row))
        fields = {f["name"]: f["type"] for f in inner["fields"]} if isinstance(inner, dict) else {}
    return fields


def _resolved(schema: Any, named: Mapping[str, Any]) -> Any:
    match schema:
        case str():
            return _resolved(named[schema], named) if schema in named else schema
        case list():
            return [_resolved(one, named) for one in schema]
        case {"type": "record", "fields": fields}:
            inner = [{**field, "type": _resolved(field["type"], named)} for field in fields]
            return {**schema, "fields": inner}
        case {"type": "array", "items": below}:
            return {**schema, "items": _resolved(below, named)}
        case {"type": "map", "values": below}:
            return {**schema, "values": _resolved(below, named)}
        case {"type": (dict() | list()) as below}:
            return _resolved(below, named)
    return schema


def _nullable(schema: Any) -> tuple[Any, bool]:
    """A schema without its NULL branch, and whether exactly one type is left."""
    if not isinstance(schema, list):
        return schema, True
    rest = [one for one in schema if one != "null"]
    return (rest[0], True) if len(rest) == 1 else (schema, False)


def avro_type(schema: Any, settings: Debezium | None) -> str:
    """The type of a resolved Avro schema. With a connector's `settings`, `connect.name` is used as well."""
    found, single = _nullable(schema)
    if not single:
        raise _no_type("a union of several types")
    of = found if isinstance(found, dict) else {"type": found}
    kind, logical, name = str(of.get("type")), of.get("logicalType"), of.get("connect.name", "")
    if settings is not None and name and not logical:
        return _avro_connect(kind, name, settings)
    match kind:
        case "array":
            return f"ARRAY<{avro_type(of['items'], settings)}>"
        case "map":
            return f"MAP<STRING,{avro_type(of['values'], settings)}>"
        case "record":
            return _struct((field["name"], avro_type(field["type"], settings)) for field in of["fields"])
    if logical == "decimal":
        return _decimal(int(of["precision"]), int(of.get("scale", 0)))
    given = _AVRO_LOGICAL.get((kind, str(logical)))
    if given is not None:
        return _NAMED.get(name, given) if settings is not None else given
    if logical is not None or kind not in _AVRO:
        raise _no_type(f"{kind} {logical}" if logical is not None else kind)
    return _AVRO[kind]


def _avro_connect(kind: str, name: str, settings: Debezium) -> str:
    """The type of a field with a Connect name. A number does not carry its unit: the connector's settings
    give it, and must match the name."""
    mode = settings.time_precision_mode
    if kind == "long" and name in _NAMED and _UNIT_OF_MODE.get(mode) != name:
        raise InvalidUsage(
            f"it is a {name}, and debezium.time_precision_mode is {mode}",
            hint="set the connector's time.precision.mode, and this one, to microseconds or isostring",
        )
    if kind == "int" and name in _NAMED and mode == "isostring":
        raise InvalidUsage(
            f"it is a {name}, and debezium.time_precision_mode is {mode}",
            hint="set debezium.time_precision_mode to the connector's mode",
        )
    if name in _NAMED:
        return _NAMED[name]
    if kind not in _AVRO or (name not in _AS_WRITTEN and kind != "string"):
        raise _no_type(name)
    return _AVRO[kind]


# Parquet.


def parquet_columns(path: str) -> dict[str, tuple[pa.DataType, str]]:
    """The columns of a file, each with its Arrow type and, where it is a plain one, its physical type."""
    file = pq.ParquetFile(opened(path))
    try:
        plain = {
            file.schema.column(at).path: file.schema.column(at).physical_type
            for at in range(len(file.schema))
        }
        return {field.name: (field.type, plain.get(field.name, "")) for field in file.schema_arrow}
    finally:
        file.close()


def parquet_type(kind: pa.DataType, physical: str = "") -> str:
    """The type in which Spark reads a Parquet column."""
    if physical == "INT96":
        return "TIMESTAMP"
    if pa.types.is_dictionary(kind):
        return parquet_type(kind.value_type)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"ARRAY<{parquet_type(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"MAP<{parquet_type(kind.key_type)},{parquet_type(kind.item_type)}>"
    if pa.types.is_struct(kind):
        return _struct((field.name, parquet_type(field.type)) for field in kind)
    if pa.types.is_decimal(kind):
        return _decimal(kind.precision, kind.scale)
    if pa.types.is_timestamp(kind) and kind.unit in ("ms", "us"):
        return "TIMESTAMP" if kind.tz is not None else "TIMESTAMP_NTZ"
    if kind not in _PARQUET:
        raise _no_type(str(kind))
    return _PARQUET[kind]


_PARQUET: Final = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): "STRING",
    pa.large_string(): "STRING",
    pa.binary(): "BINARY",
    pa.large_binary(): "BINARY",
    pa.date32(): "DATE",
}
