"""One of several processes that publish one state at once: `python -m tests.delta.state_racing ROOT NAME
ROUNDS`.

Each round adds one to the count of a key that all share and to one of its own, by what the state says, and
begins again when it has lost. A lost update or a row that stays would leave a wrong count.
"""

from __future__ import annotations

import sys
import uuid
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from tests.support.indexed import TABLE_ID, rows_of
from tests.support.state_table import APP
from tidemark.core.checksum import ENCODING, Digest
from tidemark.core.ledger import Committed
from tidemark.delta.audit import audit_state
from tidemark.delta.head import TableHead
from tidemark.delta.index import Hits, KeyIndex
from tidemark.delta.overlay import overlay
from tidemark.delta.runs import DataFile, RunScope
from tidemark.delta.state import StateTable
from tidemark.delta.state_files import DIGEST, KEY, digest_of, keys_of, read_keys, write_rows

SHARED = 0


def publish(table: StateTable, index: KeyIndex, own: int) -> bool:
    """One try: False when another process was first."""
    head = table.head()
    missing = {}
    for file in index.missing(head):
        keys = read_keys(table.store, file)
        assert keys is not None
        missing[DataFile(file.path, file.bytes, file.rows)] = keys
    index.add(missing)
    index.merge(head)
    asked = rows_of({SHARED: "", own: ""})
    keys = keys_of(asked[KEY], asked[DIGEST])
    hits = index.find(keys, head, lambda paths: table.hidden(head, paths))
    counts = counts_at(table, hits)
    tail = rows_of({SHARED: str(counts[0] + 1), own: str(counts[1] + 1)})
    base = live_digest(table, head)
    found = overlay(keys_of(tail[KEY], tail[DIGEST]), np.ones(2, np.bool_), hits, base=base)
    added = write_rows(table.store, tail, version=head.version + 1, nonce=uuid.uuid4())
    outcome = table.commit(head, found.change(added=[added], txns={APP: head.version + 1}))
    if not isinstance(outcome, Committed):
        table.store.remove_quietly(added.path)
    return isinstance(outcome, Committed)


def counts_at(table: StateTable, hits: Hits) -> dict[int, int]:
    """The counts of the two keys, read where the index says that they are."""
    counts = {0: 0, 1: 0}
    assert table.store.folder is not None
    for query, record in zip(hits.query.tolist(), hits.records, strict=True):
        rows = pq.read_table(table.store.folder / hits.paths[record["file"]], columns=["v"])
        counts[query] = int(rows["v"][int(record["row"])].as_py())
    return counts


def live_digest(table: StateTable, head: TableHead) -> Digest:
    """The digest of the live rows; the product carries it forward instead."""
    hidden, parts = table.hidden(head, head.files), [np.empty(0, np.int64)]
    for path, file in head.files.items():
        keys = read_keys(table.store, file)
        assert keys is not None
        live = np.ones(len(keys), np.bool_)
        live[list(hidden.get(path, ()))] = False
        parts.append(keys.digest[live])
    return digest_of(np.concatenate(parts))


def audited(table: StateTable) -> list[str]:
    """What is wrong with the state, keys that are not unique first."""
    head = table.head()
    digest = live_digest(table, head)
    hidden = table.hidden(head, head.files)
    found = audit_state(head, lambda file: read_keys(table.store, file), hidden, recorded=digest)
    return [str(one) for one in found]


def main() -> None:
    root, name, rounds = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    table = StateTable(str(root / "state"))
    # Each process has an index of its own: nobody else's is believed.
    index = KeyIndex(root / f"index-{name}", RunScope(TABLE_ID, ENCODING))
    for _ in range(rounds):
        while not publish(table, index, name):
            pass


if __name__ == "__main__":
    main()
