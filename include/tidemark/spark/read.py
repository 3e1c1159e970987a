"""Reading the exact records of a binding, from files or from Kafka, each with a position that never changes.

Text is read line by line, one block of a file per partition. `monotonically_increasing_id` starts again in
each partition, so it is the line's number in its block; block and line number make up the ordinal. That
needs no sort, no window and no second pass, and is the same at every parallelism (Invariant 6). Two
settings (`READ_CONFS`) guarantee it: files are split at multiples of a fixed size only, and the cost of
opening a file is set above the size of a partition, so that Spark never packs two blocks together.
Afterwards `coalesce` gives each task several blocks, so ten thousand small files are not ten thousand
tasks. Parquet provides the number of a row (`_metadata.row_index`).

Compressed text is recognised by its suffix (.gz, .zst).

Known limitations: a file that is compressed as a whole, as by gzip, is one block. A record is a line: a CSV
field with a quoted line break becomes two broken records, which are reported and not repaired.

Kafka's topics are read with Spark's reader, and Avro bytes become JSON text. The reader gets the partitions
and both ends of each range, and reads committed records only. An offset that no longer exists stops it. A
record's position is its partition and offset, so it does not depend on how the reader splits ranges into
tasks (Invariant 6). A record has these columns:

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
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    NumericType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from tidemark.config.kafka import AvroSchemas, is_record
from tidemark.core.errors import Determinate, InvariantViolation
from tidemark.sources.files.bound_files import PARTITION as FILES
from tidemark.sources.files.bound_files import BoundFile
from tidemark.sources.files.content import BLOCK_BYTES, LINE_BITS
from tidemark.sources.kafka.manifest import Range
from tidemark.spark.columns import (
    JSON_OPTIONS,
    OFFSET,
    ORDINAL,
    PARTITION,
    bytes_text,
    case,
    literal,
    opaque,
    quoted,
)
from tidemark.spark.digest import row_hash_sql

_PART_BYTES: Final = 128 * 1024**2
_TASKS_PER_CORE: Final = 3
_PART_BYTES_MIN: Final = 2 * 1024**2
_ONE_TASK_BYTES_MAX: Final = 256 * 1024
_COMPRESSED: Final = (".gz", ".zst")
_COMPRESSED_TIMES: Final = 6
READ_CONFS: Final = {
    "spark.sql.files.openCostInBytes": str(1 << 40),
    "spark.sql.files.maxPartitionBytes": str(BLOCK_BYTES),
}

RAW: Final = "_raw"
HASH: Final = "_hash"
DATA: Final = "_data"
KEY_DOCUMENT: Final = "_key_doc"
RECORD: Final = "_record"
NO_KEY: Final = "_no_key"
NO_VALUE: Final = "_no_value"
"""Flags that suffice for most records; `_record` is large and is read only for quarantine and headers."""
_RAW_SCHEMA: Final = StructType([StructField(RAW, StringType())])
_PLAIN_PATH: Final = re.compile(r"/[\w./=-]*\Z", re.ASCII)


def read_lines(
    spark: SparkSession,
    folder: str,
    files: Sequence[BoundFile],
    *,
    tasks_max: int,
    block_bytes: int = BLOCK_BYTES,
) -> DataFrame:
    """The lines of the files: `_raw`, its `_hash`, and the position. Blank lines are numbered but left out.

    `block_bytes` is the size at which the session splits files.
    """
    block = f"shiftleft(_metadata.file_block_start div {block_bytes}L, {LINE_BITS})"
    reader = spark.read.text([_path(folder, file) for file in files])
    numbered = reader.selectExpr(
        f"value AS {RAW}",
        f"monotonically_increasing_id() & {(1 << LINE_BITS) - 1}L | {block} AS {ORDINAL}",
        "_metadata.file_path AS _file",
    )
    placed = numbered.where(f"trim({RAW}) != ''").selectExpr(
        RAW, f"{row_hash_sql(_RAW_SCHEMA)} AS {HASH}", *_position(_sequences(reader, folder, files))
    )
    return placed.coalesce(tasks_max) if _blocks(files, block_bytes) > tasks_max else placed


def read_rows(
    spark: SparkSession, folder: str, files: Sequence[BoundFile], schema: StructType, *, tasks_max: int
) -> DataFrame:
    """The rows of Parquet files with these columns: `_data`, its `_hash`, and the position."""
    reader = spark.read.schema(schema).parquet(*[_path(folder, file) for file in files])
    numbered = reader.selectExpr(
        f"struct({', '.join(map(quoted, schema.names))}) AS {DATA}",
        f"{row_hash_sql(schema)} AS {HASH}",
        "_metadata.file_path AS _file",
        f"_metadata.row_index AS {ORDINAL}",
    )
    placed = numbered.selectExpr(DATA, HASH, *_position(_sequences(reader, folder, files)))
    return placed.coalesce(tasks_max) if _blocks(files, BLOCK_BYTES) > tasks_max else placed


def read_sweep(
    spark: SparkSession,
    folder: str,
    files: Sequence[BoundFile],
    keys: StructType,
    *,
    end: str,
    tasks_max: int,
) -> DataFrame:
    """A deletion of each key in these Parquet files, as the line that `read_lines` would give."""
    reader = spark.read.schema(keys).parquet(*[_path(folder, file) for file in files])
    named = ", ".join(f"{literal(key.name)}, {_plain(key)}" for key in keys.fields)
    before = f"to_json(named_struct({named}), map('ignoreNullFields', 'false'))"
    numbered = reader.selectExpr(
        f"concat({literal(_DELETES)}, {before}, {literal(end)}) AS {RAW}",
        "_metadata.file_path AS _file",
        f"_metadata.row_index AS {ORDINAL}",
    )
    placed = numbered.selectExpr(
        RAW, f"{row_hash_sql(_RAW_SCHEMA)} AS {HASH}", *_position(_sequences(reader, folder, files))
    )
    return placed.coalesce(tasks_max) if _blocks(files, BLOCK_BYTES) > tasks_max else placed


_DELETES: Final = '{"op":"d","before":'


def _plain(key: StructField) -> str:
    """SQL for a key's value as JSON that its declared type reads back."""
    name = quoted(key.name)
    match key.dataType:
        case TimestampType():
            return f"concat(replace(cast({name} as string), ' ', 'T'), 'Z')"
        case TimestampNTZType():
            return f"replace(cast({name} as string), ' ', 'T')"
        case DateType() | DecimalType():
            return f"cast({name} as string)"
        case BinaryType():
            return f"base64({name})"
        case _:
            return name


