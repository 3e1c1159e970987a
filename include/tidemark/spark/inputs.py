"""The input of a binding, files or Kafka offsets, as the data plane reads it.

The plane asks an input for the form of its records, the records, the number of parts, and the name of a
place in a message. Everything else is the same for every source.

The columns of files (a CSV header, a Parquet schema) are read on the driver, one line or one footer per
file, before any job starts. All files of a transaction must agree; a disagreement stops the transaction and
names the files (scenario E4).
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from pathlib import Path
from typing import Final, Protocol

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DataType, StructField, StructType

from tidemark.config import CsvOptions, KafkaSource, PipelineConfig, ShardConfig
from tidemark.config.kafka import AvroSchemas
from tidemark.config.storage import is_uri, opened
from tidemark.core.binding import Binding
from tidemark.core.errors import Determinate, InvalidUsage, InvariantViolation
from tidemark.sources.files.bound_files import BoundFile, Manifest
from tidemark.sources.files.content import packing_flaw, record_place
from tidemark.sources.files.listing import Objects
from tidemark.sources.kafka.connection import java_settings, settings_of
from tidemark.sources.kafka.manifest import KafkaManifest, Range
from tidemark.spark import documents as doc
from tidemark.spark.columns import ORDINAL
from tidemark.spark.decode import shards_of
from tidemark.spark.read import (
    RECORD,
    RecordEncoding,
    not_avro,
    parts_for,
    parts_of,
    read_lines,
    read_rows,
    read_sweep,
    read_topics,
    tasks_for,
    tasks_of,
)
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
    """The columns to read from Parquet files, in declared types. Raises `InvalidUsage` for a column that no
    shard declares, and for one that two shards declare differently."""
    types: dict[str, DataType] = {}
    for shard in shards:
        for column in doc.known_schema(shard).fields:
            if types.setdefault(column.name, column.dataType) != column.dataType:
                kinds = f"{types[column.name].simpleString()} and {column.dataType.simpleString()}"
                raise InvalidUsage(
                    f"column {column.name!r} of the parquet files is declared as {kinds}",
                    hint="declare one type for it in all shards",
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
    """Each file's name with its columns. An I/O error is `Determinate`, because the file may be readable
    later; a malformed file is `InvalidUsage`."""

    def shape(file: BoundFile) -> tuple[str, tuple[str, ...]]:
        try:
            return file.name, columns_of(f"{folder}/{file.name}")
        except (OSError, ValueError, csv.Error) as error:
            fact = f"the columns of file {file.name!r} can't be read: {error}"
            if isinstance(error, OSError) and error.errno is not None:
                raise Determinate(fact, hint="retry; a missing file is then named") from error
            hint = (
                "check that it is complete, UTF-8 and in the declared format; skip its transaction,"
                " and land the corrected file"
            )
            raise InvalidUsage(fact, hint=hint) from error

    return in_parallel(shape, files, at_once=FILES_AT_ONCE)


def _same_columns(shapes: Iterable[tuple[str, tuple[str, ...]]]) -> tuple[str, ...]:
    """The columns, which must be the same in all files; empty files are ignored."""
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
                hint="files of one transaction need the same columns; set max_files: 1, or rewrite them",
            )
    return first[1] if first is not None else ()


def _all_columns(
    shapes: Iterable[tuple[str, tuple[str, ...]]], shards: Sequence[ShardConfig]
) -> tuple[str, ...]:
    """The columns of all files. Keys and other required columns must be in each file."""
    known = {name: columns for name, columns in shapes if columns}
    united = tuple(dict.fromkeys(column for columns in known.values() for column in columns))
    needed = {name for shard in shards for name in _needed(shard)}.intersection(united)
    for name, columns in known.items():
        if lacking := sorted(needed.difference(columns)):
            raise InvalidUsage(
                f"file {name!r} has no column {lacking[0]!r}, but other files of its transaction have it",
                hint="the column is a key or NOT NULL; skip the transaction, and land the corrected file",
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
        # A doubled quote is read in any case.
        escapechar=None if options.escape == options.quote else options.escape,
    )
    return tuple(next(reader))


def _parquet_names(path: str) -> tuple[str, ...]:
    return tuple(pq.read_schema(opened(path)).names)


_HEADER_LINE: Final = 0
_RECORD_BYTES: Final = 500
"""An estimate: the bytes of a topic's records are unknown before they are read."""


