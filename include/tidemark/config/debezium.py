"""How a Debezium connector writes what JSON has no type for, in the connector's own words and values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from tidemark.config.base import Model
from tidemark.config.problems import Flaw
from tidemark.config.schema import Array, DataType, Map, Schema, Struct

if TYPE_CHECKING:
    from tidemark.config.model import PipelineConfig


class Debezium(Model):
    """The connector's `decimal.handling.mode` and `time.precision.mode`, as they are set there.

    A decimal as text may be the number or its bytes in base64, and no text says which; so where a column is a
    DECIMAL, the mode has to be said. Times have the connector's default: numbers whose unit the record's own
    schema tells.
    """

    decimal_handling_mode: Literal["precise", "double", "string"] | None = None
    time_precision_mode: Literal[
        "adaptive", "adaptive_time_microseconds", "connect", "isostring", "microseconds", "nanoseconds"
    ] = "adaptive"


def debezium_flaws(config: PipelineConfig) -> Iterator[Flaw]:
    """Where the settings have no meaning, and where one is needed."""
    if config.debezium is not None and config.envelope != "debezium":
        fact = f"debezium settings with envelope: {config.envelope}"
        yield Flaw(("debezium",), fact, "write envelope: debezium, or remove them")
    if config.debezium is not None and config.source.type == "postgres":
        fact = "what is captured from a database is not written by a connector"
        yield Flaw(("debezium",), fact, "remove the debezium settings")
    said = config.debezium is not None and config.debezium.decimal_handling_mode is not None
    read_as_text = config.source.type != "postgres" and config.source.format == "json"
    if config.envelope != "debezium" or said or not read_as_text:
        return
    tables = config.tables.overrides if config.tables is not None else ()
    places = [
        *((("shards", index, "schema"), shard.columns) for index, shard in enumerate(config.shards)),
        *((("tables", "overrides", index, "schema"), table.columns) for index, table in enumerate(tables)),
    ]
    for path, columns in places:
        named = [c.name for c in columns if _has_decimal(c.type)] if isinstance(columns, Schema) else []
        if named:
            fact = f"column {named[0]!r} is a DECIMAL, and how the connector writes it is not said"
            hint = "write debezium: {decimal_handling_mode: precise}, or what the connector has"
            yield Flaw(path, fact, hint)


def _has_decimal(kind: DataType) -> bool:
    match kind:
        case Array():
            return _has_decimal(kind.element)
        case Map():
            return _has_decimal(kind.value)
        case Struct():
            return any(_has_decimal(field.type) for field in kind.fields)
    return kind.name == "DECIMAL"
