"""Kafka topics as a source in a pipeline file, and the Avro schemas of their values and keys.

Secrets are not here but in a connection.

A schema (`value_schema`, `key_schema`) is written inline or as the name of its file. A single schema is for
plain Avro bytes; several, each under its id, are for Confluent's wire format, in which a zero byte and the
id precede the Avro bytes:

    value_schema: schemas/payment.avsc
    value_schema: {12: schemas/payment-1.avsc, 13: schemas/payment-2.avsc}
    value_schema: registry

A file replaces its name before any check; schemas in a registry are looked up when a transaction is bound.
So a binding records the schemas, and a replay needs neither file nor registry.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, model_validator

from tidemark.config.base import ColumnName, Model, checked
from tidemark.config.document import Flaw, Node, Problem, problem_at, raise_flaws, shown
from tidemark.config.storage import read_named, shown_place
from tidemark.core.errors import InvalidUsage

KEYS: Final = ("value_schema", "key_schema")
REGISTRY: Final = "registry"
IDS_MAX: Final = 1_000
_ID: Final = re.compile(r"\d{1,10}\Z")
_ID_MAX: Final = 2**31 - 1
_FILE_BYTES_MAX: Final = 1_048_576
_ERROR_CHARACTERS_MAX: Final = 200
_PRIMITIVES: Final = ("boolean", "int", "long", "float", "double", "bytes", "string")


@dataclass(frozen=True, slots=True)
class AvroSchemas:
    """The schemas of some bytes, each as JSON text: `plain` for all of them, or one for each id of
    Confluent's wire format, or those in a registry."""

    plain: str = ""
    by_id: tuple[tuple[int, str], ...] = ()
    is_registered: bool = False

    @classmethod
    def of(cls, by_id: Mapping[int, str]) -> AvroSchemas:
        """Checked schemas by their ids."""
        return cls(by_id=tuple(sorted(by_id.items())))

    @property
    def texts(self) -> tuple[str, ...]:
        return (self.plain,) if self.plain else tuple(text for _, text in self.by_id)

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(number for number, _ in self.by_id)

    @property
    def are_records(self) -> bool:
        """Whether every schema is a record, not a single value."""
        return all(is_record(text) for text in self.texts)

    def recorded(self) -> Any:
        """The schemas as a configuration records them."""
        if self.is_registered:
            return REGISTRY
        return self.plain or {str(number): text for number, text in self.by_id}


def is_record(text: str) -> bool:
    """Whether a schema is a record."""
    found = json.loads(text)
    return isinstance(found, dict) and found.get("type") == "record"


def parse_schemas(value: Any) -> AvroSchemas:
    """The schemas in a setting. Raises `InvalidUsage`."""
    if isinstance(value, AvroSchemas):
        return value
    if value == REGISTRY:
        return AvroSchemas(is_registered=True)
    if not isinstance(value, Mapping) or not value or not all(_ID.match(str(key)) for key in value):
        return AvroSchemas(plain=schema_text(value))
    if len(value) > IDS_MAX:
        raise InvalidUsage(f"{len(value)} schemas are listed", hint=f"list {IDS_MAX} at most")
    by_id = {int(key): schema_text(schema) for key, schema in value.items()}
    if len(by_id) < len(value) or max(by_id) > _ID_MAX:
        raise InvalidUsage("a schema id is repeated or is not a number", hint=f"use 0 to {_ID_MAX}")
    return AvroSchemas.of(by_id)


def schema_text(value: Any) -> str:
    """One schema as checked JSON text. Raises `InvalidUsage` if it can't be used."""
    from fastavro.schema import SchemaParseException, UnknownType, parse_schema

    hint = "write the schema as Avro has it, or the name of a file that holds it as JSON"
    is_text = isinstance(value, str) and value.lstrip()[:1] in ("{", "[", '"')
    try:
        found = json.loads(value) if is_text else value
    except ValueError:
        raise InvalidUsage("the schema is not JSON", hint=hint) from None
    try:
        # On a copy, because parse_schema modifies its argument.
        parsed = parse_schema(json.loads(json.dumps(found)))
    except UnknownType as error:
        raise InvalidUsage(f"{shown(str(error))} is not an Avro type", hint=hint) from None
    except (SchemaParseException, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        why = str(error)[:_ERROR_CHARACTERS_MAX]
        raise InvalidUsage(f"the schema can't be used: {why}", hint=hint) from None
    kind = found.get("type") if isinstance(found, dict) else found
    if kind != "record" and kind not in _PRIMITIVES:
        raise InvalidUsage("the schema describes neither a record nor a single value", hint=hint)
    if _refers_to_itself(parsed):
        hint = "Spark has no recursive type; declare the depth that the records have"
        raise InvalidUsage("the schema refers to itself", hint=hint)
    return json.dumps(found, separators=(",", ":"), ensure_ascii=False)


def _refers_to_itself(parsed: Any, inside: tuple[str, ...] = ()) -> bool:
    """Whether a record contains itself; its names must be full names."""
    match parsed:
        case str():
            return parsed in inside
        case list():
            return any(_refers_to_itself(one, inside) for one in parsed)
        case {"type": "record", "name": str() as name, "fields": list() as fields}:
            return any(_refers_to_itself(one["type"], (*inside, name)) for one in fields)
        case {"items": below} | {"values": below} | {"type": (dict() | list()) as below}:
            return _refers_to_itself(below, inside)
    return False


AvroText = Annotated[
    AvroSchemas,
    BeforeValidator(checked(parse_schemas)),
    PlainSerializer(lambda schemas: schemas.recorded()),
]


@dataclass(slots=True)
class SchemaReader:
    """Replaces the names of schema files by their content; `problems` has the errors."""

    file: str
    root: Path
    problems: list[Problem] = field(default_factory=list)

    def expanded(self, tree: Node) -> Node:
        """The effective tree with the schemas of its source read in."""
        source = tree.child("source")
        if source is None or not isinstance(source.value, dict):
            return tree
        items = {key: self._schemas(node) if key in KEYS else node for key, node in source.items.items()}
        return tree.with_items({**tree.items, "source": source.with_items(items)})

    def _schemas(self, node: Node) -> Node:
        if isinstance(node.value, str):
            return self._read(node)
        is_listed = bool(node.items) and all(_ID.match(key) for key in node.items)
        if not is_listed:
            return node
        return node.with_items(
            {key: self._read(one) if isinstance(one.value, str) else one for key, one in node.items.items()}
        )

    def _read(self, named: Node) -> Node:
        if named.value in (REGISTRY, *_PRIMITIVES):
            return named
        hint = "write a path relative to the project, or the schema itself"
        try:
            _, content = read_named(named.value, root=self.root, hint=hint)
            if len(content) > _FILE_BYTES_MAX:
                raise InvalidUsage(f"{shown_place(named.value)} is too large", hint=hint)
            return replace(named, value=content.decode())
        except InvalidUsage as error:
            fact, hint = error.fact, error.hint
        except UnicodeDecodeError:
            fact = f"{shown_place(named.value)} is not text"
        self.problems.append(problem_at(named, (), fact, hint, file=self.file))
        # A valid placeholder, so that the same mistake is not reported twice.
        return replace(named, value="string")


# Topics.

TOPICS_MAX: Final = 1_000
HEADERS_MAX: Final = 100
RECORDS_MAX: Final = 5_000_000
"""The default limit of offsets per transaction."""
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}\Z")
_PARTITION = re.compile(r"(?P<topic>[A-Za-z0-9._-]{1,249})-(?P<number>\d{1,9})\Z")
_SERVER = re.compile(r"[A-Za-z0-9._-]+:\d{1,5}|\[[0-9A-Fa-f:.]+\]:\d{1,5}")
_CONNECTION = re.compile(r"[A-Za-z_][\w.-]{0,199}\Z", re.ASCII)
_STARTS: Final = ("earliest", "latest")


