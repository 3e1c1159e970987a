"""Loading of pipeline files: from text to a `PipelineConfig`, or to a list of all problems.

The order is: apply the environment's block to the file's values; apply `defaults` to each shard; turn named
tables into shards; then check every rule on the result. Each value keeps its position, so a mistake in
`defaults` is reported there, once. If two levels set a list, such as `expectations`, the more specific one
replaces the other.

Some columns are not in the pipeline file. With `schema: from_source`, the source's description of a table is
recorded beside its captured changes when the table is first routed to a shard. From then on the record is the
declared schema, as if it were in the pipeline file: loading a pipeline does not query the database. With
`on_schema_change: add_columns`, a shard gets the columns that its table gets; after any other change, the
table goes to a shard with another name. Every binding has the whole configuration, so a replay does not need
the record.

With `on_schema_change: add_columns`, a shard also gets new columns from its records. The pipeline file
declares the minimum. New columns are recorded in the shard's log before the first seal of a row that has
them, and count as declared from then on.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from tidemark.config.base import FROM_SOURCE, is_pattern
from tidemark.config.document import (
    ConfigInvalid,
    DocumentReader,
    Node,
    Problem,
    nearest,
    problem_at,
    shown,
    validated,
)
from tidemark.config.expectations import SuiteReader
from tidemark.config.kafka import SchemaReader
from tidemark.config.model import PipelineConfig
from tidemark.config.schema import Column, Schema, parse_schema
from tidemark.config.shard import ShardConfig, ShardSettings, matches_any, shard_name_of
from tidemark.config.storage import default_root, is_relative, is_uri, resolved, shown_place
from tidemark.core.errors import InvalidUsage, InvariantViolation, TidemarkError
from tidemark.core.ids import ShardId

_FILE_NAME = re.compile(r"\w[\w .-]*")

ENVIRONMENT_KEYS = ("source", "warehouse")
FILE_ONLY_KEYS = ("defaults", "environments")


@dataclass(frozen=True, slots=True)
class LoadedPipelines:
    """A folder's pipelines by file name, and the errors of unusable files."""

    pipelines: Mapping[str, PipelineConfig]
    errors: Mapping[str, ConfigInvalid]


def load_pipeline(
    path: Path | str,
    environment: str | None = None,
    *,
    root: Path | None = None,
    environ: Mapping[str, str] = os.environ,
) -> PipelineConfig:
    """The pipeline in a file. Raises `ConfigInvalid` with every problem.

    `environment` selects a block of `environments`; None means `$TIDEMARK_ENVIRONMENT`. A file without such
    blocks is the same in all environments.
    """
    file = Path(path)
    root = root or default_root(file, environ)
    reader = DocumentReader(str(path))
    tree = reader.read(_content(file))
    if tree is None or not isinstance(tree.value, dict):
        if tree is not None:
            fact = "the file is not a mapping"
            reader.problems.append(problem_at(tree, (), fact, "begin with name: …", file=str(path)))
        raise ConfigInvalid(reader.problems)
    chosen = environment or environ.get("TIDEMARK_ENVIRONMENT") or None
    suites = SuiteReader(str(path), root)
    tree = suites.expanded(tree)
    problems = [*reader.problems, *suites.problems, *_file_problems(tree, str(path), chosen)]
    schemas = SchemaReader(str(path), root)
    effective = schemas.expanded(_effective(tree, chosen, environ.get("TIDEMARK_WAREHOUSE")))
    problems += schemas.problems
    read, found = validated(PipelineConfig, effective, file=str(path), extra_keys=FILE_ONLY_KEYS)
    problems += found
    problems += _place_problems(effective, str(path), root)
    problems += _limit_problems(effective, str(path))
    if problems or read is None:
        raise ConfigInvalid(sorted(set(problems)))
    config = read.at(root)
    problems += _taken_twice(config, effective, str(path))
    problems += _policy_problems(config, effective, str(path))
    if problems:
        raise ConfigInvalid(problems)
    try:
        return with_discovered_shards(config, recorded_shapes(config))
    except TidemarkError as error:
        raise ConfigInvalid([Problem(str(path), 0, 0, "tables", error.fact, error.hint)]) from None