class Input(Protocol):
    """The input of one transaction. It is falsy if it is empty."""

    def __bool__(self) -> bool: ...

    def form(self, config: PipelineConfig) -> doc.RecordForm:
        """How the records are written."""
        ...

    def read(
        self, spark: SparkSession, config: PipelineConfig, form: doc.RecordForm, *, cores: int
    ) -> DataFrame:
        """The records, each with its position."""
        ...

    def parts(self, *, cores: int) -> int:
        """How many parts a shard gets; 0 if one task can do it all."""
        ...

    def place(self, partition: str, offset: int, ordinal: int) -> str:
        """A record's location, for messages."""
        ...

    def is_gone(self) -> bool:
        """Whether some of the input is missing, as far as this process can see."""
        ...

    def damage(self, message: str) -> str:
        """Which input is permanently unreadable; empty if none is known to be. Checked after a failed job
        whose message is `said`."""
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
        lines = self._lines(spark, config, tasks_max)
        if form.format == "csv" and form.csv.header:
            return lines.where(f"{ORDINAL} != {_HEADER_LINE}")
        return lines

    def _lines(self, spark: SparkSession, config: PipelineConfig, tasks_max: int) -> DataFrame:
        written = [file for file in self.files if file.sweep is None]
        frames = [read_lines(spark, self.folder, written, tasks_max=tasks_max)] if written else []
        for sweep in dict.fromkeys(file.sweep for file in self.files if file.sweep is not None):
            files = [file for file in self.files if file.sweep == sweep]
            keys = doc.key_schema(config.shard(sweep.shard))
            frames.append(
                read_sweep(spark, self.folder, files, keys, end=sweep.record_end, tasks_max=tasks_max)
            )
        return reduce(DataFrame.unionAll, frames)

    def parts(self, *, cores: int) -> int:
        return parts_of(self.files, cores=cores)

    def place(self, partition: str, offset: int, ordinal: int) -> str:
        return record_place(self.manifest, offset, ordinal)

    def is_gone(self) -> bool:
        if is_uri(self.folder):
            return not Objects(self.folder).has_all(self.files)
        return not all(Path(self.folder, file.name).exists() for file in self.files)

    def damage(self, message: str) -> str:
        named = (file.name for file in self.files if file.name.rpartition("/")[2] in message)
        flaws = ((name, packing_flaw(f"{self.folder}/{name}")) for name in named)
        return next((f"file {name!r} can't be unpacked: {flaw}" for name, flaw in flaws if flaw), "")


@dataclass(frozen=True, slots=True)
class TopicsInput:
    """The offsets of a binding. The recorded offsets are read through today's connection."""

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
            form = replace(form, key_unreadable="its key is not Avro of the given schema")
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
        """The schemas that the values were written with; None if they are not Avro."""
        return self._schemas("value", _kafka(config).value_schema)

    def _schemas(self, part: str, given: AvroSchemas | None) -> AvroSchemas | None:
        """The schemas of values or keys: from the configuration, or recorded from the registry."""
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

    def damage(self, message: str) -> str:
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
            hint="restore the kafka source in the pipeline file, and read the new source with a new pipeline",
        )
    manifest = KafkaManifest.from_json(binding.manifest)
    return TopicsInput(today.source, manifest.ranges, manifest.schemas)


def _kafka(config: PipelineConfig) -> KafkaSource:
    """The recorded Kafka source; `input_of` has checked the type."""
    if not isinstance(config.source, KafkaSource):
        raise InvariantViolation(f"a {config.source.type} source has no topics")
    return config.source
