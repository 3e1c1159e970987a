"""A shard's state table: its location, columns and keys, its protocol and properties, and its next version.

Spark writes the files of a table's next version, and Python commits them (`delta.state`). The files are
plain Parquet files in a folder per attempt, whose name has the version that they are for: they become part
of that version or of none (`delta.vacuum`). A failed commit removes its files, unless its outcome is
unknown.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from tidemark.config import PipelineConfig
from tidemark.config.shard import ShardConfig
from tidemark.core.errors import Indeterminate, InvalidUsage
from tidemark.core.ids import ShardId
from tidemark.core.ledger import CommitOutcome, Conflict
from tidemark.core.publish import VERSION_NONE
from tidemark.delta.commit import file_folder
from tidemark.delta.deletion_vectors import Rows
from tidemark.delta.head import TableHead
from tidemark.delta.protocol import FEED, VECTORS, metadata_action, protocol_action, widened_protocol
from tidemark.delta.state import Change, NewFile, StateTable
from tidemark.delta.state_files import DIGEST, KEY, described, write_rows
from tidemark.delta.store import Store
from tidemark.delta.vacuum import retention_properties
from tidemark.spark.columns import OP, UPSERT, log_hashed, quoted
from tidemark.spark.digest import key_hash_sql, row_hash_sql
from tidemark.spark.documents import declared_schema
from tidemark.spark.fold import WRITE_OPTIONS, FoldRule


@dataclass(frozen=True, slots=True)
class StateSpec:
    """The state of a shard. `uri` is the shard's folder; `lateness` is in the unit of
    the watermark. A shard without keys is append-only: its state has all rows of its log."""

    name: str
    uri: str
    declared: StructType
    rule: FoldRule
    lateness: int | None = None
    change_data_feed: bool = False
    deletion_vectors: bool = True
    history_days: int = 7
    storage_options: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def log(self) -> str:
        return f"{self.uri}/log"

    @property
    def state(self) -> str:
        return f"{self.uri}/state"

    @property
    def tombstones(self) -> str:
        return f"{self.uri}/tombstones"

    @property
    def columns(self) -> list[Column]:
        return [F.col(quoted(name)) for name in self.declared.names]

    @property
    def keys(self) -> StructType:
        return StructType([self.declared[key] for key in self.rule.keys])

    @property
    def row_hash(self) -> Column:
        """The hash of a state's row, equal to the hash of its row in the log."""
        return F.expr(row_hash_sql(log_hashed(self.declared), given={OP: f"'{UPSERT}'"}))

    @property
    def key_hash(self) -> list[Column]:
        """The hash of a row's key, for files; empty without keys."""
        return [F.expr(key_hash_sql(self.keys)).alias(KEY)] if self.rule.keys else []

    @property
    def beside(self) -> list[Column]:
        """The hash columns that a state's files have beside the rows."""
        return [*self.key_hash, self.row_hash.alias(DIGEST)]

    def same_key(self, left: str, right: str) -> str:
        """SQL for whether the rows of two aliases have the same key."""
        return self.equal(
            {key: (f"{left}.{quoted(key)}", f"{right}.{quoted(key)}") for key in self.rule.keys}
        )

    def equal(self, keys: Mapping[str, tuple[str, str]]) -> str:
        """SQL for whether two keys are equal, part by part, null-safe. Parts that can't be NULL are
        compared with `=`, because Spark's lookup of plain numbers is much faster."""
        equals = {field.name: "<=>" if field.nullable else "=" for field in self.declared.fields}
        return " AND ".join(f"{one} {equals[key]} {other}" for key, (one, other) in keys.items())


@dataclass(frozen=True, slots=True)
class StateSpecs:
    """The shards of one pipeline that have a state."""

    pipeline: str
    shards: Mapping[ShardId, StateSpec]

    def of(self, shard: ShardId) -> StateSpec:
        if shard not in self.shards:
            known = ", ".join(sorted(self.shards))
            raise InvalidUsage(f"pipeline {self.pipeline!r} has no state {shard!r}", hint=f"it has {known}")
        return self.shards[shard]


def specs_of(config: PipelineConfig) -> StateSpecs:
    """The states that a pipeline file declares."""
    return StateSpecs(
        config.name,
        {
            ShardId(shard.name): spec_of(
                shard,
                f"{config.tables_warehouse}/{config.name}/{shard.name}",
                config.envelope,
                history_days=config.retention.state_history_days,
            )
            for shard in config.shards
        },
    )