def load_pipelines(folder: Path | str, environment: str | None = None) -> LoadedPipelines:
    """Every `*.yaml` and `*.yml` file in the folder. A broken file does not affect the others. Two files
    with one pipeline name are both refused, since either could own the tables. File names are part of
    commands, DAGs and messages, so special characters are refused."""
    pipelines: dict[str, PipelineConfig] = {}
    errors: dict[str, ConfigInvalid] = {}
    for file in sorted(Path(folder).glob("*.y*ml")):
        if file.suffix not in (".yaml", ".yml") or file.name.startswith("."):
            continue
        try:
            if not _FILE_NAME.fullmatch(file.name):
                fact, hint = (
                    "a pipeline file can't have this file name",
                    "use letters, digits, space, and . _ -",
                )
                raise ConfigInvalid([Problem(str(file), 0, 0, "", fact, hint)])
            pipelines[file.name] = load_pipeline(file, environment)
        except ConfigInvalid as error:
            errors[file.name] = error
    files_of: dict[str, list[str]] = {}
    for name, config in pipelines.items():
        files_of.setdefault(config.name, []).append(name)
    for pipeline, names in files_of.items():
        for name in names if len(names) > 1 else ():
            others = ", ".join(other for other in names if other != name)
            fact = f"pipeline {pipeline!r} is also defined by {others}"
            problem = Problem(str(Path(folder) / name), 0, 0, "name", fact, "give each file its own name")
            errors[name] = ConfigInvalid([problem])
            del pipelines[name]
    return LoadedPipelines(pipelines, errors)


def environments_of(path: Path | str) -> tuple[str, ...]:
    """The names of a file's environments; empty if it can't be read."""
    blocks = _written(path, "environments")
    return tuple(blocks.items) if blocks is not None else ()


def name_in(path: Path | str) -> str:
    """The pipeline name in a file, usable or not; empty if there is none or the file can't be read."""
    name = _written(path, "name")
    return name.value if name is not None and isinstance(name.value, str) else ""


def _written(path: Path | str, key: str) -> Node | None:
    try:
        tree = DocumentReader(str(path)).read(_content(Path(path)))
    except ConfigInvalid:
        return None
    return tree.child(key) if tree is not None else None


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        fact = f"can't be read, {(error.strerror or str(error)).lower()}"
        raise ConfigInvalid([Problem(str(file), 0, 0, "", fact, "check the path")]) from None


def _file_problems(tree: Node, file: str, chosen: str | None) -> Iterator[Problem]:
    """Problems in the parts of the file that are not in the effective configuration."""
    defaults = tree.child("defaults")
    if defaults is not None:
        yield from validated(ShardSettings, defaults, file=file)[1]
    blocks = tree.child("environments")
    if blocks is None:
        return
    if not isinstance(blocks.value, dict):
        yield problem_at(blocks, (), "expected a mapping", "write dev: {…}", file=file)
        return
    for name, block in blocks.items.items():
        for key in block.items:
            if key not in ENVIRONMENT_KEYS:
                hint = f"an environment sets {' and '.join(ENVIRONMENT_KEYS)}"
                yield problem_at(block, (key,), f"unknown key {shown(key)}", hint, file=file, at_key=True)
        if not isinstance(block.value, dict):
            hint = "write {warehouse: …, source: {path: …}}"
            yield problem_at(blocks, (name,), "expected a mapping", hint, file=file)
    if chosen is not None and chosen not in blocks.items:
        hint = nearest(chosen, blocks.items, otherwise=f"the file has {', '.join(blocks.items)}")
        yield problem_at(blocks, (), f"there is no environment {shown(chosen)}", hint, file=file)


