"""Reading the exact offsets of a binding from Kafka, with Spark's own reader.

The reader is given the partitions and both ends of each range, and reads committed records only; an offset
that is not there any more stops it. How it cuts the ranges into tasks makes no difference to a record's
position, which is its partition and its offset (Invariant 6).

A record comes as:

============  =====================================================================================
`_record`     what it was, for quarantine: the bytes of `key` and `value`, and the `headers`
`_raw`        the value's JSON text; NULL where there is none, or where its bytes can't be read
`_key_doc`    the key as a JSON object
`_hash`       over the bytes of key, value and headers, and the timestamp
============  =====================================================================================
"""

from __future__ import annotations

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

from tidemark.config.avro import AvroSchemas
from tidemark.sources.kafka_manifest import Range
from tidemark.spark.avro import avro_json
from tidemark.spark.digest import row_hash_sql
from tidemark.spark.fold import OFFSET, ORDINAL, PARTITION
from tidemark.spark.read import HASH, KEY_DOCUMENT, NO_KEY, NO_VALUE, RAW, RECORD
from tidemark.spark.sql import bytes_text, case, literal

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
"""A range that is worth another task."""
_NUMBER: Final = r"^-?(0|[1-9]\\d*)(\\.\\d+)?$"


@dataclass(frozen=True, slots=True)
class Written:
    """How values and keys are written: as Avro where schemas are given, else as text. A key that is one value
    and no object is that of the column `key`."""

    key_format: str
    key: StructField | None = None
    value_schemas: AvroSchemas | None = None
    key_schemas: AvroSchemas | None = None

    def value_document(self) -> str:
        """The value as a JSON object; NULL where there is none, or where the bytes are not of it."""
        text = "cast(value as string)"
        if self.value_schemas is not None:
            return avro_json("value", self.value_schemas)
        return case(f"is_valid_utf8({text})", text)

    def key_document(self) -> str:
        """The key as a JSON object; NULL where there is none, or where the bytes are not of it."""
        if self.key_schemas is not None:
            return avro_json("key", self.key_schemas, single=self.key.name if self.key is not None else "key")
        return _key_document(self.key if self.key_format == "string" else None)


def read_topics(
    spark: SparkSession,
    ranges: Sequence[Range],
    settings: Mapping[str, str],
    *,
    group: str,
    written: Written,
    tasks_max: int,
) -> DataFrame:
    """The records of these ranges. `settings` are the Java client's, and the names of the groups that
    its consumers need begin with `group`."""
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
    """What quarantine keeps of a record: all of it, exactly."""
    if not keyed:
        return RAW
    headers = f"transform({RECORD}.headers, h -> struct(h.key AS key, {bytes_text('h.value')} AS value))"
    key, value = (bytes_text(f"{RECORD}.{part}") for part in ("key", "value"))
    return f"to_json(struct({key} AS key, {value} AS value, {headers} AS headers))"


def header_text(name: str) -> str:
    """The text of a record's header; of several with one name the last one's."""
    named = f"filter({RECORD}.headers, h -> h.key = {literal(name)})"
    return bytes_text(f"try_element_at({named}, -1).value")


def _tasks(ranges: Sequence[Range], tasks_max: int) -> int:
    """At least one task for each partition; more where there is work for them."""
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
    """The key as a JSON object; NULL where there is none, or where the bytes are no text."""
    text = "cast(key as string)"
    if key is None:
        return case(f"is_valid_utf8({text})", text)
    quoted = f"to_json(named_struct({literal(key.name)}, {text}))"
    if isinstance(key.dataType, NumericType | BooleanType):
        # A number in quotes would not be one; anything else in its place is quoted, and then does not fit.
        bare = f"concat({literal(f'{json.dumps(key.name)}:')}, {text}, '}}')"
        is_bare = f"{text} rlike '{_NUMBER}' OR {text} IN ('true', 'false')"
        quoted = f"CASE WHEN {is_bare} THEN concat('{{', {bare}) ELSE {quoted} END"
    return case(f"is_valid_utf8({text})", quoted)
