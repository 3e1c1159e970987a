"""The shape of bound files that only the files themselves can tell: a CSV header, a Parquet schema.

It is read on the driver, one line or one footer per file, before any job starts: a transaction has one shape,
and files that disagree about it stop the transaction with their names (scenario E4).

What a binding's input is to the plane: files or topics, each with its own way of being read.

The plane asks for the form of the records, for the records, into how many parts they go, and how to name a
place in a message. All else is the same for every source.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final, Protocol

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DataType, StructField, StructType

from tidemark.config import CsvOptions, KafkaSource, PipelineConfig, ShardConfig
from tidemark.config.kafka import AvroSchemas
from tidemark.config.object_store import opened
from tidemark.config.paths import is_uri
from tidemark.core.binding import Binding
from tidemark.core.errors import Determinate, InvalidUsage, InvariantViolation
from tidemark.sources.files.content import packing_flaw, record_place
from tidemark.sources.files.manifest import BoundFile, Manifest
from tidemark.sources.files.objects import Objects
from tidemark.sources.kafka.connection import java_settings, settings_of
from tidemark.sources.kafka.manifest import KafkaManifest, Range
from tidemark.spark import documents as doc
from tidemark.spark.decode import shards_of
from tidemark.spark.fold import ORDINAL
from tidemark.spark.kafka import RecordEncoding, not_avro, read_topics
from tidemark.spark.read import RECORD, parts_for, parts_of, read_lines, read_rows, tasks_for, tasks_of
from tidemark.spark.session import FILES_AT_ONCE, in_parallel
from tidemark.spark.values import ValueEncoding

_HEADER_BYTES_MAX = 1 << 20
_PACKED: Final = {".gz": "gzip", ".zst": "zstd"}


def form_of(config: PipelineConfig, folder: str, files: Sequence[BoundFile]) -> doc.RecordForm:
    """How the records of these files are written."""
    source = config.source
    if isinstance(source, KafkaSource):
        raise InvariantViolation(f"a {source.type} source has no files")
    header: tuple[str, ...] = ()
    if source.format == "csv":
        options = source.csv_options
        header = (
            _same_columns(_file_columns(folder, files, partial(_csv_header, options=options)))
            if options.header
            else config.shards[0].columns.names
        )
    elif source.format == "parquet":
        shapes = _file_columns(folder, files, _parquet_names)
        grow = all(map(config.grows, config.shards))
        header = _all_columns(shapes, config.shards) if grow else _same_columns(shapes)
    return doc.RecordForm(
        source.format, config.envelope, source.csv_options, header, writing=ValueEncoding.of(config)
    )


def rows_schema(form: doc.RecordForm, shards: Sequence[ShardConfig]) -> StructType:
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


def _file_columns(
    folder: str, files: Sequence[BoundFile], columns_of: Callable[[str], tuple[str, ...]]
) -> list[tuple[str, tuple[str, ...]]]:
    """Each file's name with its columns. One that the disk doesn't give may be there the next time, one that
    is not what it should be won't."""

    def shape(file: BoundFile) -> tuple[str, tuple[str, ...]]:
        try:
            return file.name, columns_of(f"{folder}/{file.name}")
        except (OSError, ValueError, csv.Error) as error:
            fact = f"the columns of file {file.name!r} can't be read: {error}"
            if isinstance(error, OSError) and error.errno is not None:
                raise Determinate(fact, hint="retry; if it is gone, the next try says so") from error
            hint = "is it UTF-8, whole, and of the declared format? Skip its transaction, and land it mended"
            raise InvalidUsage(fact, hint=hint) from error

    return in_parallel(shape, files, at_once=FILES_AT_ONCE)


def _same_columns(shapes: Iterable[tuple[str, tuple[str, ...]]]) -> tuple[str, ...]:
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


def _all_columns(
    shapes: Iterable[tuple[str, tuple[str, ...]]], shards: Sequence[ShardConfig]
) -> tuple[str, ...]:
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
    packed = next((kind for suffix, kind in _PACKED.items() if path.lower().endswith(suffix)), None)
    with pa.input_stream(opened(path), compression=packed) as stream:
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
    return tuple(pq.read_schema(opened(path)).names)


_HEADER_LINE: Final = 0
_RECORD_BYTES: Final = 500
"""What a record of a topic is guessed to be; nobody counts its bytes before it is read."""


class Input(Protocol):
    """The input of one transaction. It is false when there is nothing in it."""

    def __bool__(self) -> bool: ...

    def form(self, config: PipelineConfig) -> doc.RecordForm:
        """How its records are written."""
        ...

    def read(
        self, spark: SparkSession, config: PipelineConfig, form: doc.RecordForm, *, cores: int
    ) -> DataFrame:
        """Its records, each with its position."""
        ...

    def parts(self, *, cores: int) -> int:
        """How many parts a shard gets; 0 for so little that one task does it all."""
        ...

    def place(self, partition: str, offset: int, ordinal: int) -> str:
        """Where a record stands, for people."""
        ...

    def is_gone(self) -> bool:
        """Whether some of it is not there, as far as can be seen from here."""
        ...

    def damage(self, said: str) -> str:
        """What of the input can't be read, however often it is tried; empty where nothing is known to be. It
        is looked for where a failed job has said so."""
        ...