def _effective(tree: Node, chosen: str | None, warehouse: str | None) -> Node:
    """The tree with environment, defaults and named tables applied."""
    items = dict(tree.items)
    blocks = items.pop("environments", None)
    block = blocks.child(chosen) if blocks is not None and chosen is not None else None
    for key in ENVIRONMENT_KEYS if block is not None else ():
        over = block.child(key) if block is not None else None
        if over is not None:
            items[key] = items[key].merged(over) if key in items else over
    if warehouse:
        items["warehouse"] = Node(warehouse, ("environments", "$TIDEMARK_WAREHOUSE"))
    defaults = items.pop("defaults", None)
    under = defaults.items if defaults is not None else {}
    listed = items.get("shards", Node((), ("shards",), tree.line, tree.column))
    if isinstance(listed.value, tuple):
        shards = [_over(node, under) for node in listed.elements]
        tables = items.get("tables")
        if tables is not None:
            items["tables"] = _with_defaults(tables, defaults)
            shards += _table_shards(tables, under)
        items["shards"] = replace(listed, value=tuple(shards))
    return tree.with_items(items)


def _over(node: Node, under: Mapping[str, Node]) -> Node:
    return node.with_items({**under, **node.items}) if isinstance(node.value, dict) else node


def _with_defaults(tables: Node, defaults: Node | None) -> Node:
    """The defaults as the first override: later overrides win."""
    overrides = tables.child("overrides")
    if defaults is None or not isinstance(defaults.value, dict) or not isinstance(tables.value, dict):
        return tables
    first = defaults.with_items({"match": Node("*", defaults.path), **defaults.items})
    place = overrides or replace(tables, path=(*tables.path, "overrides"))
    return tables.with_items({**tables.items, "overrides": replace(place, value=(first, *place.elements))})


def _table_shards(tables: Node, under: Mapping[str, Node]) -> Iterator[Node]:
    """One shard for each table that is named in full, declared, and not excluded."""
    nothing = Node(())
    include, exclude, overrides = (
        (tables.child(key) or nothing).elements for key in ("include", "exclude", "overrides")
    )
    excluded = tuple(node.value for node in exclude if isinstance(node.value, str))
    for node in include:
        table = node.value
        if not isinstance(table, str) or is_pattern(table) or matches_any(table, excluded):
            continue
        settings = dict(under)
        for override in overrides:
            match = override.child("match")
            if match is not None and isinstance(match.value, str) and matches_any(table, (match.value,)):
                settings.update({key: value for key, value in override.items.items() if key != "match"})
        if "schema" in settings and settings["schema"].value == FROM_SOURCE:
            continue  # The source describes it, like the tables of a pattern.
        settings.setdefault("name", replace(node, value=shard_name_of(table)))
        settings["route"] = replace(node, value={"table": node})
        yield replace(node, value=settings)


def _taken_twice(config: PipelineConfig, effective: Node, file: str) -> Iterator[Problem]:
    """Shards for a table that the source describes too: it would be ambiguous which settings apply."""
    for index, shard in enumerate(config.shards):
        table = shard.route.table if shard.route is not None else None
        if table is not None and config.tables is not None and config.tables.asks_source(table):
            fact = f"table {table} is taken by `tables` too, with its schema from the source"
            hint = "list it under tables.exclude, or use tables.overrides instead of this shard"
            yield problem_at(effective, ("shards", index, "route"), fact, hint, file=file)


def _policy_problems(config: PipelineConfig, effective: Node, file: str) -> Iterator[Problem]:
    """Shards with `add_columns` that could not add any. This is not a rule of the model: older versions
    accepted it, and recorded configurations with it must stay replayable."""
    for index, shard in enumerate(config.shards):
        if shard.on_schema_change == "add_columns" and not config.grows(shard):
            fact = "add_columns needs records that carry the types of new columns, or schema: from_source"
            hint = "declare new columns in the schema; to take records that lack some, use missing_as_null"
            path = ("shards", index, "on_schema_change")
            yield problem_at(effective, path, fact, hint, file=file)


