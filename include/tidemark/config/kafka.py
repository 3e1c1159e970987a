"""Kafka topics as a source, as a pipeline file writes it. Secrets are not here: a connection has them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from tidemark.config.avro import AvroText
from tidemark.config.base import ColumnName, Model, checked
from tidemark.config.problems import Flaw, raise_flaws
from tidemark.config.text import shown
from tidemark.core.errors import InvalidUsage

TOPICS_MAX: Final = 1_000
HEADERS_MAX: Final = 100
RECORDS_MAX: Final = 5_000_000
"""How many offsets a transaction takes when the pipeline file does not say."""
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}\Z")
_PARTITION = re.compile(r"(?P<topic>[A-Za-z0-9._-]{1,249})-(?P<number>\d{1,9})\Z")
_SERVER = re.compile(r"[A-Za-z0-9._-]+:\d{1,5}|\[[0-9A-Fa-f:.]+\]:\d{1,5}")
_CONNECTION = re.compile(r"[A-Za-z_][\w.-]{0,199}\Z", re.ASCII)
_STARTS: Final = ("earliest", "latest")


def _topic(text: str) -> str:
    if not _TOPIC.match(text) or text in (".", ".."):
        hint = "use letters, digits, '.', '_' and '-', 249 at most; patterns are not read"
        raise InvalidUsage(f"{shown(text)} is not a topic", hint=hint)
    return text


def _servers(text: str) -> str:
    parts = [part.strip() for part in text.split(",")]
    if not all(_SERVER.fullmatch(part) for part in parts):
        hint = "write host:port, or several with commas; users and passwords belong into a connection"
        # What was written may hold a password, so it is not shown.
        raise InvalidUsage("the bootstrap servers can't be read", hint=hint)
    return ",".join(parts)


def _connection(text: str) -> str:
    if not _CONNECTION.match(text):
        hint = "write the id of an Airflow connection, like kafka_default"
        raise InvalidUsage(f"{shown(text)} is not a connection id", hint=hint)
    return text


def _start(value: Any) -> Any:
    """`earliest`, `latest`, `{timestamp: …}` or `{offsets: {topic-partition: offset}}`, as it was written."""
    if value in _STARTS:
        return value
    hint = "use earliest, latest, {timestamp: 2026-01-31T00:00:00Z} or {offsets: {orders-0: 100}}"
    match value:
        case {"timestamp": str() as text, **rest} if not rest:
            _time(text)
            return value
        case {"offsets": Mapping() as offsets, **rest} if offsets and not rest:
            for name, offset in offsets.items():
                if not isinstance(name, str) or not _PARTITION.match(name):
                    raise InvalidUsage(f"{shown(name)} is not a topic-partition", hint="write orders-0: 100")
                if not isinstance(offset, int) or isinstance(offset, bool) or offset < 0:
                    raise InvalidUsage(f"{shown(offset)} is not an offset", hint="write a number from 0 on")
            return {"offsets": dict(offsets)}
        case _:
            raise InvalidUsage(f"{shown(value)} is not a start", hint=hint)


def _time(text: str) -> datetime:
    hint = "write it in full with a zone, like 2026-01-31T00:00:00Z"
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidUsage(f"{shown(text)} is not a time", hint=hint) from None
    if found.tzinfo is None:
        raise InvalidUsage(f"{shown(text)} has no time zone", hint=hint)
    return found


def partition_name(topic: str, number: int) -> str:
    """A partition's name in frontiers, positions and messages, as Kafka's own tools write it."""
    return f"{topic}-{number}"


def split_partition(name: str) -> tuple[str, int]:
    """Topic and number of a partition's name."""
    found = _PARTITION.match(name)
    if found is None:
        raise InvalidUsage(f"{shown(name)} is not a topic-partition", hint="write it like orders-0")
    return found["topic"], int(found["number"])


HeaderName = Annotated[str, Field(min_length=1, max_length=1_000)]


