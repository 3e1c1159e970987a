"""Reading the exact files of a binding, with a position for every record that depends on nothing else.

Text is read line by line with one file to a partition: then `monotonically_increasing_id`, which starts again
in each partition, is the line's number in its file. That needs no sort, no window and no second pass, and is
the same at every parallelism (Invariant 6). Two settings of the session make it so (`READ_CONFS`): a file is
never split, because no partition is full before a terabyte, and never packed with another, because opening
one is said to cost as much. Afterwards `coalesce` gives each task several files, so ten thousand small ones
are not ten thousand tasks. Parquet knows the number of a row by itself (`_metadata.row_index`).

Compressed text is known by its suffix (.gz, .bz2, .zst and what else Hadoop decodes).

Known limitations: one file is read by one task, however large it is. A record is a line: a CSV field with a
line break in quotes becomes two broken records, which are reported and not repaired.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Sequence
from typing import Final
from urllib.parse import unquote

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import LongType, StringType, StructField, StructType

from tidemark.core.errors import Determinate, InvariantViolation
from tidemark.sources.manifest import PARTITION as FILES
from tidemark.sources.manifest import BoundFile
from tidemark.spark.digest import row_hash
from tidemark.spark.fold import OFFSET, ORDINAL, PARTITION, quoted

_WHOLE: Final = str(1 << 40)
READ_CONFS: Final = {
    "spark.sql.files.openCostInBytes": _WHOLE,
    "spark.sql.files.maxPartitionBytes": _WHOLE,
}

RAW: Final = "_raw"
HASH: Final = "_hash"
DATA: Final = "_data"
_RAW_SCHEMA: Final = StructType([StructField(RAW, StringType())])
_LINE_BITS: Final = 33
_BUCKET_FILES: Final = 4


def read_lines(spark: SparkSession, folder: str, files: Sequence[BoundFile], *, tasks_max: int) -> DataFrame:
    """The lines of the files: `_raw`, its `_hash`, and the position. Blank lines count, but are left out."""
    reader = spark.read.text([_path(folder, file) for file in files])
    number = F.monotonically_increasing_id().bitwiseAND(F.lit((1 << _LINE_BITS) - 1))
    lines = reader.select(
        F.col("value").alias(RAW), F.col("_metadata.file_path").alias("_file"), number.alias(ORDINAL)
    )
    if len(files) > tasks_max:
        lines = lines.coalesce(tasks_max)
    placed = _placed(lines.where(F.trim(RAW) != ""), _sequences(reader, folder, files))
    return placed.withColumn(HASH, row_hash(_RAW_SCHEMA))


def read_rows(
    spark: SparkSession, folder: str, files: Sequence[BoundFile], schema: StructType, *, tasks_max: int
) -> DataFrame:
    """The rows of Parquet files that have these columns: `_data`, its `_hash`, and the position."""
    reader = spark.read.schema(schema).parquet(*[_path(folder, file) for file in files])
    names = [F.col(quoted(name)) for name in schema.names]
    rows = reader.select(
        F.struct(*names).alias(DATA),
        row_hash(schema).alias(HASH),
        F.col("_metadata.file_path").alias("_file"),
        F.col("_metadata.row_index").alias(ORDINAL),
    )
    if len(files) > tasks_max:
        rows = rows.coalesce(tasks_max)
    return _placed(rows, _sequences(reader, folder, files))


def is_missing_path(error: AnalysisException) -> bool:
    return error.getCondition() == "PATH_NOT_FOUND"


def _path(folder: str, file: BoundFile) -> str:
    """The file's path as Spark takes it: characters that a glob would read are escaped."""
    return re.sub(r"([\\{}\[\]*?])", r"\\\1", f"{folder}/{file.name}")


def _sequences(frame: DataFrame, folder: str, files: Sequence[BoundFile]) -> dict[str, int]:
    """The file number for each path in Spark's own spelling; all files must have been found."""
    known = {f"{folder}/{file.name}": file.seq for file in files}
    found: dict[str, int] = {}
    for spelled in frame.inputFiles():
        path = unquote(re.sub(r"^file:/*(?=/)", "", spelled))
        if path not in known:
            raise InvariantViolation(f"spark reads {path!r}, which is not bound")
        # `inputFiles` and `_metadata` spell the start of a local path differently.
        found[spelled] = found[re.sub(r"^file:/+", "file:/", spelled)] = known[path]
    missing = sorted(set(known.values()) - set(found.values()))
    if missing:
        names = [file.name for file in files if file.seq in missing]
        raise Determinate(f"spark did not find {len(missing)} of {len(files)} bound files: {names[:5]}")
    return found


def _placed(frame: DataFrame, sequences: dict[str, int]) -> DataFrame:
    """The frame with position columns, in place of the file's path."""
    return frame.select(
        *[column for column in frame.columns if column not in ("_file", ORDINAL)],
        F.lit(FILES).alias(PARTITION),
        _sequence_of(F.col("_file"), sequences).alias(OFFSET),
        F.col(ORDINAL),
    )


def _sequence_of(path: Column, sequences: dict[str, int]) -> Column:
    """A file's number by its path: a constant hash table, since a map is searched from end to end."""
    if len(set(sequences.values())) == 1:
        return F.lit(next(iter(sequences.values()))).cast(LongType())
    count = max(1, len(sequences) // _BUCKET_FILES)
    buckets: list[dict[str, int]] = [{} for _ in range(count)]
    for spelled, sequence in sequences.items():
        buckets[zlib.crc32(spelled.encode()) % count][spelled] = sequence
    # One JSON literal is folded into a constant when the query is planned; thousands of literals are slow.
    table = F.from_json(F.lit(json.dumps(buckets, ensure_ascii=False)), "array<map<string,bigint>>")
    bucket = F.get(table, F.pmod(F.crc32(path.cast("binary")), F.lit(count)).cast("int"))
    # Without a number the order would be wrong in silence.
    unknown = F.raise_error(F.concat(F.lit("a record of a file that is not bound: "), path))
    return F.coalesce(F.try_element_at(bucket, path), unknown.cast(LongType()))
