"""A data plane without an engine: real Parquet parts on a real disk, written with pyarrow instead of Spark.

It keeps the promises of the port (`tidemark.ports.planes`) on the file layout of the Spark plane, so that the
control plane under test (bindings, seals, logs, journal and checkpoints on delta-rs) is the real one while
processes stay cheap. Tables have the columns `id` and `value`. Records are lines of JSON: plain rows, or
changes as PostgreSQL's capture writes them.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tidemark.core.binding import Binding
from tidemark.core.checksum import SOURCE, Digest, Digests, shard_endpoint
from tidemark.core.ids import ShardId, Txn, WriterToken
from tidemark.core.seal import Part, ShardParts, Staged

SHARD = ShardId("points")
ENGINE = "light"
COLUMNS = pa.schema(
    [("id", pa.int64()), ("value", pa.string()), ("_txn", pa.int64()), ("_op", pa.string())]
    + [("_partition", pa.string()), ("_offset", pa.int64()), ("_ordinal", pa.int64())]
)
Row = dict[str, Any]
Decoded = tuple[str, ShardId, Row]
"""A record as it was read, the shard it belongs to, and its row with `_op`."""


def plain_records(folder: Path, file: Mapping[str, Any]) -> Iterator[Decoded]:
    """Lines of `{"id": …, "value": …}`, all of one shard; there are no deletes and no broken ones."""
    for line in (folder / file["name"]).read_text(encoding="utf-8").splitlines():
        yield line, SHARD, {**json.loads(line), "_op": "U"}


def captured_records(folder: Path, file: Mapping[str, Any]) -> Iterator[Decoded]:
    """A captured file, read as a Debezium consumer would, by `op`, `before` and `after`."""
    for line in captured_lines(folder, file, keys=("id",)):
        record = json.loads(line)
        after = record["after"]
        row = {**after, "_op": "U"} if after else {**record["before"], "value": None, "_op": "D"}
        yield line, ShardId(record["source"]["table"]), row


def captured_lines(folder: Path, file: Mapping[str, Any], *, keys: Sequence[str]) -> list[str]:
    """The records of a captured file; those of a sweep are deletions of the keys in a shard's file."""
    path = folder / file["name"]
    if "sweep" not in file:
        return unpacked(path).decode().splitlines()
    rows = pq.read_table(path, columns=list(keys)).to_pylist()
    return [f'{{"op":"d","before":{json.dumps(row, default=str)}{file["sweep"][1]}' for row in rows]


def unpacked(path: Path) -> bytes:
    """The contents of a captured file."""
    with pa.input_stream(path, compression="zstd") as stream:
        return bytes(stream.read())


def hash_of(*values: object) -> int:
    return int.from_bytes(hashlib.blake2b(repr(values).encode(), digest_size=8).digest(), "big")


def digest_of(rows: Sequence[Row]) -> Digest:
    return Digest.of(hash_of(row["id"], row["value"], row["_op"]) for row in rows)