def _blocks(files: Sequence[BoundFile], block_bytes: int) -> int:
    """An upper bound for the number of blocks."""
    return sum(1 + file.size // block_bytes for file in files)


def is_missing_path(error: AnalysisException) -> bool:
    return error.getCondition() == "PATH_NOT_FOUND"


def _path(folder: str, file: BoundFile) -> str:
    """The file's path with glob characters escaped, for Spark."""
    return re.sub(r"([\\{}\[\]*?])", r"\\\1", f"{folder}/{file.name}")


def _sequences(frame: DataFrame, folder: str, files: Sequence[BoundFile]) -> dict[str, int]:
    """The file number by path, as Spark spells paths. Raises `Determinate` if a file was not found."""
    known = {f"{folder}/{file.name}": file.seq for file in files}
    if all(map(_PLAIN_PATH.match, known)):
        # Spark does not change plain paths, and the reader has failed already if a file is missing.
        return {f"file:{slashes}{path}": seq for path, seq in known.items() for slashes in ("", "//")}
    found: dict[str, int] = {}
    for spelled in frame.inputFiles():
        path = unquote(re.sub(r"^file:/*(?=/)", "", spelled))
        if path not in known:
            raise InvariantViolation(f"Spark read {path!r}, which is not bound")
        # `inputFiles` and `_metadata` spell the start of a local path differently.
        found[spelled] = found[re.sub(r"^file:/+", "file:/", spelled)] = known[path]
    missing = sorted(set(known.values()) - set(found.values()))
    if missing:
        names = [file.name for file in files if file.seq in missing]
        raise Determinate(f"Spark did not find {len(missing)} of {len(files)} bound files: {names[:5]}")
    return found


def _position(sequences: dict[str, int]) -> tuple[str, str, str]:
    """The position columns, from `_file` and the ordinal."""
    return f"'{FILES}' AS {PARTITION}", f"{_sequence_of('_file', sequences)} AS {OFFSET}", ORDINAL


def _sequence_of(path: str, sequences: dict[str, int]) -> str:
    """SQL for a file's number by its path: a constant hash table, since Spark searches a map linearly.

    It has as many buckets as paths: every record is looked up, and paths are slow to compare.
    """
    if len(set(sequences.values())) == 1:
        return opaque(next(iter(sequences.values())), beside=ORDINAL)
    count = len(sequences)
    buckets: list[dict[str, int]] = [{} for _ in range(count)]
    for spelled, sequence in sequences.items():
        buckets[zlib.crc32(spelled.encode()) % count][spelled] = sequence
    # One JSON literal is folded into a constant when the query is planned; thousands of literals are slow.
    text = literal(json.dumps(buckets, ensure_ascii=False))
    table = f"from_json({text}, 'array<map<string,bigint>>')"
    bucket = f"get({table}, cast(pmod(crc32(cast({path} as binary)), {count}L) as int))"
    # Without a file number, the order would be silently wrong.
    unknown = f"raise_error(concat('a record of a file that is not bound: ', {path}))"
    return f"coalesce(try_element_at({bucket}, {path}), cast({unknown} as bigint))"


def parts_of(files: Sequence[BoundFile], *, cores: int) -> int:
    """How many parts a shard gets: none too large, and equal work for every core if the input is large
    enough.

    0 if one task reads and folds the input faster than two stages can be scheduled.
    """
    return parts_for(sum(map(_read_bytes, files)), cores=cores)


def tasks_of(files: Sequence[BoundFile], *, cores: int) -> int:
    """How many tasks read these files at most."""
    return tasks_for(sum(map(_read_bytes, files)), cores=cores)


def parts_for(size: int, *, cores: int) -> int:
    """`parts_of` for a size in bytes."""
    if size <= _ONE_TASK_BYTES_MAX:
        return 0
    parts = max(1, -(-size // _PART_BYTES), min(cores, size // _PART_BYTES_MIN))
    # A last round of tasks that leaves cores idle costs as much as a full one.
    return parts if parts <= cores else -(-parts // cores) * cores


def tasks_for(size: int, *, cores: int) -> int:
    """How many tasks read so many bytes: a few for each core of now, and none with more than a part's bytes,
    so that executors that come later, as with dynamic allocation, find tasks that wait for them."""
    return max(cores * _TASKS_PER_CORE, -(-size // _PART_BYTES))


def _read_bytes(file: BoundFile) -> int:
    """An estimate of a file's size after decompression."""
    return file.size * (_COMPRESSED_TIMES if file.name.lower().endswith(_COMPRESSED) else 1)


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
