"""A shard with a real log whose rows say their keys and digests, published without Spark: append, publish,
look."""

from __future__ import annotations

import hashlib
import io
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import Schema
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

from tests.support.sealing import sealed_put
from tidemark.core.checksum import Digest
from tidemark.core.ids import ShardId, Txn, WriterToken
from tidemark.core.ledger import Committed
from tidemark.core.log import LogEntry
from tidemark.core.publish import Published
from tidemark.core.seal import Part
from tidemark.delta.control import DeltaControl
from tidemark.delta.log import parts_folder
from tidemark.delta.state_files import DIGEST, KEY
from tidemark.delta.store import Store
from tidemark.pipeline import publish as step
from tidemark.spark.fold import FoldRule
from tidemark.spark.parts import stats_of
from tidemark.spark.state import SparkStatePlane
from tidemark.spark.state_table import StateSpec, StateSpecs

SHARD = ShardId("t")
DECLARED = StructType(
    [StructField("a", StringType()), StructField("b", LongType()), StructField("v", StringType()),
     StructField("s", LongType())]
)  # fmt: skip
COLUMNS = pa.schema([("a", pa.string()), ("b", pa.int64()), ("v", pa.string()), ("s", pa.int64())])
LOG = pa.schema(
    [*COLUMNS, ("_txn", pa.int64()), ("_op", pa.string()), ("_partition", pa.string()),
     ("_offset", pa.int64()), ("_ordinal", pa.int64())]
)  # fmt: skip

Key = tuple[str | None, int | None]


def key_bytes(*parts: tuple[str, Any]) -> bytes:
    """The hash of a key, from (type, text or None), without Spark."""
    told = [
        f"{kind} -".encode() if text is None else f"{kind} {len(text.encode())}:{text}".encode()
        for kind, text in parts
    ]
    return hashlib.sha256(b"".join(told)).digest()[:16]


def key_hash(key: Key) -> bytes:
    a, b = key
    return key_bytes(("string", a), ("bigint", None if b is None else str(b)))


def digest_of(row: Sequence[Any]) -> int:
    """Any number that is the same for the same row: that it is Spark's own is shown elsewhere."""
    return int.from_bytes(hashlib.sha256(repr(tuple(row)).encode()).digest()[:8], "big", signed=True)


def no_spark() -> SparkSession:
    raise AssertionError("Spark was started")


@dataclass(frozen=True)
class Change:
    """A record: an upsert with a value, or a delete without one. Only a correction may lack a sequence."""

    key: Key
    value: str | None
    sequence: int | None = 0


@dataclass
class KeyedLog:
    """One shard below `root`, on a disk or an object store, and all that was ever appended to it."""

    root: Path | str
    ordered: bool = False
    lateness: int | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    txn: int = 0
    appended: list[tuple[Change, int]] = field(default_factory=list)
    corrections: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        rule = FoldRule(("a", "b"), "s" if self.ordered else None)
        self.spec = StateSpec(SHARD, f"{self.root}/p/{SHARD}", DECLARED, rule, self.lateness)
        schemas = {SHARD: Schema.from_arrow(LOG)}
        self.control = DeltaControl(str(self.root), "p", schemas, storage_options=self.options)
        self.files = Store(self.spec.log, self.options)
        self.reopen()

    def reopen(self) -> None:
        """As another process would."""
        specs = StateSpecs("p", {SHARD: self.spec})
        self.plane = SparkStatePlane(no_spark, specs, storage_options=self.options)

    @property
    def index(self) -> Path:
        return Path(self.spec.uri) / "_index"

    def append(self, *changes: Change, corrects: bool = False) -> None:
        """One transaction, which has each key once. Where others append too, its number is the one that it
        has got."""
        self.txn += 1
        while not self._appended(changes, corrects):
            self.txn = self.control.log(SHARD).head().upper
        self.appended += [(one, self.txn) for one in changes]
        self.corrections |= {self.txn} if corrects else set()

    def _appended(self, changes: Sequence[Change], corrects: bool) -> bool:
        rows = []
        for at, one in enumerate(changes):
            row = (*one.key, one.value, one.sequence)
            rows.append(dict(zip(COLUMNS.names, row, strict=True)) | {
                "_txn": self.txn, "_op": "D" if one.value is None else "U",
                "_partition": None if corrects else "p", "_offset": None if corrects else at,
                "_ordinal": None if corrects else 0,
            })  # fmt: skip
        table = pa.Table.from_pylist(rows, schema=LOG)
        keys = pa.array([key_hash(one.key) for one in changes], pa.binary())
        digests = [digest_of((*one.key, one.value, one.sequence)) for one in changes]
        table = table.append_column(KEY, keys).append_column(DIGEST, pa.array(digests, pa.int64()))
        token = WriterToken(f"w{uuid.uuid4().hex}")
        path = f"{parts_folder(Txn(self.txn), token)}/part-0.parquet"
        out = io.BytesIO()
        pq.write_table(table, out, write_page_checksum=True, use_dictionary=False)
        self.files.put_synced(path, out.getvalue())
        part = Part(path, table.num_rows, len(out.getvalue()), stats_of(pq.read_metadata(out)))
        log = self.control.log(SHARD)
        head = log.head()
        if head.upper != self.txn:
            return False
        entry = LogEntry(Txn(self.txn), token, (part,))
        return isinstance(log.commit(head, sealed_put(self.control, SHARD, entry)), Committed)

    def publish(self) -> Published:
        done = step.publish(self.control, self.plane, SHARD, token=WriterToken(f"p{self.txn}"))
        assert isinstance(done, Published), done
        return done

    def expected(self) -> dict[Key, str]:
        """What the state must hold: the last record of each key, unless it is a delete."""
        last: dict[Key, tuple[int, int, str | None]] = {}
        for one, txn in self.appended:
            sequence = -1 if one.sequence is None else one.sequence
            rank = (sequence if self.ordered else 0, txn)
            if one.key not in last or txn in self.corrections or rank > last[one.key][:2]:
                last[one.key] = (*rank, one.value)
        return {key: value for key, (_, _, value) in last.items() if value is not None}

    def rows(self) -> list[tuple[Key, str]]:
        """What a reader of the state sees, by Polars."""
        found = self._read()
        assert found.columns == COLUMNS.names, "what stands beside the rows is no column of the table"
        return sorted((((a, b), v) for a, b, v, _ in found.rows()), key=repr)

    def check(self) -> None:
        """The state is the fold of the log, each key once."""
        assert self.rows() == sorted(self.expected().items(), key=repr)
        last = step.checked_record(self.control, self.plane, SHARD)
        assert last is not None
        live = [digest_of((*key, value, seq)) for key, value, seq in self._with_sequences()]
        assert last.commit.digest == Digest.of(live)

    def _with_sequences(self) -> list[tuple[Key, str, int]]:
        return [((a, b), v, s) for a, b, v, s in self._read().rows()]

    def _read(self) -> pl.DataFrame:
        return pl.read_delta(self.spec.state, storage_options=dict(self.options))
