"""Reading the exact files of a binding, with a position for every record that is the same in every run.

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
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Sequence
from typing import Final
from urllib.parse import unquote

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import (
    BinaryType,
    DateType,
    DecimalType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from tidemark.core.errors import Determinate, InvariantViolation
from tidemark.sources.files.bound_files import PARTITION as FILES
from tidemark.sources.files.bound_files import BoundFile
from tidemark.sources.files.content import BLOCK_BYTES, LINE_BITS
from tidemark.spark.digest import row_hash_sql
from tidemark.spark.fold import OFFSET, ORDINAL, PARTITION
from tidemark.spark.sql import literal, opaque, quoted

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
