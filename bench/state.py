"""What a publish by the key index costs, part by part, without Spark: `python -m bench.state --rows 2000000`.

A state of `--rows` rows in files of 250,000, then `--rounds` transactions of `--batch` records: 15 % new
keys, 5 % deletes, the rest updates of keys all over the state. Each is read from a Parquet file that has the
keys' hashes and the rows' digests, looked up, laid over the state, written, committed and indexed, all of it
synced. At the end the state is audited, and its rows counted by delta-rs. Wall and processor seconds; prints
Markdown.

Left out: the fold of several transactions, sequences, tombstones, the record of the publish, checkpoints.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import statistics
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, QueryBuilder, Schema

from tidemark.core.checksum import ENCODING, Digest
from tidemark.core.ledger import Committed
from tidemark.delta.audit import audit_state
from tidemark.delta.entry import Change
from tidemark.delta.head import LiveFile
from tidemark.delta.index import KeyIndex
from tidemark.delta.overlay import overlay
from tidemark.delta.protocol import VECTORS, metadata_action, protocol_action
from tidemark.delta.runs import DataFile, RunScope
from tidemark.delta.state import StateTable
from tidemark.delta.state_files import DIGEST, KEY, RowKeys, digest_of, keys_of, read_keys, write_rows

FILE_ROWS = 250_000
SCHEMA = pa.schema(
    [("id", pa.int64()), ("name", pa.string()), ("amount", pa.float64()), ("note", pa.string())]
)
APP = "tidemark/bench/t"


def rows_of(ids: np.ndarray, version: int) -> pa.Table:
    """Rows that don't compress, with their hashes and digests."""
    random = np.random.default_rng(version + 1)
    notes = [os.urandom(20).hex() for _ in range(len(ids))]
    columns = {
        "id": pa.array(ids), "name": pa.array([f"name {one}" for one in ids.tolist()]),
        "amount": pa.array(random.random(len(ids))), "note": pa.array(notes),
    }  # fmt: skip
    hashes = [hashlib.sha256(b"%d" % one).digest()[:16] for one in ids.tolist()]
    digests = random.integers(-(1 << 63), (1 << 63) - 1, len(ids), dtype=np.int64)
    rows = pa.table(columns, schema=SCHEMA)
    return rows.append_column(KEY, pa.array(hashes, pa.binary(16))).append_column(DIGEST, pa.array(digests))


class Bench:
    def __init__(self, root: Path, rows: int) -> None:
        self.root, self.rows = root, rows
        self.table = StateTable(str(root / "state"))
        self.digest = Digest()
        self.times: dict[str, list[tuple[float, float]]] = {}
        text = str(Schema.from_arrow(SCHEMA).to_json())
        configuration = {VECTORS: "true"}
        made = metadata_action(table_id="bench", schema=text, configuration=configuration, at_ms=1)
        added, digests = [], []
        for lower in range(0, rows, FILE_ROWS):
            part = rows_of(np.arange(lower, min(lower + FILE_ROWS, rows)), 0)
            added.append(write_rows(self.table.store, part, version=0, nonce=uuid.uuid4()))
            digests.append(part[DIGEST].to_numpy())
        self.digest = digest_of(np.concatenate(digests))
        protocol = protocol_action(configuration=configuration, schema=text)
        change = Change("WRITE", rows, added=added, protocol=protocol, metadata=made)
        assert self.table.commit(self.table.head(), change) == Committed(0)
        self.index = KeyIndex(root / "index", RunScope("bench", ENCODING))

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        wall, processor = time.perf_counter(), time.process_time()
        yield
        took = time.perf_counter() - wall, time.process_time() - processor
        self.times.setdefault(what, []).append(took)

    def read(self, file: LiveFile) -> RowKeys | None:
        return read_keys(self.table.store, file)

    def cover(self) -> None:
        missing = {
            DataFile(file.path, file.bytes, file.rows): keys
            for file in self.index.missing(self.table.head())
            if (keys := self.read(file)) is not None
        }
        self.index.add(missing)

    def tail(self, batch: int, version: int) -> Path:
        """A transaction's records, as a log's part has them."""
        random = np.random.default_rng(1000 + version)
        new = self.rows + version * batch + np.arange(batch * 15 // 100)
        old = random.choice(self.rows, batch - len(new), replace=False)
        part = rows_of(np.concatenate([new, old]), version)
        deletes = random.random(batch) < 0.05
        path = self.root / f"tail-{version}.parquet"
        pq.write_table(part.append_column("_op", pa.array(np.where(deletes, "D", "U"))), path)
        return path

    def publish(self, path: Path, version: int) -> None:
        with self.timed("total"):
            with self.timed("read the tail"):
                rows = pq.read_table(path)
                keys = keys_of(rows[KEY], rows[DIGEST])
                upserts = rows["_op"].combine_chunks().to_numpy(zero_copy_only=False) == "U"
            with self.timed("open"):
                head = self.table.head()
            with self.timed("look up"):
                hits = self.index.find(keys, head, lambda paths: self.table.hidden(head, paths))
                over = overlay(keys, upserts, hits, base=self.digest)
            with self.timed("write rows"):
                chosen = rows.drop_columns(["_op"]).filter(pa.array(over.comes))
                added = write_rows(self.table.store, chosen, version=head.version + 1, nonce=uuid.uuid4())
            with self.timed("vectors and entry"):
                outcome = self.table.commit(head, over.change(added=[added], txns={APP: version}))
                assert isinstance(outcome, Committed)
            with self.timed("index the new file"):
                own = keys_of(chosen[KEY], chosen[DIGEST])
                self.index.add({DataFile(added.path, added.bytes, added.rows): own})
        self.digest = over.digest
        with self.timed("merge runs (afterwards)"):
            self.index.merge(self.table.head())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--batch", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), given.rows)
        with bench.timed("build the index"):
            bench.cover()
            bench.index.merge(bench.table.head())
        for version in range(1, given.rounds + 1):
            bench.publish(bench.tail(given.batch, version), version)
        with bench.timed("open anew"):
            KeyIndex(Path(folder) / "index", RunScope("bench", ENCODING))
            StateTable(str(Path(folder) / "state")).head()
        head = bench.table.head()
        found = audit_state(head, bench.read, bench.table.hidden(head, head.files), recorded=bench.digest)
        table = DeltaTable(str(Path(folder) / "state"))
        counted = pa.table(
            QueryBuilder().register("t", table).execute("select count(id) as n from t").read_all()
        )
        per_row = bench.index.bytes / sum(run.records for run in bench.index.runs)
        print(
            f"\n{given.batch:,} records into {given.rows:,} rows, {given.rounds} rounds,"
            f" load {os.getloadavg()[0]:.1f}"
        )
        print("\n| step | wall ms, median | best | processor ms, median |\n| --- | --- | --- | --- |")
        for what, took in bench.times.items():
            wall, processor = ([1000 * one[at] for one in took] for at in (0, 1))
            print(
                f"| {what} | {statistics.median(wall):.0f} | {min(wall):.0f} |"
                f" {statistics.median(processor):.0f} |"
            )
        print(
            f"\n{len(bench.index.runs)} runs, {per_row:.1f} bytes per record; audit: {found or 'no finding'};"
        )
        print(f"rows by delta-rs {counted['n'][0].as_py():,}, carried {bench.digest.count:,}")


if __name__ == "__main__":
    main()