def _place_problems(effective: Node, file: str, root: Path) -> Iterator[Problem]:
    """Paths that a pipeline file may not set outside `environments` (see `tidemark.config.storage`)."""
    for loc in (("source", "path"), ("warehouse",)):
        node: Node | None = effective
        for step in loc:
            node = node.child(step) if node is not None else None
        if node is None or not isinstance(node.value, str) or not node.value:
            continue
        if not is_relative(node.value) and node.path[:1] != ("environments",):
            hint = "write it relative to the project, or put it under environments"
            yield problem_at(effective, loc, f"{shown_place(node.value)} is not relative", hint, file=file)
            continue
        try:
            resolved(node.value, root=root)
        except InvalidUsage as error:
            yield problem_at(effective, loc, error.fact, error.hint, file=file)


def _limit_problems(effective: Node, file: str) -> Iterator[Problem]:
    """Limits that the source does not support. This is not a rule of the model: a recorded configuration
    has every limit written out, and ignored limits must not stop its replay."""
    source, limits = effective.child("source"), effective.child("transaction")
    kind = source.child("type") if source is not None else None
    if source is None or limits is None or kind is None:
        return
    place = source.child("path")
    if kind.value == "files" and place is not None and is_uri(str(place.value)):
        if limits.child("max_records") is not None:
            fact, hint = "max_records counts lines, which are not read in objects", "use max_bytes"
            yield problem_at(effective, ("transaction", "max_records"), fact, hint, file=file, at_key=True)
        return
    if kind.value != "kafka":
        return
    for key in ("max_files", "max_bytes"):
        if limits.child(key) is not None:
            fact = f"{key} does not limit a transaction of kafka records"
            hint = "use max_records, which counts offsets"
            yield problem_at(effective, ("transaction", key), fact, hint, file=file, at_key=True)


RECORD: Final = "tables.json"


@dataclass(frozen=True, slots=True)
class TableShape:
    """A table's columns, in types without loss, and its primary key."""

    table: str
    columns: Schema
    keys: tuple[str, ...]

    def widened(self, columns: Schema) -> TableShape:
        """The shape with the columns that it lacks added; existing rows are NULL in them."""
        return replace(self, columns=self.columns.widened(columns))


TableShapes = Mapping[str, TableShape]
"""By shard name."""


def record_file(config: PipelineConfig) -> Path:
    """The file that records the shapes of a pipeline's tables."""
    return Path(config.source_location) / RECORD


def recorded_shapes(config: PipelineConfig) -> TableShapes:
    """The recorded shapes; empty for a pipeline that declares all its schemas."""
    if not uses_source_schemas(config):
        return {}
    try:
        found = json.loads(record_file(config).read_text(encoding="utf-8"))
        return {shard: _shape(fields) for shard, fields in found.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, InvalidUsage) as error:
        raise InvariantViolation(
            f"the record of tables {record_file(config)} can't be read: {type(error).__name__}",
            hint="the file was changed by hand: restore it from a backup",
        ) from None


def shapes_text(shapes: TableShapes) -> str:
    """The shapes in the format of the record."""
    found = {
        shard: {"table": shape.table, "schema": shape.columns.ddl, "keys": shape.keys}
        for shard, shape in sorted(shapes.items())
    }
    return json.dumps(found, indent=1, ensure_ascii=False)


def uses_source_schemas(config: PipelineConfig) -> bool:
    """Whether the pipeline takes any schema from its source."""
    return config.tables is not None and config.tables.asks_for_any


def with_discovered_shards(config: PipelineConfig, shapes: TableShapes) -> PipelineConfig:
    """The configuration with one shard for each included table with a known shape, in the order of names,
    after the shards that the pipeline file declares."""
    if not uses_source_schemas(config):
        return config
    declared = [shard for shard in config.shards if not _is_described(config, shard)]
    discovered = [
        _shard(config, shapes[name]) for name in sorted(shapes) if _is_taken(config, name, shapes[name])
    ]
    with _refusals():
        return PipelineConfig.model_validate({**dict(config), "shards": (*declared, *discovered)}).at(
            config.root
        )


