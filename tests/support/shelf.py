"""A shard with a real log, sealed and appended to without a JVM: many transactions in little time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from tidemark.app.deployment import Deployment, SessionMaker
from tidemark.config import load_pipeline
from tidemark.core.checkpoint import Checkpoint
from tidemark.core.checksum import Digest
from tidemark.core.ids import ShardId, Txn, WriterToken
from tidemark.core.ledger import LINK, UPPER, Committed, Put
from tidemark.core.log import entry_of
from tidemark.core.seal import Decision, Part, Seal, ShardParts, touch_mark
from tidemark.delta.log import parts_folder
from tidemark.spark.parts import stats_of

SHARD = ShardId("t")
ARROW = pa.schema(
    [("k", pa.string()), ("v", pa.int64()), ("_txn", pa.int64()), ("_op", pa.string()),
     ("_partition", pa.string()), ("_offset", pa.int64()), ("_ordinal", pa.int64())]
)  # fmt: skip

PIPELINE = """\
name: p
source: {type: files, path: in, format: json, settle_seconds: 0}
warehouse: wh
shards:
  - name: t
    schema: k STRING NOT NULL, v BIGINT
    keys: [k]
    apply_as_deletes: op = 'D'
"""

Change = tuple[str, int | None]
"""A key and its value; None is a delete."""


class Shelf:
    """One pipeline `p` with one shard `t (k STRING, v BIGINT)` below a folder."""

    fork = 0
    """Another one makes other links of the same numbers, as another history has."""

    def __init__(self, root: Path, session: SessionMaker | None = None) -> None:
        self.root = root
        self.works = deployed(root, session)
        self.written: dict[int, list[Change]] = {}

    @property
    def log(self) -> Path:
        return Path(self.works.shard_uri(SHARD)) / "log"

    def append(self, *txns: Sequence[Change], parts: int = 1) -> None:
        """One transaction for each list of changes, in `parts` files; an empty one leaves the shard alone."""
        control = self.works.control
        first = control.seals.head().upper
        seals = [self._seal(Txn(first + at), changes, parts) for at, changes in enumerate(txns)]
        upper = first + len(seals)
        entries = [entry_of(seal, SHARD) for seal in seals if seal.touches(SHARD)]
        touched = {touch_mark(SHARD): int(entries[-1].txn)} if entries else {}
        _commit(control.seals, Put({UPPER: upper, **touched}, seals, None))
        if entries:
            _commit(
                control.log(SHARD),
                Put({UPPER: entries[-1].txn + 1, LINK: int(entries[-1].txn)}, entries, None),
            )
        _commit(control.checkpoints, Put({UPPER: upper}, [Checkpoint(Txn(upper - 1), link=upper - 1)], None))
        self.written |= {seal.txn: list(changes) for seal, changes in zip(seals, txns, strict=True)}

    def _seal(self, txn: Txn, changes: Sequence[Change], parts: int) -> Seal:
        token = WriterToken(f"w{txn}")
        found = [self._part(txn, token, number, changes[number::parts]) for number in range(parts)]
        shards = {SHARD: ShardParts(tuple(found), Digest(count=len(changes)))} if changes else {}
        return Seal(
            txn, token, 0, Decision.COMMITTED, Digest(count=len(changes)), shards, link=int(txn) + self.fork
        )

    def _part(self, txn: Txn, token: WriterToken, number: int, changes: Sequence[Change]) -> Part:
        path = f"{parts_folder(txn, token)}/part-{number:05}.parquet"
        file = self.log / path
        rows = [
            {"k": k, "v": v, "_txn": int(txn), "_op": "D" if v is None else "U", "_partition": "p",
             "_offset": at, "_ordinal": number}
            for at, (k, v) in enumerate(changes)
        ]  # fmt: skip
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows, schema=ARROW), file, write_page_checksum=True)
        return Part(path, len(rows), file.stat().st_size, stats_of(pq.read_metadata(file)))

    def parts_of(self, txn: int) -> list[Path]:
        return sorted((self.log / f"_txn-{txn:020}").rglob("*.parquet"))

    def again(self, session: SessionMaker | None = None) -> Deployment:
        """Another process's view of the same warehouse."""
        return deployed(self.root, session)


def deployed(root: Path, session: SessionMaker | None = None) -> Deployment:
    def none() -> SparkSession:
        raise AssertionError("this needs no Spark")

    file = root / "p.yaml"
    if not file.exists():
        file.write_text(PIPELINE, encoding="utf-8")
    return Deployment(load_pipeline(file), session or none)


def changes_in(frame: DataFrame) -> list[tuple[int, str, int | None]]:
    """(txn, key, value) of every row; a delete's value is None."""
    found = frame.select("_txn", "k", "v", "_op").collect()
    assert all((row["v"] is None) == (row["_op"] == "D") for row in found)
    return sorted((row["_txn"], row["k"], row["v"]) for row in found)


def expected(written: dict[int, list[Change]], lower: int, upper: int) -> list[tuple[int, str, int | None]]:
    """What a consumer of [lower, upper) has to get, by what was written."""
    return sorted((txn, *change) for txn in range(lower, upper) for change in written.get(txn, ()))


def cut_short(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-20])


def flip_bit(file: Path) -> None:
    """Damage a page: same size, same footer."""
    column = pq.read_metadata(file).row_group(0).column(0)
    at = column.data_page_offset + column.total_compressed_size - 3
    data = bytearray(file.read_bytes())
    data[at] ^= 0x04
    file.write_bytes(bytes(data))
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)


def _commit(ledger: Any, put: Put[Any, None]) -> None:
    assert isinstance(ledger.commit(ledger.head(), put), Committed)
