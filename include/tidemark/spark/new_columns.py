"""New columns in a transaction's records, for shards that accept them (`add_columns`).

The search runs only after the transaction was refused, so records without new columns cost nothing. It
covers all records of the transaction, so the order of records does not matter; their schemas must agree.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from tidemark.config import PipelineConfig, ShardConfig
from tidemark.config.kafka import AvroSchemas
from tidemark.config.source import Debezium
from tidemark.core.errors import InvalidUsage
from tidemark.core.ids import ShardId, Txn
from tidemark.sources.column_types import (
    DECLARE,
    avro_columns,
    avro_type,
    connect_type,
    parquet_columns,
    parquet_type,
)
from tidemark.spark import documents as doc
from tidemark.spark.fold import OFFSET, ORDINAL, PARTITION
from tidemark.spark.inputs import FilesInput, Input, TopicsInput
from tidemark.spark.kafka import WIRE_BYTES
from tidemark.spark.read import RAW, RECORD
from tidemark.spark.sql import literal, texts

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
