"""The effective configuration of a pipeline: its file with defaults and environment applied.

A `PipelineConfig` is always valid: every rule is checked when it is made, from a file or from the copy that
a binding recorded. `canonical_json` is that copy: stable, complete and without secrets. Relative paths stay
as written, so moving a project does not change its fingerprint.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, PrivateAttr, ValidationError, model_validator

from tidemark.config.base import Model, ModelCache, PipelineName, Schedule, checked
from tidemark.config.paths import WAREHOUSE, checked_path, default_root, resolved
from tidemark.config.problems import raise_flaws
from tidemark.config.rules import pipeline_flaws
from tidemark.config.shard import ShardConfig
from tidemark.config.source import Debezium, PostgresSource, SourceConfig
from tidemark.config.tables import Tables, shard_name_of
from tidemark.core.errors import InvalidUsage
from tidemark.core.ids import ShardId
from tidemark.core.shape import Shape
from tidemark.core.status import BEHIND, CANDIDATE, QUARANTINE, REPLAYABLE, STALLED, WAL, Limits, limit


def _limit(kind: str) -> Callable[[str], str]:
    def check(value: str) -> str:
        limit(kind, value)
        return value

    return checked(check)


class Alarms(Model):
    """The limits of alarms as written: durations, a size, a share of records; null disables an alarm."""

    stalled: Annotated[str, AfterValidator(_limit(STALLED))] = "15m"
    behind: Annotated[str, AfterValidator(_limit(BEHIND))] | None = "2d"
    wal: Annotated[str, AfterValidator(_limit(WAL))] | None = "10GB"
    replayable: Annotated[str, AfterValidator(_limit(REPLAYABLE))] | None = "2d"
    quarantine: Annotated[str, AfterValidator(_limit(QUARANTINE))] | None = "5%"
    candidate: Annotated[str, AfterValidator(_limit(CANDIDATE))] | None = "2d"

    @property
    def limits(self) -> Limits:
        given: dict[str, Any] = {}
        for kind in type(self).model_fields:
            value = getattr(self, kind)
            given |= limit(kind, value) if value is not None else {}
        return Limits(**given)


CAPTURED = "_captured"
"""The folder for changes that the source can't send again; no shard can have this name."""

SHADOWS = "_generations"
"""The folder of the shadow folders of candidate generations."""

Days = Annotated[int, Field(ge=1, le=36_500)]
Count = Annotated[int, Field(ge=1, le=2**53)]


class Transaction(Model):
    """Limits for the size of a transaction; a single file above them is a transaction of its own."""

    max_records: Count | None = None
    max_files: Count = 10_000
    max_bytes: Count = 4 * 1024**3


class Retention(Model):
    """Retention in days; None keeps everything. Leases and the published txn are always respected."""

    log_days: Days | None = None
    quarantine_days: Days | None = None
    state_history_days: Days = 7
    data_docs_days: Days | None = 90


class _Lookup(ModelCache):
    """Indexes of shards by name, and of the first shard by table."""

    def __init__(self, shards: tuple[ShardConfig, ...]) -> None:
        self.shards = shards
        self.names = {shard.name: at for at, shard in enumerate(shards)}
        self.tables: dict[str, int] = {}
        for at, shard in enumerate(shards):
            if shard.route is not None and shard.route.table is not None:
                self.tables.setdefault(shard.route.table, at)


