"""Generations without an engine: the product's own deployments, candidates and promotions, with rows that
pyarrow reads, folds, compares and publishes.

Three shards, whose records name theirs (`kind`). A record is a delete where its value is the word in
`apply_as_deletes`, by the configuration that its binding has recorded. The parts say their rows' keys and
digests, so states are published by the product's key index, which needs no Spark.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, QueryBuilder
from pyspark.sql.types import LongType, StringType, StructField, StructType

from tests.support import light
from tests.support.light import COLUMNS, ENGINE, LightPlane, Row, digest_of, hash_of
from tidemark.app.correction import Side, TableCorrector
from tidemark.app.deployment import Deployment
from tidemark.app.generation import Generations, Pair
from tidemark.app.tasks import no_session
from tidemark.app.views import fresh_pins
from tidemark.config import PipelineConfig
from tidemark.core.binding import Binding, Configuration
from tidemark.core.checksum import Digest
from tidemark.core.generation import Candidate, Correction
from tidemark.core.ids import ShardId, Txn, WriterToken
from tidemark.core.seal import ShardParts
from tidemark.delta.state_files import DIGEST, KEY
from tidemark.spark.fold import FoldRule
from tidemark.spark.state import SparkStatePlane
from tidemark.spark.state_table import StateSpec, StateSpecs
from tidemark.spark.tables import log_files

PIPELINE = "tides"
SHARDS = (ShardId("a"), ShardId("b"), ShardId("c"))
PARTS = pa.schema([*COLUMNS, (KEY, pa.binary(16)), (DIGEST, pa.int64())])
DECLARED = StructType([StructField("id", LongType(), nullable=False), StructField("value", StringType())])
Rows = dict[int, str]


def config_at(root: Path, generation: int, words: Mapping[str, str]) -> PipelineConfig:
    """The pipeline file of a generation; `words` are the values of each shard that delete."""
    (root / "in").mkdir(parents=True, exist_ok=True)
    shards = [
        {
            "name": shard, "schema": "id BIGINT NOT NULL, value STRING", "keys": ["id"],
            "apply_as_deletes": f"value = '{words[shard]}'", "route": {"column": "kind", "equals": shard},
        }
        for shard in SHARDS
    ]  # fmt: skip
    source = {"type": "files", "path": "in", "format": "json", "settle_seconds": 0}
    settings = {"name": PIPELINE, "source": source, "warehouse": "wh", "generation": generation}
    return PipelineConfig.model_validate({**settings, "shards": shards}).at(root)


def words_of(configuration: Configuration) -> dict[str, str]:
    shards = json.loads(configuration.text)["shards"]
    return {one["name"]: re.findall("'(.*)'", one["apply_as_deletes"])[0] for one in shards}


class RulePlane(LightPlane):
    """Reads records by the rules of the configuration that their binding has recorded."""

    engine = ENGINE
    schema = PARTS

    def _rows(self, binding: Binding) -> tuple[Digest, Mapping[ShardId, Sequence[Row]]]:
        words = words_of(binding.configuration)
        hashes, shards = [], dict[ShardId, dict[int, Row]]()
        for file in json.loads(binding.manifest)["files"]:
            lines = (self._folder / file["name"]).read_text(encoding="utf-8").splitlines()
            for ordinal, line in enumerate(lines):
                hashes.append(hash_of(line))
                found = json.loads(line)
                op = "D" if found["value"] == words[found["kind"]] else "U"
                row = row_of(found["id"], found["value"] if op == "U" else None, op, binding.txn)
                row |= {"_partition": "files", "_offset": file["seq"], "_ordinal": ordinal}
                shards.setdefault(ShardId(found["kind"]), {})[found["id"]] = row
        return Digest.of(hashes), {shard: list(rows.values()) for shard, rows in sorted(shards.items())}


def row_of(key: int, value: str | None, op: str, txn: int) -> Row:
    """A row of a log's part, without a position."""
    hashed = hashlib.blake2b(str(key).encode(), digest_size=16).digest()
    digest = int.from_bytes(hash_of(key, value, op).to_bytes(8, "big"), "big", signed=True)
    return {"id": key, "value": value, "_txn": txn, "_op": op, KEY: hashed, DIGEST: digest}