def spec_of(shard: ShardConfig, uri: str, envelope: str, *, history_days: int = 7) -> StateSpec:
    """One shard's state. The append envelope has no keys: every record is a row."""
    declared = declared_schema(shard)
    return StateSpec(
        name=shard.name,
        uri=uri,
        declared=declared,
        rule=FoldRule(() if envelope == "append" else tuple(shard.keys), shard.sequence_by),
        lateness=shard.lateness_number,
        change_data_feed=shard.change_data_feed,
        deletion_vectors=shard.deletion_vectors,
        history_days=history_days,
    )


def state_properties(spec: StateSpec) -> dict[str, str]:
    """The properties of a new state. None of them makes application transactions expire."""
    return {
        VECTORS: str(spec.deletion_vectors).lower(),
        FEED: str(spec.change_data_feed).lower(),
        **retention_of(spec),
    }


def retention_of(spec: StateSpec) -> dict[str, str]:
    """The retention of a shard's tables for files and versions that the newest version doesn't need."""
    return retention_properties(spec.history_days)


def description(
    head: TableHead, columns: StructType, properties: Mapping[str, str], *, afresh: bool = False
) -> dict[str, Any]:
    """The protocol and metadata that a commit on a head must include: those of a new table, or those with
    new columns; empty if the table has all columns. `afresh`, the table gets exactly these columns. An
    existing table keeps its properties."""
    declared: list[dict[str, Any]] = json.loads(columns.json())["fields"]
    if head.version == VERSION_NONE:
        schema = _schema(declared)
        return {
            "protocol": protocol_action(configuration=properties, schema=schema),
            "metadata": metadata_action(
                table_id=str(uuid.uuid4()),
                schema=schema,
                configuration=properties,
                at_ms=time.time_ns() // 1_000_000,
            ),
        }
    there: list[dict[str, Any]] = json.loads(head.metadata["schemaString"])["fields"]
    names = {field["name"] for field in there}
    lacking = [field for field in declared if field["name"] not in names]
    fields = list(map(_nullable, declared if afresh else lacking))
    if not fields or (afresh and fields == there):
        return {}
    schema = json.dumps({"type": "struct", "fields": fields if afresh else [*there, *fields]})
    needed = protocol_action(configuration=head.configuration, schema=schema)
    return {
        "protocol": widened_protocol(head.protocol, needed),
        "metadata": {**head.metadata, "schemaString": schema},
    }


def _schema(fields: list[dict[str, Any]]) -> str:
    return json.dumps({"type": "struct", "fields": [_nullable(field) for field in fields]})


def _nullable(kind: Any) -> Any:
    """A type in which every value may be NULL, as Delta's own writer creates tables."""
    if not isinstance(kind, dict):
        return kind
    free = {"nullable": True, "containsNull": True, "valueContainsNull": True}
    return {
        name: free.get(name, [_nullable(one) for one in value] if name == "fields" else _nullable(value))
        for name, value in kind.items()
    }


class NextVersion:
    """The version after a table's newest one: its files, and the one attempt to commit them."""

    def __init__(
        self, uri: str, storage_options: Mapping[str, str], *, table: StateTable | None = None
    ) -> None:
        self._options = storage_options
        self._table = table or StateTable(uri, storage_options=storage_options)
        self.head = self._table.head()
        self._new: list[NewFile] = []

    @property
    def store(self) -> Store:
        return self._table.store

    def hidden(self, paths: Iterable[str]) -> dict[str, Rows]:
        """The rows that deletion vectors hide in these files."""
        return self._table.hidden(self.head, paths)

    def write(self, rows: DataFrame, *, within: str = "") -> list[NewFile]:
        """Write rows with Spark. Returns the files that have rows."""
        folder = within + file_folder(self.head.version + 1, uuid4())
        rows.write.options(**WRITE_OPTIONS).mode("error").parquet(f"{self.store.uri}/{folder}")
        found = described(self.store, folder)
        self._new += found
        return found

    def put(self, rows: pa.Table) -> list[NewFile]:
        """Write rows without Spark. Returns no file if there are no rows."""
        if not rows.num_rows:
            return []
        found = write_rows(self.store, rows, version=self.head.version + 1, nonce=uuid4())
        self._new.append(found)
        return [found]

    def commit(self, operation: str, rows_after: int, **change: Any) -> CommitOutcome:
        """Commit the version if the table is still at the head; else remove its files and return
        `Conflict`."""
        made = Change(operation, rows_after, **change)
        try:
            outcome = self._table.commit(self.head, made)
        except Indeterminate:
            # The commit may have succeeded, or may still succeed: it needs its files.
            raise
        except Exception:
            self.forget()
            raise
        if isinstance(outcome, Conflict):
            self.forget()
        return outcome

    def forget(self) -> None:
        """Remove the files of a version that will not be committed."""
        for file in self._new:
            self.store.delete(file.path)
