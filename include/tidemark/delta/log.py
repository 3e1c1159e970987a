"""A shard's log as a ledger: its records are the sealed parts, added to the shard's Delta table.

An entry is not stored beside the data; it *is* the data's add actions. A part's path names its
transaction and its writer (`_txn=00000000000000000007/<token>/part-….parquet`), so the entries can be
read back from the table's file list, which is also what every reader of the log sees. The underscore makes
the folder a hidden one: a VACUUM by other hands leaves it alone, whatever its retention is.

Files that compaction has written (`_txns=<first>-<last>/…`) have the rows of several transactions and belong
to no single entry any more; `files` tells which of the active files may have a transaction's rows.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from deltalake import Schema
from deltalake.transaction import AddAction

from tidemark.core.errors import InvalidUsage, InvariantViolation
from tidemark.core.ids import Txn, WriterToken
from tidemark.core.ledger import UPPER, CommitOutcome, Committed, Conflict, Head, Put
from tidemark.core.seal import Part
from tidemark.core.shard import LogEntry
from tidemark.delta.table import VERSION_NONE, ControlTable, housekeeping

CONFIGURATION: Final = {
    "delta.appendOnly": "true",
    "delta.logRetentionDuration": "interval 30 days",
    "delta.deletedFileRetentionDuration": "interval 7 days",
    "delta.checkpointInterval": "10",
}
_PATH = re.compile(r"_txn=(\d{20})/([A-Za-z0-9._-]+)/[A-Za-z0-9._-]+\Z")


def parts_folder(txn: Txn, token: WriterToken) -> str:
    """Where one attempt's parts of a transaction go, relative to the log table's root."""
    folder = f"_txn={txn:020}/{token}"
    if not _PATH.match(f"{folder}/part"):
        raise InvalidUsage(
            f"token {token!r} can't be in a path", hint="use letters, digits, '.', '_' and '-'"
        )
    return folder


class DeltaLog:
    """One process's handle on a shard's log."""

    def __init__(
        self,
        uri: str,
        *,
        schema: Schema | None = None,
        storage_options: Mapping[str, str] | None = None,
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._clock_ns = clock_ns
        self._table = ControlTable(
            uri,
            storage_options=storage_options or {},
            schema=schema,
            configuration=CONFIGURATION,
            marks=(UPPER,),
            seconds=lambda: clock_ns() / 1e9,
        )
        self._head = Head(VERSION_NONE)
        self._entries: dict[int, LogEntry] | None = {}

    @property
    def uri(self) -> str:
        return self._table.uri

    def head(self) -> Head:
        """Load the newest snapshot. A log that is not there yet reads as empty and is not made."""
        head = self._table.refresh()
        if head.version != self._head.version:
            self._head, self._entries = head, None if head.version != VERSION_NONE else {}
        return self._head

    def _loaded(self) -> Mapping[int, LogEntry]:
        # The list of a long log's files is only read when an entry is asked for.
        if self._entries is None:
            self._entries = entries_of(self._table.adds(), table=self.uri)
        return self._entries

    def read(self, lower: int, upper: int) -> Sequence[LogEntry]:
        if lower >= self._head.upper:
            return []  # The log has passed nothing there, so no list needs reading.
        entries = self._loaded()
        return [entries[txn] for txn in sorted(entries) if lower <= txn < upper]

    def find(self, key: str) -> Sequence[LogEntry]:
        entries = self._loaded()
        return [entries[txn] for txn in sorted(entries) if entries[txn].key == key]

    def commit(self, head: Head, put: Put[LogEntry, Any]) -> CommitOutcome:
        """Append the entries' parts, if and only if the log still stands at `head`."""
        marks = self._head.moved(put.marks)
        at_ms = self._clock_ns() // 1_000_000
        adds = [add_of(entry, part, at_ms=at_ms) for entry in put.records for part in entry.parts]
        if head.version != self._head.version or not self._table.prepare(head, put.marks):
            return Conflict()
        outcome = self._table.commit(adds, moved=put.marks, marks=marks)
        if isinstance(outcome, Committed):
            with housekeeping(self.uri):
                self._table.tidy_log(outcome.version)
        return outcome


def add_of(entry: LogEntry, part: Part, *, at_ms: int) -> AddAction:
    """The add action of a part; its path must be the entry's own, and its statistics true."""
    if not part.path.startswith(parts_folder(entry.txn, entry.token) + "/") or not _PATH.match(part.path):
        raise InvalidUsage(f"part {part.path!r} is not one of transaction {entry.txn} by {entry.token}")
    stats = part.stats or json.dumps({"numRecords": part.rows})
    counted = json.loads(stats).get("numRecords")
    if counted != part.rows:
        raise InvariantViolation(f"part {part.path} has {part.rows} rows, but its statistics say {counted}")
    return AddAction(part.path, part.bytes, {}, at_ms, True, stats)


def entries_of(adds: Sequence[Mapping[str, Any]], *, table: str) -> dict[int, LogEntry]:
    """The entries that a log's active files make up, parts in the order of their paths."""
    parts: dict[tuple[int, str], list[Part]] = {}
    for add in sorted(adds, key=lambda one: str(one["path"])):
        named = _PATH.match(add["path"])
        if named is not None:
            part = Part(add["path"], add["num_records"], add["size_bytes"])
            parts.setdefault((int(named[1]), named[2]), []).append(part)
    entries: dict[int, LogEntry] = {}
    for (txn, token), found in parts.items():
        if txn in entries:
            raise InvariantViolation(
                f"{table}: transaction {txn} has parts of {entries[txn].token} and of {token}",
                hint="the log was written by something that did not ask the seal",
            )
        entries[txn] = LogEntry(Txn(txn), WriterToken(token), tuple(found))
    return entries
