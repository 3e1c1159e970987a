"""A light data plane for the race: real Parquet parts on a real disk, written with pyarrow instead of Spark.

It keeps the port's promises (`tidemark.ports.plane`) on the same file layout as the Spark plane, so the
control plane that is raced for (bindings, seals, logs, journal, checkpoints on delta-rs) is the real one.
Records are lines of `{"id": …, "value": …}`; there are no deletes and no broken ones.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

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


def hash_of(*values: object) -> int:
    return int.from_bytes(hashlib.blake2b(repr(values).encode(), digest_size=8).digest(), "big")


class LightPlane:
    """The `DataPlane` port without an engine. `staged` names every attempt that wrote parts."""

    def __init__(self, home: Path, folder: Path) -> None:
        self._log = home / SHARD / "log"
        self._folder = folder
        self.staged: list[Txn] = []

    def _rows(self, binding: Binding) -> tuple[Digest, list[dict[str, object]]]:
        last: dict[int, dict[str, object]] = {}
        hashes = []
        for file in json.loads(binding.manifest)["files"]:
            lines = (self._folder / file["name"]).read_text(encoding="utf-8").splitlines()
            hashes += [hash_of(line) for line in lines]
            for ordinal, line in enumerate(lines):
                record = json.loads(line)
                position = {"_partition": "files", "_offset": file["seq"], "_ordinal": ordinal}
                last[record["id"]] = {**record, "_txn": binding.txn, "_op": "U", **position}
        return Digest.of(hashes), [last[key] for key in sorted(last)]

    def stage(self, binding: Binding, token: WriterToken) -> Staged:
        source, rows = self._rows(binding)
        self.staged.append(binding.txn)
        folder = f"_txn-{binding.txn:020}/{token}"
        (self._log / folder).mkdir(parents=True)
        parts = []
        for index, piece in enumerate((rows[0::2], rows[1::2])):
            if piece:
                path = f"{folder}/part-{index}.parquet"
                pq.write_table(pa.Table.from_pylist(piece, schema=COLUMNS), self._log / path)
                parts.append(Part(path, len(piece), (self._log / path).stat().st_size))
        added = ShardParts(tuple(parts), digest_of(rows))
        return Staged(binding.txn, token, source, {SHARD: added}, ENGINE)

    def read_back(self, staged: Staged, **_: object) -> Digests:
        rows = [
            row
            for part in staged.shards[SHARD].parts
            if (self._log / part.path).exists()
            for row in pq.ParquetFile(self._log / part.path).read().to_pylist()
        ]
        return {SOURCE: staged.source, shard_endpoint(SHARD): digest_of(rows)}

    def replay(self, binding: Binding) -> Staged:
        source, rows = self._rows(binding)
        added = ShardParts((Part("", len(rows), 0),), digest_of(rows))
        return Staged(binding.txn, WriterToken(""), source, {SHARD: added}, ENGINE)

    def discard(self, txn: Txn, token: WriterToken) -> None:
        shutil.rmtree(self._log / f"_txn-{txn:020}" / token, ignore_errors=True)

    def attempts(self) -> Sequence[tuple[Txn, WriterToken]]:
        found = []
        for folder in self._log.glob("_txn-*"):
            txn = Txn(int(folder.name.removeprefix("_txn-")))
            with suppress(FileNotFoundError):  # Another sweep may be at it.
                found += [(txn, WriterToken(attempt.name)) for attempt in list(folder.iterdir())]
        return sorted(found)


def digest_of(rows: Sequence[dict[str, object]]) -> Digest:
    return Digest.of(hash_of(row["id"], row["value"], row["_op"]) for row in rows)