class KafkaSource(Model):
    """Topics, read in exact ranges of offsets up to the last stable one.

    Either `kafka_config_id` names the connection with servers and security settings, or `bootstrap_servers`
    the servers of a cluster that asks for none. A record's key completes its value: its columns are used
    where the value has none, and alone where there is no value, which deletes. `headers` gives columns to
    the texts of headers.
    """

    type: Literal["kafka"]
    topics: Annotated[
        tuple[Annotated[str, AfterValidator(checked(_topic))], ...],
        Field(min_length=1, max_length=TOPICS_MAX),
    ]
    kafka_config_id: Annotated[str, AfterValidator(checked(_connection))] | None = None
    bootstrap_servers: Annotated[str, AfterValidator(checked(_servers))] | None = None
    format: Literal["json", "avro"] = "json"
    value_schema: AvroText | None = None
    key_format: Literal["json", "string", "avro"] = "json"
    key_schema: AvroText | None = None
    headers: Annotated[Mapping[ColumnName, HeaderName], Field(max_length=HEADERS_MAX)] = Field(
        default_factory=dict
    )
    start: Annotated[Any, BeforeValidator(checked(_start))] = "earliest"
    group_id: Annotated[str, Field(min_length=1, max_length=249, pattern=r"^[\w.-]+$")] | None = None

    @property
    def start_offsets(self) -> Mapping[str, int]:
        """The partitions whose first offset is given."""
        return self.start["offsets"] if isinstance(self.start, dict) and "offsets" in self.start else {}

    @property
    def start_time(self) -> datetime | None:
        """The time of the first record to read."""
        is_time = isinstance(self.start, dict) and "timestamp" in self.start
        return _time(self.start["timestamp"]) if is_time else None

    def group_of(self, pipeline: str) -> str:
        """The consumer group that shows how far the pipeline is."""
        return self.group_id or f"tidemark-{pipeline}"

    @property
    def has_single_key(self) -> bool:
        """Whether keys are one value, and not an object with columns."""
        of_avro = self.key_schema is not None and not self.key_schema.are_records
        return self.key_format == "string" or of_avro

    @property
    def lists_tables(self) -> bool:
        """Whether the source itself can say which tables there are."""
        return False

    @property
    def summary(self) -> str:
        """What is taken, in one line."""
        start = self.start if isinstance(self.start, str) else "offsets" if self.start_offsets else "a time"
        named = ", ".join(self.topics[:5]) + (", …" if len(self.topics) > 5 else "")
        return f"{self.format} records of {named}, with {self.key_format} keys, from {start} on"

    def located(self, root: Path) -> str:
        """Where the records come from, for people."""
        return f"kafka {self.kafka_config_id or self.bootstrap_servers}"

    @model_validator(mode="after")
    def _rules(self) -> KafkaSource:
        raise_flaws(self._flaws())
        return self

    def _flaws(self) -> Iterator[Flaw]:
        if (self.kafka_config_id is None) == (self.bootstrap_servers is None):
            fact = "a kafka source needs kafka_config_id or bootstrap_servers, and not both"
            yield Flaw((), fact, "name an Airflow connection, or the servers of an open cluster")
        for index, topic in enumerate(self.topics):
            if topic in self.topics[:index]:
                yield Flaw(("topics", index), f"topic {topic!r} is listed twice", "remove one")
        written = (("format", "value_schema"), ("key_format", "key_schema"))
        for (name, which), schema in zip(written, (self.value_schema, self.key_schema), strict=True):
            is_avro = getattr(self, name) == "avro"
            if is_avro and schema is None:
                hint = "write the schema, the name of its file, or {id: schema} for Confluent's wire format"
                yield Flaw((name,), f"{name}: avro needs {which}", hint)
            if schema is not None and not is_avro:
                yield Flaw((which,), f"{which} with {name}: {getattr(self, name)}", f"write {name}: avro")
            if schema is not None and schema.is_registered and self.kafka_config_id is None:
                hint = "name the connection that has schema.registry.url in its extra"
                yield Flaw((which,), f"{which}: registry needs kafka_config_id", hint)
        if self.value_schema is not None and not self.value_schema.are_records:
            yield Flaw(("value_schema",), "a value is a row, and the schema is of a single value", "")
        for name in self.start_offsets:
            if split_partition(name)[0] not in self.topics:
                yield Flaw(("start",), f"{name!r} is not a partition of the topics", "name a listed topic")
