"""What a shard's state is: where it lies, its columns and keys, and what its table may do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from tidemark.config import PipelineConfig
from tidemark.config.shard import ShardConfig
from tidemark.core.errors import InvalidUsage
from tidemark.core.ids import ShardId
from tidemark.delta.state_files import DIGEST, KEY
from tidemark.spark.digest import key_hash_sql, row_hash_sql
from tidemark.spark.documents import declared_schema
from tidemark.spark.fold import OP, UPSERT, FoldRule, lateness_number, log_hashed, quoted


@dataclass(frozen=True, slots=True)
class StateSpec:
    """A shard, as far as its state goes. `uri` is the shard's folder; `lateness` is in the unit of
    `fold.sequence_number_sql`. A shard without keys is append-only: its state is its log's rows."""

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
        """The hash of a state's row: that of the log's row that it came with."""
        return F.expr(row_hash_sql(log_hashed(self.declared), given={OP: f"'{UPSERT}'"}))

    @property
    def key_hash(self) -> list[Column]:
        """The hash of a row's key, for files; none where there are no keys."""
        return [F.expr(key_hash_sql(self.keys)).alias(KEY)] if self.rule.keys else []

    @property
    def beside(self) -> list[Column]:
        """What stands beside the rows in a state's files."""
        return [*self.key_hash, self.row_hash.alias(DIGEST)]

    def same_key(self, left: str, right: str) -> str:
        """Whether the rows of two aliases have one key, as SQL text."""
        return self.equal(
            {key: (f"{left}.{quoted(key)}", f"{right}.{quoted(key)}") for key in self.rule.keys}
        )

    def equal(self, keys: Mapping[str, tuple[str, str]]) -> str:
        """Whether two keys are equal, part by part, a NULL to a NULL. What can't be NULL is compared as it
        is: Spark looks plain numbers up much faster."""
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
    """What a pipeline's file says of its states."""
    return StateSpecs(
        config.name,
        {
            ShardId(shard.name): spec_of(
                shard,
                f"{config.warehouse_location}/{config.name}/{shard.name}",
                config.envelope,
                history_days=config.retention.state_history_days,
            )
            for shard in config.shards
        },
    )


def spec_of(shard: ShardConfig, uri: str, envelope: str, *, history_days: int = 7) -> StateSpec:
    """One shard's state. The append envelope has no keys: every record is a row."""
    declared = declared_schema(shard)
    lateness = shard.lateness
    if shard.sequence_by is not None and lateness is not None:
        lateness = lateness_number(lateness, declared[shard.sequence_by].dataType)
    return StateSpec(
        name=shard.name,
        uri=uri,
        declared=declared,
        rule=FoldRule(() if envelope == "append" else tuple(shard.keys), shard.sequence_by),
        lateness=lateness,
        change_data_feed=shard.change_data_feed,
        deletion_vectors=shard.deletion_vectors,
        history_days=history_days,
    )
