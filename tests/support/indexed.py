"""A small state that is published to through its key index, as the product will: no Spark."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from tests.support.state_table import APP, SCHEMA, new_table
from tidemark.core.checksum import ENCODING, Digest
from tidemark.core.ledger import CommitOutcome, Committed
from tidemark.delta.audit import Finding, audit_index, audit_state
from tidemark.delta.entry import Change
from tidemark.delta.head import LiveFile, TableHead
from tidemark.delta.index import KeyIndex
from tidemark.delta.overlay import overlay
from tidemark.delta.runs import DataFile, RunScope
from tidemark.delta.state import StateTable
from tidemark.delta.state_files import DIGEST, KEY, RowKeys, keys_of, read_keys, write_rows

TABLE_ID = "table-1"


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


@dataclass
class Indexed:
    """A state with an index in a folder of its own, and what it should hold."""

    root: Path
    model: dict[int, str] = field(default_factory=dict)
    digest: Digest = field(default_factory=Digest)
    txn: int = 0

    def __post_init__(self) -> None:
        self.table = StateTable(str(self.root / "state"))
        self.reopen()
        if self.table.head().version < 0:
            self.table.commit(self.table.head(), Change("CREATE TABLE", 0, **new_table()))

    def reopen(self) -> None:
        self.index = KeyIndex(self.root / "index", RunScope(TABLE_ID, ENCODING))

    def read(self, file: LiveFile) -> RowKeys | None:
        return read_keys(self.table.store, file)

    def cover(self, head: TableHead) -> None:
        """Have every live file in the index."""
        missing = {}
        for file in self.index.missing(head):
            keys = self.read(file)
            assert keys is not None
            missing[DataFile(file.path, file.bytes, file.rows)] = keys
        self.index.add(missing)

    def publish(self, upserts: Mapping[int, str], deletes: set[int] | None = None) -> CommitOutcome:
        head = self.table.head()
        self.cover(head)
        tail = rows_of({**dict.fromkeys(deletes or (), ""), **upserts})
        keys = keys_of(tail[KEY], tail[DIGEST])
        is_upsert = np.array([key in upserts for key in tail["k"].to_pylist()], np.bool_)
        hits = self.index.find(keys, head, lambda paths: self.table.hidden(head, paths))
        over = overlay(keys, is_upsert, hits, base=self.digest)
        rows = tail.filter(pa.array(over.comes))
        added = (
            [write_rows(self.table.store, rows, version=head.version + 1, nonce=uuid.uuid4())]
            if rows.num_rows
            else []
        )
        outcome = self.table.commit(head, over.change(added=added, txns={APP: self.txn + 1}))
        if isinstance(outcome, Committed):
            self.digest, self.txn = over.digest, self.txn + 1
            kept = {key: value for key, value in self.model.items() if key not in (deletes or ())}
            self.model = kept | dict(upserts)
        return outcome

    def verify(self) -> list[Finding]:
        head = self.table.head()
        return audit_state(head, self.read, self.table.hidden(head, head.files), recorded=self.digest)

    def verify_index(self) -> list[Finding]:
        return audit_index(self.index, self.table.head(), self.read)