class RuleStatePlane(SparkStatePlane):
    """The product's state plane, which publishes by the key index. It reads a state without Spark."""

    def __init__(self, root: str) -> None:
        specs = {
            shard: StateSpec(shard, f"{root}/{shard}", DECLARED, FoldRule(("id",), None)) for shard in SHARDS
        }
        super().__init__(no_session, StateSpecs(PIPELINE, specs))

    def spec(self, shard: ShardId) -> StateSpec:
        return self._specs.of(shard)

    def at(self, shard: ShardId, version: int) -> Rows:
        """The rows of a version."""
        return dict(self._at(shard, version))

    def _at(self, shard: ShardId, version: int) -> list[tuple[int, str]]:
        table = DeltaTable(self.spec(shard).state, version=version)
        found = QueryBuilder().register("t", table).execute('SELECT "id", "value" FROM t').read_all()
        return [(row["id"], row["value"]) for row in pa.table(found).to_pylist()]

    def digest(self, shard: ShardId, version: int) -> Digest:
        return digest_of([row_of(key, value, "U", 0) for key, value in self._at(shard, version)])

    def repeated(self, shard: ShardId, version: int) -> int:
        keys = [key for key, _ in self._at(shard, version)]
        return len(keys) - len(set(keys))

    def rows(self, side: Side) -> Rows:
        """A shard's rows at pinned versions: the state's, and the log's tail over them."""
        base, spec = side.pins.base, side.spec
        lower = base.txn + 1 if base is not None else 1
        found = dict(self._at(ShardId(spec.name), base.version)) if base is not None else {}
        files = log_files(spec, lower=lower, upper=side.pins.upper, version=side.pins.log_version)
        tail = [
            row
            for file in files
            for row in pq.ParquetFile(f"{spec.log}/{file.part.path}").read().to_pylist()
            if lower <= row["_txn"] < side.pins.upper
        ]
        for row in sorted(tail, key=lambda row: row["_txn"]):
            found.pop(row["id"], None)
            if row["_op"] == "U":
                found[row["id"]] = row["value"]
        return found


def without_spark(deployment: Deployment) -> Deployment:
    """The same deployment with planes that need no engine."""
    plane = RulePlane(Path(deployment.root), Path(deployment.config.source_location))
    state = RuleStatePlane(deployment.root)
    deployment.plane = lambda: plane  # type: ignore[method-assign, assignment, return-value]
    deployment.state = lambda: state  # type: ignore[method-assign]
    return deployment


def opened(config: PipelineConfig) -> Deployment:
    """A process of its own: nothing but the folder is shared with the last one."""
    return without_spark(Deployment(config, no_session))


def fresh(deployment: Deployment, shard: ShardId, *, as_of: int) -> Rows:
    """What the fresh view shows of a shard."""
    state: Any = deployment.state()
    spec = state.spec(shard)
    return dict(state.rows(Side(spec, fresh_pins(deployment, spec, as_of=Txn(as_of)))))


class RuleCorrector(TableCorrector):
    """The product's corrector, which compares rows without Spark."""

    @property
    def engine(self) -> str:
        return ENGINE

    @cached_property
    def _specs(self) -> Any:
        return tuple(StateSpecs(PIPELINE, one.state()._specs.shards) for one in (self._target, self._shadow))

    def correct(
        self,
        shards: Sequence[ShardId],
        *,
        txn: Txn,
        token: WriterToken,
        watermark: int | None,
        replaced: Collection[ShardId] = (),
    ) -> Mapping[ShardId, Correction]:
        return {shard: self._corrected(shard, txn, token, is_new=shard in replaced) for shard in shards}

    def _corrected(self, shard: ShardId, txn: Txn, token: WriterToken, *, is_new: bool) -> Correction:
        before = fresh(self._target, shard, as_of=txn - 1) if not is_new else {}
        after = fresh(self._shadow, shard, as_of=txn - 1)
        changed = {key: value for key, value in after.items() if before.get(key) != value}
        gone = sorted(before.keys() - after.keys())
        rows = [row_of(key, value, "U", txn) for key, value in sorted(changed.items())]
        rows += [row_of(key, None, "D", txn) for key in gone]
        if not rows:
            return Correction()
        log = Path(self._target.shard_uri(shard)) / "log"
        part = light.write_part(log, f"_txn-{txn:020}/{token}/part-0.parquet", rows, PARTS)
        parts = ShardParts((part,), digest_of(rows), deletes=len(gone))
        return Correction(parts, len(changed), len(gone))


class RulePair(Pair):
    """The product's pair, both of whose deployments need no engine."""

    def _opened(self, config: PipelineConfig, **known: Any) -> Deployment:
        return without_spark(super()._opened(config, **known))

    @property
    def _corrector(self) -> TableCorrector:
        return RuleCorrector(self.target, self.shadow, before=self.deployment.declared)


class RuleGenerations(Generations):
    def pair(self, candidate: Candidate) -> RulePair:
        return RulePair(self.deployment, candidate)