class PipelineConfig(Model):
    """One pipeline. Made by `load_pipeline`, or by `from_canonical_json` for a replay."""

    name: PipelineName
    schedule: Schedule = None
    source: SourceConfig
    envelope: Literal["upsert", "debezium", "append"] = "upsert"
    debezium: Debezium | None = None
    shards: tuple[ShardConfig, ...] = ()
    tables: Tables | None = None
    transaction: Transaction = Field(default_factory=Transaction)
    retention: Retention = Field(default_factory=Retention)
    alarms: Alarms = Field(default_factory=Alarms)
    on_red: Literal["ask", "fail"] = "fail"
    warehouse: Annotated[str, AfterValidator(checked(checked_path))] = WAREHOUSE
    generation: Annotated[int, Field(ge=0, le=2**31)] = 0

    _root: Path = PrivateAttr(default_factory=default_root)
    _shadow: str = PrivateAttr("")
    _lookup: _Lookup | None = PrivateAttr(None)

    @model_validator(mode="after")
    def _rules(self) -> Self:
        raise_flaws(pipeline_flaws(self))
        return self

    @property
    def root(self) -> Path:
        """The folder that contains all relative paths."""
        return self._root

    @property
    def warehouse_location(self) -> str:
        """The warehouse as an absolute path or a URI, checked on every access."""
        return resolved(self.warehouse, root=self._root)

    @property
    def tables_warehouse(self) -> str:
        """Where the folder of the pipeline's tables is: in the warehouse or, for a candidate generation, in
        its shadow folder."""
        place = self.warehouse_location
        return f"{place}/{self.name}/{SHADOWS}/{self._shadow}" if self._shadow else place

    @property
    def is_shadow(self) -> bool:
        """Whether this is the configuration of a candidate generation."""
        return bool(self._shadow)

    def shadowed(self, folder: str) -> Self:
        """The same configuration with its tables in a shadow folder; its source stays where it is."""
        copy = self.model_copy()
        copy._shadow = folder
        return copy

    @property
    def source_location(self) -> str:
        """The location of the source's records; for files an absolute path, checked on every access."""
        if isinstance(self.source, PostgresSource):
            return f"{self.warehouse_location}/{self.name}/{CAPTURED}"
        return self.source.located(self._root)

    def at(self, root: Path) -> Self:
        """The same configuration with another root."""
        copy = self.model_copy()
        copy._root = root
        return copy

    def setting_aside(self) -> Self:
        """The same configuration, with `quarantine` in place of `fail` for each expectation that single rows
        break; itself if there is none."""
        shards = tuple(shard.setting_aside() for shard in self.shards)
        return self if shards == self.shards else self.model_copy(update={"shards": shards})

    @property
    def records_are_typed(self) -> bool:
        """Whether records may have the types of their columns. For a database the answer is no: it is
        queried itself (`discovered_tables`)."""
        if isinstance(self.source, PostgresSource):
            return False
        return self.source.format in ("parquet", "avro") or (
            self.source.format == "json" and self.envelope == "debezium"
        )

    def grows(self, shard: ShardConfig) -> bool:
        """Whether the shard gets the columns that are new in its records."""
        return shard.on_schema_change == "add_columns" and self.records_are_typed

    @property
    def shapes(self) -> dict[ShardId, Shape]:
        """The shape of each shard: the columns of its log, and how its rows are folded."""
        return {ShardId(shard.name): self._shape(shard) for shard in self.shards}

    def _shape(self, shard: ShardConfig) -> Shape:
        columns = {column.name: column.type.ddl for column in shard.columns}
        if shard.error_column is not None:
            columns[shard.error_column] = "STRING"
        keys = () if self.envelope == "append" else shard.keys
        not_null = frozenset(column.name for column in shard.columns if not column.nullable) & {*keys}
        return Shape(columns, keys, shard.sequence_by or "", not_null, self.grows(shard))

    @property
    def _looked_up(self) -> _Lookup:
        """The lookup for the current shards; a model copy with other shards inherits an outdated one."""
        if self._lookup is None or self._lookup.shards is not self.shards:
            self._lookup = _Lookup(self.shards)
        return self._lookup

    def shard(self, name: str) -> ShardConfig:
        """The shard with this name. Raises `InvalidUsage` if there is none."""
        found = self._looked_up.names.get(name)
        if found is not None:
            return self.shards[found]
        known = ", ".join(shard.name for shard in self.shards)
        raise InvalidUsage(f"pipeline {self.name!r} has no shard {name!r}", hint=f"it has {known}")

    @property
    def only_shard(self) -> ShardConfig:
        """The only shard. Raises `InvalidUsage` if there are several."""
        if len(self.shards) == 1:
            return self.shards[0]
        known = ", ".join(shard.name for shard in self.shards) or "those of its tables"
        raise InvalidUsage(f"pipeline {self.name!r} has several shards", hint=f"choose one: {known}")

    def shard_for_table(self, table: str) -> ShardConfig | None:
        """The shard of a table's records; None if the table is not included, or if only its source can
        describe it."""
        tables = self._looked_up.tables
        found = [tables[name] for name in (table, table.rpartition(".")[2]) if name in tables]
        if found:
            return self.shards[min(found)]
        if self.tables is None or not self.tables.takes(table) or self.tables.asks_source(table):
            return None
        return ShardConfig.model_validate(self.table_settings(table))

    def table_settings(self, table: str) -> dict[str, Any]:
        """The settings for the shard of an included table, as in a pipeline file."""
        given = self.tables.settings_of(table) if self.tables is not None else {}
        return {"name": shard_name_of(table), "route": {"table": table}, **given}

    def canonical_json(self) -> str:
        """The effective configuration as text: equal texts are equal configurations. Alarms and `on_red` do
        not affect rows, so they are left out."""
        return json.dumps(
            self.model_dump(mode="json", by_alias=True, exclude={"alarms", "on_red"}),
            sort_keys=True,
            separators=(",", ":"),
            ensure_ascii=False,
        )

    @classmethod
    def from_canonical_json(cls, text: str, *, root: Path | None = None) -> Self:
        """The configuration that a binding recorded, checked like a new one."""
        try:
            config = cls.model_validate_json(text)
        except ValidationError as error:
            facts = "; ".join(str(item["msg"]) for item in error.errors(include_input=False)[:5])
            raise InvalidUsage(
                f"the recorded configuration can't be used: {facts}",
                hint="it was recorded by another version of tidemark; use that version for the replay",
            ) from None
        return config.at(root) if root is not None else config