@dataclass(frozen=True, slots=True)
class FilesInput:
    """The files of a binding."""

    folder: str
    manifest: Manifest

    @property
    def files(self) -> tuple[BoundFile, ...]:
        return self.manifest.files

    def __bool__(self) -> bool:
        return bool(self.files)

    def form(self, config: PipelineConfig) -> doc.RecordForm:
        return form_of(config, self.folder, self.files)

    def read(
        self, spark: SparkSession, config: PipelineConfig, form: doc.RecordForm, *, cores: int
    ) -> DataFrame:
        tasks_max = tasks_of(self.files, cores=cores)
        if form.format == "parquet":
            schema = rows_schema(form, shards_of(config))
            return read_rows(spark, self.folder, self.files, schema, tasks_max=tasks_max)
        lines = read_lines(spark, self.folder, self.files, tasks_max=tasks_max)
        if form.format == "csv" and form.csv.header:
            return lines.where(f"{ORDINAL} != {_HEADER_LINE}")
        return lines

    def parts(self, *, cores: int) -> int:
        return parts_of(self.files, cores=cores)

    def place(self, partition: str, offset: int, ordinal: int) -> str:
        return record_place(self.manifest, offset, ordinal)

    def is_gone(self) -> bool:
        if is_uri(self.folder):
            return not Objects(self.folder).has_all(self.files)
        return not all(Path(self.folder, file.name).exists() for file in self.files)

    def damage(self, said: str) -> str:
        named = (file.name for file in self.files if file.name.rpartition("/")[2] in said)
        flaws = ((name, packing_flaw(f"{self.folder}/{name}")) for name in named)
        return next((f"file {name!r} can't be unpacked: {flaw}" for name, flaw in flaws if flaw), "")


@dataclass(frozen=True, slots=True)
class TopicsInput:
    """The offsets of a binding. They are read from where the topics are today, by the connection of today."""

    source: KafkaSource
    ranges: tuple[Range, ...]
    schemas: Mapping[str, Mapping[int, str]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def form(self, config: PipelineConfig) -> doc.RecordForm:
        source = _kafka(config)
        form = doc.RecordForm(
            "json", config.envelope, keyed=True, headers=source.headers, writing=ValueEncoding.of(config)
        )
        schemas = self.value_schemas(config)
        if schemas is not None:
            form = replace(form, unreadable=not_avro(f"{RECORD}.value", schemas))
        if source.key_schema is not None:
            form = replace(form, key_unreadable="its key is not Avro of the schema that is given")
        return form

    def read(
        self, spark: SparkSession, config: PipelineConfig, form: doc.RecordForm, *, cores: int
    ) -> DataFrame:
        source = _kafka(config)
        shard = next((shard for shard in shards_of(config) if shard.keys), None)
        key = doc.known_schema(shard)[shard.keys[0]] if shard is not None else None
        written = RecordEncoding(
            source.key_format,
            key,
            self.value_schemas(config),
            self._schemas("key", source.key_schema),
        )
        return read_topics(
            spark,
            self.ranges,
            java_settings(settings_of(self.source)),
            group=self.source.group_of(config.name),
            written=written,
            tasks_max=tasks_for(self._bytes, cores=cores),
        )

    def value_schemas(self, config: PipelineConfig) -> AvroSchemas | None:
        """What the values were written with; None for those that are no Avro."""
        return self._schemas("value", _kafka(config).value_schema)

    def _schemas(self, part: str, given: AvroSchemas | None) -> AvroSchemas | None:
        """What the values or keys were written with: as the configuration has it, or as the registry had."""
        if given is None or not given.is_registered:
            return given
        return AvroSchemas.of(self.schemas.get(part, {}))

    def parts(self, *, cores: int) -> int:
        return parts_for(self._bytes, cores=cores)

    @property
    def _bytes(self) -> int:
        return sum(one.size for one in self.ranges) * _RECORD_BYTES

    def place(self, partition: str, offset: int, ordinal: int) -> str:
        return f"{partition}, offset {offset}"

    def is_gone(self) -> bool:
        return False

    def damage(self, said: str) -> str:
        return ""


def input_of(config: PipelineConfig, binding: Binding, *, today: PipelineConfig) -> Input:
    """The input that a binding names, under the configuration that it recorded."""
    if not isinstance(config.source, KafkaSource):
        empty = Manifest(config.source.format, ())
        files = Manifest.from_json(binding.manifest) if binding.manifest else empty
        return FilesInput(config.source_location, files)
    if not isinstance(today.source, KafkaSource):
        raise InvalidUsage(
            f"transaction {binding.txn} was read from kafka, and the source is {today.source.type} now",
            hint="give the pipeline file its kafka source again, and a new source a new pipeline",
        )
    manifest = KafkaManifest.from_json(binding.manifest)
    return TopicsInput(today.source, manifest.ranges, manifest.schemas)


def _kafka(config: PipelineConfig) -> KafkaSource:
    """The source by the configuration that was recorded; `input_of` has looked that it is one."""
    if not isinstance(config.source, KafkaSource):
        raise InvariantViolation(f"a {config.source.type} source has no topics")
    return config.source
