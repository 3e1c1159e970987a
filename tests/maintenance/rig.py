"""A pipeline whose control plane, log and files are real, and whose rows are written with pyarrow.

So maintenance can be killed, raced and repeated many times without a JVM; what is about Spark is tested with
Spark. Each file of the source is one transaction; what the log must have is worked out from the files.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.crash.light import SHARD, LightPlane, digest_of
from tests.crash.race import config_at, write_round
from tests.crash.recompute import rows_of
from tidemark.assemble import Deployment, new_token
from tidemark.core.binding import Configuration, Owner
from tidemark.core.checksum import Digest
from tidemark.core.ids import ShardId, Txn, WriterToken
from tidemark.core.publish import StateCommit
from tidemark.core.seal import Part
from tidemark.pipeline.context import Attempt, Pipeline
from tidemark.pipeline.publish import put_record
from tidemark.pipeline.run import run
from tidemark.upkeep import Terms

ROW = ("id", "value", "_txn", "_offset", "_ordinal")
Row = tuple[Any, ...]


class LightMerger:
    """The `Merger` port with pyarrow."""

    def __init__(self, log: Path) -> None:
        self._log = log

    def merge(self, shard: ShardId, files: Sequence[Part], *, folder: str) -> tuple[Part, ...]:
        tables = [pq.ParquetFile(self._log / file.path).read() for file in files]
        rows = pa.concat_tables(tables).sort_by([("_txn", "ascending"), ("_ordinal", "ascending")])
        (self._log / folder).mkdir(parents=True)
        path = f"{folder}/part-0.parquet"
        pq.write_table(rows, self._log / path)
        txns = rows["_txn"].to_pylist()
        stats = {"numRecords": len(txns), "minValues": {"_txn": txns[0]}, "maxValues": {"_txn": txns[-1]}}
        return (Part(path, len(txns), (self._log / path).stat().st_size, json.dumps(stats)),)

    def digests_by_txn(self, shard: ShardId, parts: Sequence[Part]) -> Mapping[Txn, Digest]:
        rows = [row for part in parts for row in pq.ParquetFile(self._log / part.path).read().to_pylist()]
        txns = {row["_txn"] for row in rows}
        return {Txn(txn): digest_of([row for row in rows if row["_txn"] == txn]) for txn in txns}


class KeptPlane(LightPlane):
    """The light plane, which also reads what was merged."""

    def __init__(self, home: Path, folder: Path) -> None:
        super().__init__(home, folder)
        self.kept = LightMerger(home / SHARD / "log")

    def damaged(self, shard: ShardId, parts: Sequence[Part]) -> Sequence[Part]:
        return [part for part in parts if not (self._log / part.path).exists()]

    def read_back(self, staged: Any, *, moved: Any = None) -> Any:
        from tidemark.core.checksum import SOURCE, shard_endpoint

        if SHARD not in staged.shards:
            return {SOURCE: staged.source}
        parts = (moved or {}).get(SHARD, staged.shards[SHARD].parts)
        there = [self._log / part.path for part in parts if (self._log / part.path).exists()]
        rows = [row for path in there for row in pq.ParquetFile(path).read().to_pylist()]
        kept = [row for row in rows if row["_txn"] == staged.txn]
        return {SOURCE: staged.source, shard_endpoint(SHARD): digest_of(kept)}


class LightDeployment(Deployment):
    """A deployment that never starts Spark."""

    def __init__(self, root: Path) -> None:
        super().__init__(config_at(root), self._no_session)
        self.light = KeptPlane(Path(self.root), Path(self.config.source_location))
        self.pipeline = Pipeline(
            control=self.control,
            source=self.pipeline.source,
            plane=self.light,
            configuration=Configuration.of(self.config.canonical_json()),
        )

    def plane(self) -> Any:
        return self.light

    @staticmethod
    def _no_session() -> Any:
        raise AssertionError("this needs no Spark")


def feed(root: Path, *, first: int, files: int) -> None:
    """Files land and are taken in, each by a run of its own."""
    deployment = LightDeployment(root)
    for number in range(first, first + files):
        write_round(root, number)
        run(deployment.pipeline, Attempt(Owner(f"run-{number}"), new_token()))


def published(deployment: LightDeployment, txn: int) -> None:
    """Say that the state has everything up to a transaction."""
    commit = StateCommit(Txn(txn), WriterToken(f"publisher-{txn}"), Digest())
    put_record(deployment.control, SHARD, version=txn, commit=commit)


def terms(*, window: int = 1, kept_ms: int = 0, now_ms: int = 10**15) -> Terms:
    """Maintenance at a time when everything is long ago, unless `kept_ms` says otherwise."""
    return Terms(now_ms, Txn(window), Txn(window), kept_ms)


def log_folder(root: Path) -> Path:
    return root / "wh" / "race" / SHARD / "log"


def log_rows(root: Path, *, since: int = 1) -> Counter[Row]:
    """What a reader of the log sees from a transaction on, read with delta-rs's own query engine."""
    return Counter(row for row in rows_of(log_folder(root), ROW) if row[2] >= since)


def wanted_rows(root: Path, *, since: int = 1) -> Counter[Row]:
    """What it must see: per file the last line of each key, by hand."""
    wanted: Counter[Row] = Counter()
    for number, path in enumerate(sorted((root / "in").glob("*.json"))):
        records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        folded = {record["id"]: (record["value"], n) for n, record in enumerate(records)}
        if number + 1 >= since:
            wanted.update((key, value, number + 1, number, n) for key, (value, n) in folded.items())
    return wanted


def files_on_disk(root: Path) -> dict[str, int]:
    """The log's data files with their sizes."""
    log = log_folder(root)
    return {str(p.relative_to(log)): p.stat().st_size for p in log.glob("_txn*/*/*") if p.is_file()}
