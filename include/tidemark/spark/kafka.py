"""Reading the exact offsets of a binding from Kafka with Spark's reader, and Avro bytes as JSON text.

The reader gets the partitions and both ends of each range, and reads committed records only. An offset that
no longer exists stops it. A record's position is its partition and offset, so it does not depend on how the
reader splits ranges into tasks (Invariant 6). A record has these columns:

============  =====================================================================================
`_record`     the original, for quarantine: the bytes of `key` and `value`, and the `headers`
`_raw`        the value's JSON text; NULL if there is no value or its bytes are unreadable
`_key_doc`    the key as a JSON object
`_hash`       over the bytes of key, value and headers, and the timestamp
============  =====================================================================================

Avro bytes do not identify their schema, and for unreadable bytes Spark returns a row of NULLs, which may
also be a valid row. So the schema is wrapped in a record with an *end marker*, and the marker's bytes are
appended to the given ones. Unreadable bytes yield no marker; too few or too many bytes yield another one.
Only bytes that match the schema exactly pass.

The JSON text loses no value: decimals and times are written in full, bytes as base64, missing values as
null. A union of several types is an object with `member0`, `member1` and so on, as in Spark.

Known limitation: bytes of another schema that this schema happens to read to the end are accepted.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    NumericType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tidemark.config.kafka import AvroSchemas, is_record
from tidemark.sources.kafka.manifest import Range
from tidemark.spark.digest import row_hash_sql
from tidemark.spark.fold import OFFSET, ORDINAL, PARTITION
from tidemark.spark.read import HASH, KEY_DOCUMENT, NO_KEY, NO_VALUE, RAW, RECORD
from tidemark.spark.sql import JSON_OPTIONS, bytes_text, case, literal

_END: Final = b"tidemark"
WIRE_BYTES: Final = 5
_OPTIONS: Final = "map('mode', 'PERMISSIVE')"


# Avro bytes as JSON text.


def avro_json(column: str, schemas: AvroSchemas, *, single: str = "") -> str:
    """SQL for the JSON object of a column's bytes; NULL if they do not match the schemas.

    A schema that is not a record gives an object with the one name `single`.
    """
    if schemas.plain:
        return _decoded(column, schemas.plain, single)
    rest = f"substring({column}, {WIRE_BYTES + 1})"
    if not schemas.by_id:
        return "cast(null as string)"
    cases = [f"WHEN {_wire(number)} THEN {_decoded(rest, text, single)}" for number, text in schemas.by_id]
    return f"CASE substring({column}, 1, {WIRE_BYTES}) {' '.join(cases)} END"


def not_avro(column: str, schemas: AvroSchemas) -> str:
    """SQL for the reason why a column's bytes give no object."""
    if schemas.plain:
        return "'it is not Avro of the given schema'"
    begin = f"substring({column}, 1, {WIRE_BYTES})"
    number = f"conv(hex(substring({column}, 2, {WIRE_BYTES - 1})), 16, 10)"
    is_wire = f"octet_length({begin}) = {WIRE_BYTES} AND substring({column}, 1, 1) = X'00'"
    known = ", ".join(_wire(number_) for number_ in schemas.ids) or "X''"
    return (
        f"CASE WHEN NOT ({is_wire}) THEN 'it does not begin with the id of a schema'"
        f" WHEN {begin} NOT IN ({known})"
        f" THEN concat('its schema has id ', {number}, ', which is not known')"
        f" ELSE concat('it is not Avro of the schema with id ', {number}) END"
    )


def _wire(number: int) -> str:
    """The prefix in Confluent's wire format: a zero byte, then the schema id in four bytes."""
    return f"X'00{number:08X}'"


def _decoded(column: str, schema: str, single: str) -> str:
    """The JSON text of the wrapped value. It is extracted as text: an expression that occurs in a condition
    and in its result would decode twice."""
    around = (
        '{"type":"record","name":"tidemark_around","fields":[{"name":"v","type":' + schema + "},"
        '{"name":"end","type":{"type":"fixed","name":"tidemark_end","size":' + str(len(_END)) + "}}]}"
    )
    found = f"from_avro(concat({column}, X'{_END.hex()}'), {literal(around)}, {_OPTIONS})"
    # (?s), because text may contain line terminators.
    whole = literal(r'(?s)^\{"v":(.*),"end":"' + base64.b64encode(_END).decode() + r'"\}$')
    part = f"nullif(regexp_extract(to_json({found}, {JSON_OPTIONS}), {whole}, 1), '')"
    if is_record(schema):
        return part
    return f"concat({literal('{' + json.dumps(single) + ':')}, {part}, '}}')"


# Reading topics.

