"""The shape of bound files that only the files themselves can tell: a CSV header, a Parquet schema.

It is read on the driver, one line or one footer per file, before any job starts: a transaction has one shape,
and files that disagree about it stop the transaction with their names (scenario E4).
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.types import DataType, StructField, StructType

from tidemark.config import CsvOptions, KafkaSource, PipelineConfig, ShardConfig
from tidemark.core.errors import Determinate, InvalidUsage, InvariantViolation
from tidemark.sources.manifest import BoundFile
from tidemark.spark import documents as doc
from tidemark.spark.values import Writing

_HEADER_BYTES_MAX = 1 << 20


def form_of(config: PipelineConfig, folder: str, files: Sequence[BoundFile]) -> doc.Form:
    """How the records of these files are written."""
    source = config.source
    if isinstance(source, KafkaSource):
        raise InvariantViolation(f"a {source.type} source has no files")
    header: tuple[str, ...] = ()
    if source.format == "csv":
        options = source.csv_options
        header = (
            _common(_shapes(folder, files, partial(_csv_header, options=options)))
            if options.header
            else config.shards[0].columns.names
        )
    elif source.format == "parquet":
        shapes = _shapes(folder, files, _parquet_names)
        grow = all(map(config.grows, config.shards))
        header = _united(shapes, config.shards) if grow else _common(shapes)
    return doc.Form(source.format, config.envelope, source.csv_options, header, writing=Writing.of(config))


def rows_schema(form: doc.Form, shards: Sequence[ShardConfig]) -> StructType:
    """The columns to read from Parquet files, in declared types; those that no shard knows are refused by
    name, and so are those that two shards declare differently."""
    types: dict[str, DataType] = {}
    for shard in shards:
        for field in doc.known_schema(shard).fields:
            if types.setdefault(field.name, field.dataType) != field.dataType:
                said = f"{types[field.name].simpleString()} and {field.dataType.simpleString()}"
                raise InvalidUsage(
                    f"column {field.name!r} of the parquet files is declared as {said}",
                    hint="declare it alike in all shards",
                )
    extra = [name for name in form.header if name not in types]
    if extra:
        raise undeclared(extra[0])
    return StructType([StructField(name, types[name]) for name in form.header])


def undeclared(name: str) -> InvalidUsage:
    hint = "declare it in the pipeline file, then retry"
    return InvalidUsage(f"column {name!r} is not declared", hint=hint)


def _shapes(
    folder: str, files: Sequence[BoundFile], columns_of: Callable[[str], tuple[str, ...]]
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each file's name with its columns. One that the disk doesn't give may be there the next time, one that
    is not what it should be won't."""
    for file in files:
        try:
            yield file.name, columns_of(f"{folder}/{file.name}")
        except (OSError, ValueError, csv.Error) as error:
            fact = f"the columns of file {file.name!r} can't be read: {error}"
            if isinstance(error, OSError) and error.errno is not None:
                raise Determinate(fact, hint="retry; if it is gone, the next try says so") from error
            hint = "is it UTF-8, whole, and of the declared format? Skip its transaction, and land it mended"
            raise InvalidUsage(fact, hint=hint) from error


def _common(shapes: Iterable[tuple[str, tuple[str, ...]]]) -> tuple[str, ...]:
    """The one shape of all files; empty files have none."""
    first: tuple[str, tuple[str, ...]] | None = None
    for name, columns in shapes:
        if not columns:
            continue
        if first is None:
            first = (name, columns)
        elif columns != first[1]:
            found = f"{list(first[1])} and {list(columns)}"
            raise InvalidUsage(
                f"files {first[0]!r} and {name!r} have different columns: {found}",
                hint="files of one transaction must agree; bind them apart, or bring them to one shape",
            )
    return first[1] if first is not None else ()


def _united(shapes: Iterable[tuple[str, tuple[str, ...]]], shards: Sequence[ShardConfig]) -> tuple[str, ...]:
    """The columns of all files. What a row can't do without has to be in each of them."""
    known = {name: columns for name, columns in shapes if columns}
    united = tuple(dict.fromkeys(column for columns in known.values() for column in columns))
    needed = {name for shard in shards for name in _needed(shard)}.intersection(united)
    for name, columns in known.items():
        if lacking := sorted(needed.difference(columns)):
            raise InvalidUsage(
                f"file {name!r} has no column {lacking[0]!r}, and others of its transaction have",
                hint="it is a key, or can't be NULL; skip the transaction, and land the file mended",
            )
    return united


def _needed(shard: ShardConfig) -> Iterator[str]:
    yield from shard.keys
    yield from (column.name for column in shard.columns if not column.nullable)
    yield from filter(None, [shard.sequence_by])
    if shard.apply_as_deletes is not None:
        yield shard.apply_as_deletes.column
    if shard.route is not None and shard.route.column is not None:
        yield shard.route.column


def _csv_header(path: str, options: CsvOptions) -> tuple[str, ...]:
    with pa.input_stream(path, compression="detect") as stream:
        line = bytes(stream.read(_HEADER_BYTES_MAX)).split(b"\n", 1)[0].decode("utf-8-sig").rstrip("\r")
    if not line.strip():
        return ()
    reader = csv.reader(
        [line],
        delimiter=options.delimiter,
        quotechar=options.quote,
        # A quote that escapes itself is a doubled one, which is read anyway.
        escapechar=None if options.escape == options.quote else options.escape,
    )
    return tuple(next(reader))


def _parquet_names(path: str) -> tuple[str, ...]:
    return tuple(pq.read_schema(path).names)
