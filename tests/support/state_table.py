"""A small state that is published to by `StateTable` alone: no Spark, no index, places found by looking."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, QueryBuilder, Schema
from pyroaring import BitMap

from tidemark.core.ledger import CommitOutcome, Committed
from tidemark.delta.entry import Change, NewFile
from tidemark.delta.head import TableHead
from tidemark.delta.protocol import FEED, VECTORS, metadata_action, protocol_action
from tidemark.delta.state import StateTable
from tidemark.delta.statistics import statistics

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])
APP = "tidemark/p/t"


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

    def __post_init__(self) -> None:
        self.table = StateTable(str(self.root))

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
        rows = pa.table({"k": list(upserts), "v": list(upserts.values())}, schema=SCHEMA)
        return Change(
            "WRITE", len(after), hidden=self.places(head, {*upserts, *deletes}),
            added=[self.write(rows)] if upserts else [], txns={APP: self.txn + 1},
        )  # fmt: skip

    def publish(self, upserts: Mapping[int, str], deletes: set[int] = frozenset()) -> CommitOutcome:  # type: ignore[assignment]
        head = self.table.head()
        outcome = self.table.commit(head, self.change(head, upserts, deletes))
        if isinstance(outcome, Committed):
            self.txn += 1
            self.model = {k: v for k, v in self.model.items() if k not in deletes} | dict(upserts)
        return outcome

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
