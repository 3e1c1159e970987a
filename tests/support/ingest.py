"""A small pipeline on a folder of files: write records, bind, stage, and look at what came out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from tidemark.config import PipelineConfig
from tidemark.core.binding import Binding, Configuration, Owner
from tidemark.core.ids import Frontier, ShardId, Txn, WriterToken
from tidemark.core.seal import Staged
from tidemark.sources.files.bound_files import PARTITION, BoundFile, Manifest
from tidemark.spark.plane import SparkPlane

Row = dict[str, Any]
TABLE = ShardId("t")
QUARANTINE = ShardId("quarantine")
KV: Mapping[str, Any] = {"schema": "k STRING, v STRING", "keys": ["k"], "apply_as_deletes": "v IS NULL"}


def lines_of(records: Sequence[Any]) -> list[str]:
    """Records as lines: text stays as it is, anything else becomes JSON."""
    return [
        record if isinstance(record, str) else json.dumps(record, ensure_ascii=False) for record in records
    ]


def cut(lines: Sequence[str], files: int) -> list[list[str]]:
    """The lines in order, as so many files."""
    size = -(-len(lines) // files)
    return [list(lines[start : start + size]) for start in range(0, max(len(lines), 1), size or 1)]


@dataclass
class Rig:
    """One pipeline below `root`; files are numbered from 0 in the order in which they are written."""

    spark: SparkSession
    root: Path
    config: PipelineConfig
    bound: int = 0
    txn: int = 0
    watermark: int | None = None

    @property
    def warehouse(self) -> Path:
        return self.root / "wh" / self.config.name

    def plane(self, **confs: str) -> SparkPlane:
        return SparkPlane(
            self.spark, self.config, watermark_before=lambda txn: self.watermark, confs=confs or None
        )

    def write(self, name: str, lines: Sequence[str]) -> str:
        path = self.root / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return name

    def bind(self, names: Sequence[str]) -> Binding:
        """The next transaction, of these files."""
        files = [
            BoundFile(self.bound + index, name, (self.root / "in" / name).stat().st_size, "", 0)
            for index, name in enumerate(names)
        ]
        lower, self.bound, self.txn = self.bound, self.bound + len(files), self.txn + 1
        return Binding(
            Txn(self.txn),
            Frontier.of({PARTITION: lower}),
            Frontier.of({PARTITION: self.bound}),
            Owner("run"),
            Configuration.of(self.config.canonical_json()),
            Manifest(self.config.source.format, tuple(files)).to_json(),
        )

    def bind_records(self, records: Sequence[Any], *, files: int = 1) -> Binding:
        start = self.bound
        pieces = cut(lines_of(records), files)
        suffix = self.config.source.format
        return self.bind([self.write(f"f{start + i}.{suffix}", piece) for i, piece in enumerate(pieces)])

    def stage(self, records: Sequence[Any], *, files: int = 1, token: str = "w") -> Staged:
        return self.plane().stage(self.bind_records(records, files=files), WriterToken(token))

    def rows(self, staged: Staged, shard: ShardId = TABLE) -> list[Row]:
        """The staged rows of a shard, part after part."""
        added = staged.shards.get(shard)
        if added is None:
            return []
        log = self.warehouse / shard / "log"
        return [row for part in added.parts for row in pq.read_table(log / part.path).to_pylist()]

    def files_on_disk(self) -> list[Path]:
        return sorted(path for path in self.warehouse.rglob("*") if path.is_file())


def make_rig(
    spark: SparkSession,
    root: Path,
    *shards: Mapping[str, Any],
    envelope: str = "upsert",
    file_format: str = "json",
    **settings: Any,
) -> Rig:
    """A pipeline with these shards; without any, of the table (k, v) where a NULL v deletes."""
    (root / "in").mkdir(exist_ok=True)
    named = [{"name": "t", **shard} for shard in shards or (KV,)]
    config = PipelineConfig.model_validate(
        {
            "name": "p",
            "source": {"type": "files", "path": "in", "format": file_format, **settings.pop("source", {})},
            "envelope": envelope,
            "shards": named,
            "warehouse": "wh",
            **settings,
        }
    ).at(root)
    return Rig(spark, root, config)


def state(rows: Sequence[Row], *columns: str) -> dict[Any, Any]:
    """What a reader would see of folded rows: key columns to the last column, deletes gone."""
    *keys, value = columns or ("k", "v")
    living = [row for row in rows if row["_op"] == "U"]
    return {
        (row[keys[0]] if len(keys) == 1 else tuple(row[key] for key in keys)): row[value] for row in living
    }
