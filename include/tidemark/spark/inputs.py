"""What a binding's input is to the plane: files or topics, each with its own way of being read.

The plane asks for the form of the records, for the records, into how many parts they go, and how to name a
place in a message. All else is the same for every source.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Protocol

from pyspark.sql import DataFrame, SparkSession

from tidemark.config import KafkaSource, PipelineConfig
from tidemark.config.avro import AvroSchemas
from tidemark.core.binding import Binding
from tidemark.core.errors import InvalidUsage, InvariantViolation
from tidemark.sources.content import packing_flaw
from tidemark.sources.kafka_manifest import KafkaManifest, Range
from tidemark.sources.kafka_settings import java_settings, settings_of
from tidemark.sources.manifest import BoundFile, Manifest
from tidemark.sources.places import record_place
from tidemark.spark import documents as doc
from tidemark.spark.avro import not_avro
from tidemark.spark.fold import ORDINAL
from tidemark.spark.read import RECORD, parts_for, parts_of, read_lines, read_rows
from tidemark.spark.route import shards_of
from tidemark.spark.shape import form_of, rows_schema
from tidemark.spark.topics import Written, read_topics
from tidemark.spark.values import Writing

_TASKS_PER_CORE: Final = 3
_HEADER_LINE: Final = 0
_RECORD_BYTES: Final = 500
"""What a record of a topic is guessed to be; nobody counts its bytes before it is read."""


class Input(Protocol):
    """The input of one transaction. It is false when there is nothing in it."""

    def __bool__(self) -> bool: ...

    def form(self, config: PipelineConfig) -> doc.Form:
        """How its records are written."""
        ...

    def read(self, spark: SparkSession, config: PipelineConfig, form: doc.Form, *, cores: int) -> DataFrame:
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

    def form(self, config: PipelineConfig) -> doc.Form:
        return form_of(config, self.folder, self.files)

    def read(self, spark: SparkSession, config: PipelineConfig, form: doc.Form, *, cores: int) -> DataFrame:
        tasks_max = cores * _TASKS_PER_CORE
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

    def form(self, config: PipelineConfig) -> doc.Form:
        source = _kafka(config)
        form = doc.Form(
            "json", config.envelope, keyed=True, headers=source.headers, writing=Writing.of(config)
        )
        schemas = self.value_schemas(config)
        if schemas is not None:
            form = replace(form, unreadable=not_avro(f"{RECORD}.value", schemas))
        if source.key_schema is not None:
            form = replace(form, key_unreadable="its key is not Avro of the schema that is given")
        return form

    def read(self, spark: SparkSession, config: PipelineConfig, form: doc.Form, *, cores: int) -> DataFrame:
        source = _kafka(config)
        shard = next((shard for shard in shards_of(config) if shard.keys), None)
        key = doc.known_schema(shard)[shard.keys[0]] if shard is not None else None
        written = Written(
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
            tasks_max=cores,
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
        return parts_for(sum(one.size for one in self.ranges) * _RECORD_BYTES, cores=cores)

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