class LightPlane:
    """The `DataPlane` port for a pipeline whose tables lie below `home` and whose files lie in `folder`.
    `staged` names every attempt that wrote parts."""

    schema = COLUMNS

    def __init__(
        self,
        home: Path,
        folder: Path,
        records: Callable[[Path, Mapping[str, Any]], Iterator[Decoded]] = plain_records,
    ) -> None:
        self._home, self._folder, self._records = home, folder, records
        self.staged: list[Txn] = []
        self.log_rows = LightMerger(home)

    def _rows(self, binding: Binding) -> tuple[Digest, Mapping[ShardId, Sequence[Row]]]:
        last: dict[tuple[ShardId, int], Row] = {}
        hashes = []
        for file in json.loads(binding.manifest)["files"]:
            for ordinal, (line, shard, row) in enumerate(self._records(self._folder, file)):
                hashes.append(hash_of(line))
                position = {"_partition": "files", "_offset": file["seq"], "_ordinal": ordinal}
                last[shard, row["id"]] = {**row, "_txn": binding.txn, **position}
        shards: dict[ShardId, list[Row]] = {}
        for (shard, _), row in sorted(last.items()):
            shards.setdefault(shard, []).append(row)
        return Digest.of(hashes), shards

    def stage(self, binding: Binding, token: WriterToken) -> Staged:
        source, found = self._rows(binding)
        self.staged.append(binding.txn)
        shards = {}
        for shard, rows in found.items():
            parts = []
            for index, piece in enumerate((rows[0::2], rows[1::2])):
                path = f"_txn-{binding.txn:020}/{token}/part-{index}.parquet"
                if piece:
                    parts.append(write_part(self._home / shard / "log", path, piece, self.schema))
            shards[shard] = ShardParts(tuple(parts), digest_of(rows))
        return Staged(binding.txn, token, source, shards, ENGINE)

    def read_back(self, staged: Staged, *, moved: Mapping[ShardId, Sequence[Part]] | None = None) -> Digests:
        found = {SOURCE: staged.source}
        for shard, added in staged.shards.items():
            log = self._home / shard / "log"
            parts = (moved or {}).get(shard, added.parts)
            rows = rows_in([log / part.path for part in parts if (log / part.path).exists()])
            # A merged file has the rows of other transactions too.
            found[shard_endpoint(shard)] = digest_of([row for row in rows if row["_txn"] == staged.txn])
        return found

    def replay(self, binding: Binding) -> Staged:
        source, found = self._rows(binding)
        shards = {
            shard: ShardParts((Part("", len(rows), 0),), digest_of(rows)) for shard, rows in found.items()
        }
        return Staged(binding.txn, WriterToken(""), source, shards, ENGINE)

    def discard(self, txn: Txn, token: WriterToken) -> None:
        for folder in self._home.glob(f"*/log/_txn-{txn:020}/{token}"):
            shutil.rmtree(folder, ignore_errors=True)

    def attempts(self) -> Sequence[tuple[Txn, WriterToken]]:
        found = set()
        for folder in self._home.glob("*/log/_txn-*"):
            txn = Txn(int(folder.name.removeprefix("_txn-")))
            with suppress(FileNotFoundError):  # Another sweep may be at it.
                found |= {(txn, WriterToken(attempt.name)) for attempt in list(folder.iterdir())}
        return sorted(found)

    def damaged(self, shard: ShardId, parts: Sequence[Part]) -> Sequence[Part]:
        return [part for part in parts if not (self._home / shard / "log" / part.path).exists()]


class LightMerger:
    """The `Merger` port with pyarrow."""

    def __init__(self, home: Path) -> None:
        self._home = home

    def merge(self, shard: ShardId, files: Sequence[Part], *, folder: str) -> tuple[Part, ...]:
        log = self._home / shard / "log"
        rows = rows_in([log / file.path for file in files])
        rows.sort(key=lambda row: (row["_txn"], row["_ordinal"]))
        return (write_part(log, f"{folder}/part-0.parquet", rows),)

    def digests_by_txn(self, shard: ShardId, parts: Sequence[Part]) -> Mapping[Txn, Digest]:
        rows = rows_in([self._home / shard / "log" / part.path for part in parts])
        txns = {row["_txn"] for row in rows}
        return {Txn(txn): digest_of([row for row in rows if row["_txn"] == txn]) for txn in txns}


def rows_in(files: Sequence[Path]) -> list[Row]:
    return [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]


def write_part(log: Path, path: str, rows: Sequence[Row], schema: pa.Schema = COLUMNS) -> Part:
    """A part with the statistics of its transactions, which merging and truncation go by."""
    file = log / path
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(list(rows), schema=schema), file)
    txns = [row["_txn"] for row in rows]
    stats = {"numRecords": len(rows), "minValues": {"_txn": min(txns)}, "maxValues": {"_txn": max(txns)}}
    return Part(path, len(rows), file.stat().st_size, json.dumps(stats))


class SyncingPlane(LightPlane):
    """The light plane with the product's own syncs of staged parts."""

    def stage(self, binding: Binding, token: WriterToken) -> Staged:
        from tidemark.spark.parts import PartStore

        staged, store = super().stage(binding, token), PartStore(str(self._home))
        shards = {
            shard: replace(added, parts=store.parts(shard, binding.txn, token))
            for shard, added in staged.shards.items()
        }
        return replace(staged, shards=shards)
