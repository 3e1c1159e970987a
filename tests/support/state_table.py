"""A small state that is published to by `StateTable` alone: no Spark, no index, places found by looking."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import time_ns
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, QueryBuilder, Schema
from pyroaring import BitMap

from tidemark.core.ledger import CommitOutcome, Committed
from tidemark.delta.head import TableHead
from tidemark.delta.protocol import FEED, VECTORS, metadata_action, protocol_action
from tidemark.delta.state import Change, NewFile, StateTable
from tidemark.delta.state_files import DIGEST, KEY, statistics, write_rows

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])
APP = "tidemark/p/t"


def key_hash(key: int) -> bytes:
    return hashlib.sha256(b"%d" % key).digest()[:16]


def row_digest(key: int, value: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{key}/{value}".encode()).digest()[:8], "big", signed=True)


def rows_of(values: Mapping[int, str]) -> pa.Table:
    """Rows of `k` and `v`, with the two columns beside them."""
    plain = pa.table({"k": list(values), "v": list(values.values())}, schema=SCHEMA)
    hashes = pa.array([key_hash(key) for key in values], pa.binary(16))
    digests = pa.array([row_digest(key, value) for key, value in values.items()], pa.int64())
    return plain.append_column(KEY, hashes).append_column(DIGEST, digests)


def schema_json(schema: pa.Schema) -> str:
    return str(Schema.from_arrow(schema).to_json())


def new_table(
    schema: pa.Schema = SCHEMA, *, vectors: bool = True, feed: bool = False, **properties: str
) -> dict[str, Any]:
    """The `protocol` and `metaData` of a new state, as keywords of `Change`."""
    text = schema_json(schema)
    configuration = {VECTORS: str(vectors).lower(), FEED: str(feed).lower(), **properties}
    return {
        "protocol": protocol_action(configuration=configuration, schema=text),
        "metadata": metadata_action(
            table_id=str(uuid.uuid4()), schema=text, configuration=configuration, at_ms=1
        ),
    }


@dataclass
class Hand:
    """A table of `k` and `v` and what it should hold."""

    root: Path
    properties: Mapping[str, str] = field(default_factory=dict)
    vectors: bool = True
    model: dict[int, str] = field(default_factory=dict)
    txn: int = 0
    clock_ns: Callable[[], int] = time_ns

    def __post_init__(self) -> None:
        self.table = StateTable(str(self.root), clock_ns=self.clock_ns)

    def create(self, *, feed: bool = False) -> None:
        change = Change("CREATE TABLE", 0, **new_table(vectors=self.vectors, feed=feed, **self.properties))
        assert self.table.commit(self.table.head(), change) == Committed(0)

    def write(self, rows: pa.Table, *, folder: str = "") -> NewFile:
        self.root.mkdir(parents=True, exist_ok=True)
        (self.root / folder).mkdir(parents=True, exist_ok=True)
        path = f"{folder}{uuid.uuid4()}.parquet"
        pq.write_table(rows, self.root / path)
        return NewFile(path, (self.root / path).stat().st_size, rows.num_rows, statistics(rows))

    def places(self, head: TableHead, keys: set[int]) -> dict[str, BitMap]:
        """The live rows that have one of the keys."""
        hidden = self.table.hidden(head, head.files)
        found = {}
        for path, file in head.files.items():
            there = pq.read_table(self.root / file.location, columns=["k"])["k"].to_pylist()
            rows = BitMap([row for row, key in enumerate(there) if key in keys]) - hidden.get(path, BitMap())
            if rows:
                found[path] = rows
        return found

    def change(self, head: TableHead, upserts: Mapping[int, str], deletes: set[int] = frozenset()) -> Change:  # type: ignore[assignment]
        after = {k: v for k, v in self.model.items() if k not in deletes} | dict(upserts)
        version, store = head.version + 1, self.table.store
        rows = rows_of(upserts)
        return Change(
            "WRITE", len(after), hidden=self.places(head, {*upserts, *deletes}), txns={APP: self.txn + 1},
            added=[write_rows(store, rows, version=version, nonce=uuid.uuid4())] if upserts else [],
        )  # fmt: skip

    def publish(self, upserts: Mapping[int, str], deletes: set[int] = frozenset()) -> CommitOutcome:  # type: ignore[assignment]
        head = self.table.head()
        outcome = self.table.commit(head, self.change(head, upserts, deletes))
        if isinstance(outcome, Committed):
            self.txn += 1
            self.model = {k: v for k, v in self.model.items() if k not in deletes} | dict(upserts)
        return outcome

    def rows(self, *names: str) -> list[tuple[Any, ...]]:
        """The live rows as the files have them, in the order of files and rows; of `k` and `v`, or of the
        named columns."""
        head = self.table.head()
        hidden = self.table.hidden(head, head.files)
        found = []
        for path, file in sorted(head.files.items()):
            columns = list(names) or SCHEMA.names
            table = pq.read_table(self.root / file.location, columns=columns).select(columns)
            gone = hidden.get(path, BitMap())
            found += [tuple(row.values()) for at, row in enumerate(table.to_pylist()) if at not in gone]
        return found

    def check(self) -> None:
        """The rows are the model's, each key once, and what stands beside them is their own."""
        wanted = [(k, v, key_hash(k), row_digest(k, v)) for k, v in sorted(self.model.items())]
        assert sorted(self.rows("k", "v", KEY, DIGEST)) == wanted
        assert self.by_delta_rs() == self.model

    def entry(self, version: int) -> list[dict[str, Any]]:
        text = (self.root / "_delta_log" / f"{version:020}.json").read_text()
        return [json.loads(line) for line in text.splitlines()]

    def by_delta_rs(self) -> dict[int, str]:
        found = QueryBuilder().register("t", DeltaTable(str(self.root))).execute("select k, v from t")
        table = pa.table(found.read_all())
        return dict(zip(table["k"].to_pylist(), table["v"].to_pylist(), strict=True))

    def by_polars(self) -> dict[int, str]:
        import polars

        return dict(polars.read_delta(str(self.root)).select("k", "v").iter_rows())
