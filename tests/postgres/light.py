"""A data plane without an engine for captured changes: real Parquet parts, so that processes can be cheap.

It keeps the port's promises (`tidemark.ports.plane`) on the file layout of the Spark plane. Tables have the
columns `id` and `value`; records are read as a Debezium consumer would, by `op`, `before` and `after`.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tidemark.core.binding import Binding
from tidemark.core.checksum import SOURCE, Digest, Digests, shard_endpoint
from tidemark.core.ids import ShardId, Txn, WriterToken
from tidemark.core.seal import Part, ShardParts, Staged

ENGINE = "light"
COLUMNS = pa.schema(
    [("id", pa.int64()), ("value", pa.string()), ("_txn", pa.int64()), ("_op", pa.string())]
    + [("_partition", pa.string()), ("_offset", pa.int64()), ("_ordinal", pa.int64())]
)
Rows = Mapping[str, Sequence[dict[str, Any]]]


def unpacked(path: Path) -> bytes:
    """What is in a captured file."""
    with pa.input_stream(path, compression="zstd") as stream:
        return bytes(stream.read())


def hash_of(*values: object) -> int:
    return int.from_bytes(hashlib.blake2b(repr(values).encode(), digest_size=8).digest(), "big")


def digest_of(rows: Sequence[dict[str, Any]]) -> Digest:
    return Digest.of(hash_of(row["id"], row["value"], row["_op"]) for row in rows)


class LightPlane:
    """The `DataPlane` port for a pipeline whose folder is `home`."""

    def __init__(self, home: Path, folder: Path) -> None:
        self._home, self._folder = home, folder

    def _rows(self, binding: Binding) -> tuple[Digest, Rows]:
        last: dict[tuple[str, int], dict[str, Any]] = {}
        hashes = []
        for file in json.loads(binding.manifest)["files"]:
            lines = unpacked(self._folder / file["name"]).splitlines()
            hashes += [hash_of(line) for line in lines]
            for ordinal, line in enumerate(lines):
                record = json.loads(line)
                row = record["after"] or {**record["before"], "value": None}
                op = "U" if record["after"] else "D"
                position = {"_partition": "files", "_offset": file["seq"], "_ordinal": ordinal}
                key = (record["source"]["table"], row["id"])
                last[key] = {**row, "_txn": binding.txn, "_op": op, **position}
        tables: dict[str, list[dict[str, Any]]] = {}
        for (table, _), row in sorted(last.items()):
            tables.setdefault(table, []).append(row)
        return Digest.of(hashes), tables

    def stage(self, binding: Binding, token: WriterToken) -> Staged:
        source, tables = self._rows(binding)
        shards = {}
        for table, rows in tables.items():
            path = f"_txn-{binding.txn:020}/{token}/part-0.parquet"
            file = self._home / table / "log" / path
            file.parent.mkdir(parents=True)
            pq.write_table(pa.Table.from_pylist(list(rows), schema=COLUMNS), file)
            part = Part(path, len(rows), file.stat().st_size)
            shards[ShardId(table)] = ShardParts((part,), digest_of(rows))
        return Staged(binding.txn, token, source, shards, ENGINE)

    def read_back(self, staged: Staged, **_: object) -> Digests:
        found = {SOURCE: staged.source}
        for shard, added in staged.shards.items():
            files = [self._home / shard / "log" / part.path for part in added.parts]
            rows = [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]
            found[shard_endpoint(shard)] = digest_of(rows)
        return found

    def replay(self, binding: Binding) -> Staged:
        source, tables = self._rows(binding)
        shards = {
            ShardId(table): ShardParts((Part("", len(rows), 0),), digest_of(rows))
            for table, rows in tables.items()
        }
        return Staged(binding.txn, WriterToken(""), source, shards, ENGINE)

    def discard(self, txn: Txn, token: WriterToken) -> None:
        for folder in self._home.glob(f"*/log/_txn-{txn:020}/{token}"):
            shutil.rmtree(folder, ignore_errors=True)

    def attempts(self) -> Sequence[tuple[Txn, WriterToken]]:
        return ()