def _is_taken(config: PipelineConfig, shard: str, shape: TableShape) -> bool:
    asks = config.tables is not None and config.tables.asks_source(shape.table)
    return asks and config.table_settings(shape.table)["name"] == shard


def _shard(config: PipelineConfig, shape: TableShape) -> ShardConfig:
    """The shard of a described table; settings of the pipeline file override the description."""
    settings = {"keys": shape.keys, **config.table_settings(shape.table), "schema": shape.columns.ddl}
    with _refusals(f"table {shape.table}: "):
        return ShardConfig.model_validate(settings)


def _is_described(config: PipelineConfig, shard: ShardConfig) -> bool:
    table = shard.route.table if shard.route is not None else None
    return table is not None and config.tables is not None and config.tables.asks_source(table)


def _shape(fields: Mapping[str, Any]) -> TableShape:
    return TableShape(str(fields["table"]), parse_schema(fields["schema"]), tuple(fields["keys"]))


@contextmanager
def _refusals(of: str = "") -> Iterator[None]:
    try:
        yield
    except ValidationError as error:
        facts = "; ".join(str(item["msg"]) for item in error.errors(include_input=False)[:5])
        hint = "set it for this table under tables.overrides, or list the table under tables.exclude"
        raise InvalidUsage(f"{of}{facts}", hint=hint) from None


# Shards that get columns from their records.

Columns = Mapping[ShardId, Mapping[str, str]]
"""Column types as DDL, by shard and column name."""


def with_new_columns(config: PipelineConfig, columns: Columns) -> PipelineConfig:
    """The configuration with the new columns added to its growing shards. Raises `InvalidUsage` if a column
    can't be added."""
    new = {name: found for name in columns if (found := _new(config, name, columns[name]))}
    if not new:
        return config
    try:
        shards = tuple(_grown(shard, new.get(ShardId(shard.name), {})) for shard in config.shards)
        return PipelineConfig.model_validate({**dict(config), "shards": shards}).at(config.root)
    except (InvalidUsage, ValidationError) as error:
        why = error.fact if isinstance(error, InvalidUsage) else error.errors(include_input=False)[0]["msg"]
        named = "; ".join(f"{', '.join(map(repr, found))} of shard {name}" for name, found in new.items())
        raise InvalidUsage(
            f"new columns of the records can't be added, {named}: {why}",
            hint="correct the pipeline file, or rename the column at the producer",
        ) from None


def new_columns(declared: PipelineConfig, config: PipelineConfig) -> Columns:
    """The columns that the grown configuration has and the declared one lacks."""
    columns_declared = {shard.name: shard.columns for shard in declared.shards}
    found = {
        ShardId(shard.name): {
            c.name: c.type.ddl for c in shard.columns if columns_declared[shard.name].get(c.name) is None
        }
        for shard in config.shards
    }
    return {shard: columns for shard, columns in found.items() if columns}


def _new(config: PipelineConfig, name: ShardId, columns: Mapping[str, str]) -> dict[str, str]:
    """Those of the columns that a shard would add."""
    shard = next((shard for shard in config.shards if shard.name == name), None)
    if shard is None or not config.grows(shard):
        return {}
    known = {shard.error_column, *shard.columns.names}
    return {column: kind for column, kind in columns.items() if column not in known}


def _grown(shard: ShardConfig, columns: Mapping[str, str]) -> ShardConfig:
    if not columns:
        return shard
    wider = shard.columns.widened(_column(name, kind) for name, kind in columns.items())
    # The parser refuses reserved names and names that differ only in case.
    return ShardConfig.model_validate(
        {**shard.model_dump(by_alias=True), "schema": parse_schema(wider.ddl).ddl}
    )


def _column(name: str, kind: str) -> Column:
    (column,) = parse_schema(f"c {kind}").columns
    return Column(name, column.type)
