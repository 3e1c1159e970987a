"""The rules between a pipeline's settings. Unsupported combinations fail here, at definition (Invariant
14).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import TYPE_CHECKING

from tidemark.config.base import FROM_SOURCE, is_pattern, parts_of
from tidemark.config.paths import is_uri
from tidemark.config.problems import Flaw, shown
from tidemark.config.source import debezium_flaws

if TYPE_CHECKING:
    from tidemark.config.kafka import KafkaSource
    from tidemark.config.model import PipelineConfig
    from tidemark.config.shard import Route

_NESTED = ("ARRAY", "MAP", "STRUCT")


def pipeline_flaws(config: PipelineConfig) -> Iterator[Flaw]:
    """Every broken rule, with the path of the setting that breaks it."""
    yield from _shard_list_flaws(config)
    yield from _envelope_flaws(config)
    yield from _route_flaws(config)
    yield from _format_flaws(config)
    yield from _postgres_flaws(config)
    yield from debezium_flaws(config)


def _shard_list_flaws(config: PipelineConfig) -> Iterator[Flaw]:
    if not config.shards and config.tables is None:
        yield Flaw(
            ("shards",), "the pipeline has no shard", "list at least one under shards, or under tables"
        )
    first: dict[str, int] = {}
    for index, shard in enumerate(config.shards):
        if shard.name in first:
            hint = f"shards[{first[shard.name]}] has it already"
            yield Flaw(("shards", index, "name"), f"shard name {shard.name!r} is used twice", hint)
        first.setdefault(shard.name, index)
    yield from _table_flaws(config)


def _table_flaws(config: PipelineConfig) -> Iterator[Flaw]:
    if config.tables is None:
        return
    lists_tables = config.source.lists_tables
    for index, table in enumerate(config.tables.include):
        path = ("tables", "include", index)
        if is_pattern(table) and not lists_tables:
            hint = "list the tables by name; patterns work in overrides and exclude"
            fact = (
                f"a {config.source.type} source can't list its tables, so the pattern {table!r} can't"
                " be resolved"
            )
            yield Flaw(path, fact, hint)
        elif is_pattern(table) and not config.tables.asks_for_any:
            hint = f"write defaults: {{schema: {FROM_SOURCE}}}, or name the tables with their schemas"
            yield Flaw(path, f"the tables of {table!r} have no schema", hint)
        elif not is_pattern(table) and config.source.type == "postgres" and table.count(".") != 1:
            yield Flaw(path, f"table {table!r} has no schema before its name", "write schema.table")
    for index, override in enumerate(config.tables.overrides):
        if override.columns == FROM_SOURCE and not lists_tables:
            fact = f"a {config.source.type} source can't describe the columns of its tables"
            yield Flaw(("tables", "overrides", index, "schema"), fact, "write the schema as DDL")


def _envelope_flaws(config: PipelineConfig) -> Iterator[Flaw]:
    for index, shard in enumerate(config.shards):
        path = ("shards", index)
        if config.envelope != "append" and not shard.keys:
            hint = "list the columns that identify a row, or use envelope: append"
            yield Flaw((*path, "keys"), f"envelope {config.envelope} needs keys", hint)
        if config.envelope == "append" and shard.sequence_by is not None:
            yield Flaw((*path, "sequence_by"), "envelope append keeps every record, in no order", "remove it")
        if config.envelope != "upsert" and shard.apply_as_deletes is not None:
            keeps = config.envelope == "append"
            why = "append keeps every record" if keeps else "debezium marks its own deletions"
            fact = f"apply_as_deletes needs envelope upsert, {why}"
            yield Flaw((*path, "apply_as_deletes"), fact, "remove it")


def _route_flaws(config: PipelineConfig) -> Iterator[Flaw]:
    seen = _Taken()
    columns: set[str] = set()
    for index, shard in enumerate(config.shards):
        path = ("shards", index, "route")
        route = shard.route
        if route is None:
            if len(config.shards) > 1 or config.tables is not None:
                hint = "add {column: …, equals: …} or {table: …}"
                yield Flaw(
                    path, f"shard {shard.name!r} needs a route, because there are several shards", hint
                )
            continue
        if route.table is not None and config.envelope != "debezium":
            hint = "use {column: …, equals: …}"
            yield Flaw((*path, "table"), f"records of envelope {config.envelope} name no table", hint)
        if route.column is not None:
            columns.add(route.column)
            if config.envelope == "debezium":
                hint = "use {table: …}; a deletion may carry no other columns than its key"
                yield Flaw((*path, "column"), "debezium records are routed by their table", hint)
            elif len(columns) > 1:
                hint = f"route all shards by one column, so that no record fits two: {sorted(columns)}"
                yield Flaw((*path, "column"), f"routes use different columns: {shown(route.column)}", hint)
        other = seen.take(route, index)
        if other is not None:
            yield Flaw(path, f"shards[{other}] takes the same records", "make the routes differ")


class _Taken:
    """The records that each shard takes. A route to `orders` matches the records of `public.orders` too, so
    a table is compared by every suffix of its name."""

    def __init__(self) -> None:
        self._whole: dict[Hashable, int] = {}
        self._ends: dict[Hashable, int] = {}

    def take(self, route: Route, index: int) -> int | None:
        """Register a shard's route. Returns an earlier shard that takes some of the same records, if there
        is one."""
        if route.table is None:
            key = (route.column, type(route.equals).__name__, route.equals)
            other = self._whole.setdefault(key, index)
            return other if other != index else None
        parts = route.table.split(".")
        ends = [tuple(parts[at:]) for at in range(len(parts))]
        found = [self._whole[end] for end in ends if end in self._whole]
        found += [self._ends[ends[0]]] if ends[0] in self._ends else []
        self._whole.setdefault(ends[0], index)
        for end in ends:
            self._ends.setdefault(end, index)
        return min(found, default=None)


def _format_flaws(config: PipelineConfig) -> Iterator[Flaw]:
    if config.source.type == "kafka":
        yield from _kafka_flaws(config, config.source)
        return
    if config.source.format != "csv":
        return
    if config.envelope == "debezium":
        yield Flaw(("envelope",), "csv can't hold a debezium envelope", "use format: json or parquet")
    for index, shard in enumerate(config.shards):
        path = ("shards", index)
        nested = [column.name for column in shard.columns if column.type.name in _NESTED]
        if nested:
            fact = f"csv can't hold nested columns: {shown(', '.join(nested))}"
            yield Flaw((*path, "schema"), fact, "use format: json or parquet, or a STRING column")
        if config.source.csv_options.header:
            continue
        if shard.on_schema_change != "fail":
            fact = "csv without a header has no column names that could be new or missing"
            yield Flaw((*path, "on_schema_change"), fact, "use on_schema_change: fail")
        condition = shard.apply_as_deletes
        if condition is not None and shard.columns.get(condition.column) is None:
            fact = f"csv without a header has no column {condition.column!r} beside the schema's"
            yield Flaw((*path, "apply_as_deletes"), fact, "declare it in the schema")
        column = shard.route.column if shard.route else None
        if column is not None and shard.columns.get(column) is None:
            fact = f"csv without a header has no column {column!r} beside the schema's"
            yield Flaw((*path, "route", "column"), fact, "declare it in the schema")


def _kafka_flaws(config: PipelineConfig, source: KafkaSource) -> Iterator[Flaw]:
    for index, shard in enumerate(config.shards):
        if source.has_single_key and len(shard.keys) > 1:
            kind = "a string" if source.key_format == "string" else "a single value"
            fact = f"{kind} is one key column, but shard {shard.name!r} has {len(shard.keys)}"
            hint = f"use keys with several fields, or one key in shards[{index}]"
            yield Flaw(("source", "key_format"), fact, hint)
    for name in source.headers:
        path = ("source", "headers", name)
        found = [shard.columns.get(name) for shard in config.shards]
        columns = [column for column in found if column is not None]
        if not columns and config.tables is None:
            yield Flaw(path, f"no shard has the column {name!r} for a header", "declare it as STRING")
        if any(column.type.name != "STRING" for column in columns):
            fact = f"a header is a text, and column {name!r} is not a STRING"
            yield Flaw(path, fact, "declare it as STRING")
        if any(name in shard.keys for shard in config.shards):
            fact = f"column {name!r} is a key, and a deletion is found by its record's key"
            yield Flaw(path, fact, "give the header a column of its own")


def _postgres_flaws(config: PipelineConfig) -> Iterator[Flaw]:
    if config.source.type != "postgres":
        return
    if config.envelope != "debezium":
        fact = f"changes of a database are captured as debezium records, not {config.envelope}"
        yield Flaw(("envelope",), fact, "write envelope: debezium")
    if is_uri(config.warehouse):
        fact = "captured changes need a local or mounted warehouse"
        yield Flaw(("warehouse",), fact, "changes of a slot can't be captured into an object store")
    for index, shard in enumerate(config.shards):
        if shard.sequence_by is not None:
            fact = "a replication slot has its own order, and its deletions carry no sequence"
            yield Flaw(("shards", index, "sequence_by"), fact, "remove sequence_by")
        table = shard.route.table if shard.route is not None else None
        if table is None or parts_of(table) != 2:
            fact = f"shard {shard.name!r} does not name its table"
            hint = "write route: {table: schema.table}, with the schema"
            yield Flaw(("shards", index, "route"), fact, hint)