def _topic(text: str) -> str:
    if not _TOPIC.match(text) or text in (".", ".."):
        hint = "use letters, digits, '.', '_' and '-', 249 at most; patterns are not allowed"
        raise InvalidUsage(f"{shown(text)} is not a topic", hint=hint)
    return text


def _servers(text: str) -> str:
    parts = [part.strip() for part in text.split(",")]
    if not all(_SERVER.fullmatch(part) for part in parts):
        hint = "write host:port, or several with commas; put users and passwords in a connection"
        # The text may contain a password, so the message does not show it.
        raise InvalidUsage("the bootstrap servers can't be read", hint=hint)
    return ",".join(parts)


def _connection(text: str) -> str:
    if not _CONNECTION.match(text):
        hint = "write the id of an Airflow connection, like kafka_default"
        raise InvalidUsage(f"{shown(text)} is not a connection id", hint=hint)
    return text


def _start(value: Any) -> Any:
    """`earliest`, `latest`, `{timestamp: …}` or `{offsets: {topic-partition: offset}}`, as written."""
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
    hint = "write it with a time zone, like 2026-01-31T00:00:00Z"
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
    """Topics, read in exact ranges of offsets up to the last stable offset.

    Set either `kafka_config_id`, the connection with servers and security settings, or `bootstrap_servers`,
    the servers of an open cluster. A record's key completes its value: key columns that the value lacks
    come from the key, and a record without a value deletes its key. `headers` maps columns to headers.
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
        """The partitions with a given first offset."""
        return self.start["offsets"] if isinstance(self.start, dict) and "offsets" in self.start else {}

    @property
    def start_time(self) -> datetime | None:
        """The time of the first record to read; None if `start` is not a time."""
        is_time = isinstance(self.start, dict) and "timestamp" in self.start
        return _time(self.start["timestamp"]) if is_time else None

    def group_of(self, pipeline: str) -> str:
        """The consumer group that shows the pipeline's progress."""
        return self.group_id or f"tidemark-{pipeline}"

    @property
    def has_single_key(self) -> bool:
        """Whether a key is a single value, not an object with columns."""
        of_avro = self.key_schema is not None and not self.key_schema.are_records
        return self.key_format == "string" or of_avro

    @property
    def lists_tables(self) -> bool:
        """Whether the source can list its tables."""
        return False

    @property
    def summary(self) -> str:
        """The input in one line."""
        start = self.start if isinstance(self.start, str) else "offsets" if self.start_offsets else "a time"
        named = ", ".join(self.topics[:5]) + (", …" if len(self.topics) > 5 else "")
        return f"{self.format} records of {named}, with {self.key_format} keys, from {start} on"

    def located(self, root: Path) -> str:
        """The origin of the records, for messages."""
        return f"kafka {self.kafka_config_id or self.bootstrap_servers}"

    @model_validator(mode="after")
    def _rules(self) -> KafkaSource:
        raise_flaws(self._flaws())
        return self

    def _flaws(self) -> Iterator[Flaw]:
        if (self.kafka_config_id is None) == (self.bootstrap_servers is None):
            fact = "a kafka source needs either kafka_config_id or bootstrap_servers"
            yield Flaw((), fact, "set an Airflow connection, or the servers of a cluster without credentials")
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
            yield Flaw(("value_schema",), "a value has to be a row, but the schema is of a single value", "")
        for name in self.start_offsets:
            if split_partition(name)[0] not in self.topics:
                yield Flaw(("start",), f"{name!r} is not a partition of the topics", "name a listed topic")