_HEADER: Final = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
_HASHED: Final = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("headers", ArrayType(_HEADER)),
        StructField("timestamp", TimestampType()),
    ]
)
_SPLIT_RECORDS: Final = 50_000
"""A range of this many records is worth another task."""
_NUMBER: Final = r"^-?(0|[1-9]\\d*)(\\.\\d+)?$"


@dataclass(frozen=True, slots=True)
class RecordEncoding:
    """How values and keys are written: as Avro if schemas are given, else as text. A key that is a single
    value belongs to the column `key`."""

    key_format: str
    key: StructField | None = None
    value_schemas: AvroSchemas | None = None
    key_schemas: AvroSchemas | None = None

    def value_document(self) -> str:
        """The value as a JSON object; NULL if there is none, or if the bytes do not match."""
        text = "cast(value as string)"
        if self.value_schemas is not None:
            return avro_json("value", self.value_schemas)
        return case(f"is_valid_utf8({text})", text)

    def key_document(self) -> str:
        """The key as a JSON object; NULL if there is none, or if the bytes do not match."""
        if self.key_schemas is not None:
            return avro_json("key", self.key_schemas, single=self.key.name if self.key is not None else "key")
        return _key_document(self.key if self.key_format == "string" else None)


def read_topics(
    spark: SparkSession,
    ranges: Sequence[Range],
    settings: Mapping[str, str],
    *,
    group: str,
    written: RecordEncoding,
    tasks_max: int,
) -> DataFrame:
    """The records of these ranges. `settings` are the Java client's; the consumer groups that it creates
    have the prefix `group`."""
    reader = spark.read.format("kafka").options(**{f"kafka.{name}": text for name, text in settings.items()})
    records = (
        reader.option("kafka.isolation.level", "read_committed")
        .option("assign", _partitions(ranges))
        .option("startingOffsets", _offsets({one: one.lower for one in ranges}))
        .option("endingOffsets", _offsets({one: one.upper for one in ranges}))
        .option("failOnDataLoss", "true")
        .option("groupIdPrefix", group)
        .option("includeHeaders", "true")
        .option("minPartitions", str(_tasks(ranges, tasks_max)))
        .load()
    )
    return records.selectExpr(
        f"{written.value_document()} AS {RAW}",
        f"{row_hash_sql(_HASHED)} AS {HASH}",
        f"concat(topic, '-', partition) AS {PARTITION}",
        f"offset AS {OFFSET}",
        f"0L AS {ORDINAL}",
        f"{written.key_document()} AS {KEY_DOCUMENT}",
        f"isnull(key) AS {NO_KEY}",
        f"isnull(value) AS {NO_VALUE}",
        f"struct(key, value, headers) AS {RECORD}",
    )


def raw_text(*, keyed: bool) -> str:
    """The text of a record in quarantine, which keeps all of it exactly."""
    if not keyed:
        return RAW
    headers = f"transform({RECORD}.headers, h -> struct(h.key AS key, {bytes_text('h.value')} AS value))"
    key, value = (bytes_text(f"{RECORD}.{part}") for part in ("key", "value"))
    return f"to_json(struct({key} AS key, {value} AS value, {headers} AS headers))"


def header_text(name: str) -> str:
    """The text of a record's header; of several with one name, the last one."""
    named = f"filter({RECORD}.headers, h -> h.key = {literal(name)})"
    return bytes_text(f"try_element_at({named}, -1).value")


def _tasks(ranges: Sequence[Range], tasks_max: int) -> int:
    """At least one task for each partition; more for large ranges."""
    records = sum(one.size for one in ranges)
    return max(len(ranges), min(tasks_max, records // _SPLIT_RECORDS))


def _partitions(ranges: Sequence[Range]) -> str:
    named: dict[str, list[int]] = {}
    for one in ranges:
        named.setdefault(one.topic, []).append(one.partition)
    return json.dumps(named)


def _offsets(ends: Mapping[Range, int]) -> str:
    named: dict[str, dict[str, int]] = {}
    for one, offset in ends.items():
        named.setdefault(one.topic, {})[str(one.partition)] = offset
    return json.dumps(named)


def _key_document(key: StructField | None) -> str:
    """The key as a JSON object; NULL if there is none, or if the bytes are not UTF-8."""
    text = "cast(key as string)"
    if key is None:
        return case(f"is_valid_utf8({text})", text)
    quoted = f"to_json(named_struct({literal(key.name)}, {text}))"
    if isinstance(key.dataType, NumericType | BooleanType):
        # A number must not be quoted. Any other text in its place is quoted, and then does not fit the
        # type.
        bare = f"concat({literal(f'{json.dumps(key.name)}:')}, {text}, '}}')"
        is_bare = f"{text} rlike '{_NUMBER}' OR {text} IN ('true', 'false')"
        quoted = f"CASE WHEN {is_bare} THEN concat('{{', {bare}) ELSE {quoted} END"
    return case(f"is_valid_utf8({text})", quoted)
