"""Avro schemas in a pipeline file: `value_schema` and `key_schema` of a Kafka source.

A schema is written as it is, or as the name of a file that holds it. One schema stands for bytes that are
nothing but Avro; several, each under its id, for Confluent's wire format, which puts a zero byte and the id
before them:

    value_schema: schemas/payment.avsc
    value_schema: {12: schemas/payment-1.avsc, 13: schemas/payment-2.avsc}
    value_schema: registry

A file takes the place of its name before anything is checked; what a registry has is looked up when a
transaction is bound. So a binding records what the schemas were, and a replay needs neither.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, PlainSerializer

from tidemark.config.base import checked
from tidemark.config.document import Node
from tidemark.config.explain import problem_at
from tidemark.config.paths import read_named, shown_place
from tidemark.config.problems import Problem
from tidemark.config.text import shown
from tidemark.core.errors import InvalidUsage

KEYS: Final = ("value_schema", "key_schema")
REGISTRY: Final = "registry"
IDS_MAX: Final = 1_000
_ID: Final = re.compile(r"\d{1,10}\Z")
_ID_MAX: Final = 2**31 - 1
_FILE_BYTES_MAX: Final = 1_048_576
_SAID_CHARACTERS_MAX: Final = 200
_PRIMITIVES: Final = ("boolean", "int", "long", "float", "double", "bytes", "string")


@dataclass(frozen=True, slots=True)
class AvroSchemas:
    """What bytes may be written with, each schema as JSON text: `plain` for all of them, or one by each id of
    Confluent's wire format; or those that a registry has."""

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
        """Whether every schema has fields of its own, and not just one value."""
        return all(is_record(text) for text in self.texts)

    def recorded(self) -> Any:
        """As a configuration keeps it."""
        if self.is_registered:
            return REGISTRY
        return self.plain or {str(number): text for number, text in self.by_id}


def is_record(text: str) -> bool:
    """Whether a schema is that of a record."""
    found = json.loads(text)
    return isinstance(found, dict) and found.get("type") == "record"


def parse_schemas(value: Any) -> AvroSchemas:
    """The schemas that were written, or `InvalidUsage`."""
    if isinstance(value, AvroSchemas):
        return value
    if value == REGISTRY:
        return AvroSchemas(is_registered=True)
    if not isinstance(value, Mapping) or not value or not all(_ID.match(str(key)) for key in value):
        return AvroSchemas(plain=schema_text(value))
    if len(value) > IDS_MAX:
        raise InvalidUsage(f"{len(value)} schemas are too many", hint=f"list {IDS_MAX} at most")
    by_id = {int(key): schema_text(schema) for key, schema in value.items()}
    if len(by_id) < len(value) or max(by_id) > _ID_MAX:
        raise InvalidUsage("an id is listed twice, or is none", hint=f"use 0 to {_ID_MAX}")
    return AvroSchemas.of(by_id)


def schema_text(value: Any) -> str:
    """One schema as JSON text, checked; `InvalidUsage` when it can't be used."""
    from fastavro.schema import SchemaParseException, UnknownType, parse_schema

    hint = "write the schema as Avro has it, or the name of a file that holds it as JSON"
    is_text = isinstance(value, str) and value.lstrip()[:1] in ("{", "[", '"')
    try:
        found = json.loads(value) if is_text else value
    except ValueError:
        raise InvalidUsage("the schema is no JSON", hint=hint) from None
    try:
        # On a copy, since it leaves notes of its own in it.
        parsed = parse_schema(json.loads(json.dumps(found)))
    except UnknownType as error:
        raise InvalidUsage(f"{shown(str(error))} is not a type of Avro", hint=hint) from None
    except (SchemaParseException, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        said = str(error)[:_SAID_CHARACTERS_MAX]
        raise InvalidUsage(f"the schema can't be used: {said}", hint=hint) from None
    kind = found.get("type") if isinstance(found, dict) else found
    if kind != "record" and kind not in _PRIMITIVES:
        raise InvalidUsage("the schema is neither of a record nor of a single value", hint=hint)
    if _refers_to_itself(parsed):
        hint = "Spark has no type of endless depth; declare the depth that there is"
        raise InvalidUsage("the schema refers to itself", hint=hint)
    return json.dumps(found, separators=(",", ":"), ensure_ascii=False)


def _refers_to_itself(parsed: Any, inside: tuple[str, ...] = ()) -> bool:
    """Whether a record, with its names written in full, has itself somewhere below it."""
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
    """Puts schemas in the place of their files' names; `problems` has what was wrong with any."""

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
            fact = f"{shown_place(named.value)} is no text"
        self.problems.append(problem_at(named, (), fact, hint, file=self.file))
        # Something that passes, so that the file is not blamed twice.
        return replace(named, value="string")
