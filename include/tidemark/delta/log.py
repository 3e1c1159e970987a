"""A shard's log as a ledger: its records are the sealed parts, which are files of the shard's log table.

An entry is not stored beside the data: its `add` actions *are* the entry. A part's path names its transaction
and its writer (`_txn-00000000000000000007/<token>/part-….parquet`), so entries are read back from the table's
file list, which every reader of the log sees. The underscore hides the folder: a VACUUM by another program
skips it, whatever its retention.

Files that compaction has written (`_txns-<first>-<last>/…`) hold rows of several transactions and belong to
no single entry. `files` returns the active files with the range of transactions that each may have rows of.

An entry that replaces the log (`core.generation`) removes all files, writes the new schema and properties,
and adds its parts, in one commit. The removed files stay on disk as others do, for readers of older versions.
A handle that was opened with the shape of another generation can bring such an entry in, and no more.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

from deltalake import Schema

from tidemark.core.errors import InvalidUsage, InvariantViolation
from tidemark.core.generation import Superseded
from tidemark.core.ids import TXN_NONE, ShardId, Txn, WriterToken
from tidemark.core.ledger import LINK, UPPER, CommitOutcome, Committed, Conflict, Head, Put
from tidemark.core.log import REPLACED, LogEntry, LogFile, begins_at
from tidemark.core.maintenance import COMPACTION, Leftover, Replacement
from tidemark.core.seal import Part
from tidemark.core.shape import Shape, check_known, misfit
from tidemark.delta.commit import Action, add_action, remove_action, remove_unlinked
from tidemark.delta.head import LiveFile, read_history
from tidemark.delta.schema import NOT_NULL, log_schema, properties_of, shape_of
from tidemark.delta.store import housekeeping
from tidemark.delta.table import VERSION_NONE, ControlTable

REMEMBERED: Final = "delta.deletedFileRetentionDuration"
REMEMBERED_DAYS: Final = 7
REMEMBERED_DAYS_MAX: Final = 36_500
CONFIGURATION: Final = {
    "delta.appendOnly": "true",
    "delta.logRetentionDuration": "interval 30 days",
    REMEMBERED: f"interval {REMEMBERED_DAYS} days",
    "delta.checkpointInterval": "10",
}
LOG_MARKS: Final = (UPPER, COMPACTION, LINK, REPLACED)
GENERATION: Final = "tidemark.generation"
"""A property of a log that was begun anew: the generation that it has the shape of."""
_PATH = re.compile(r"_txn-(\d{20})/([A-Za-z0-9._-]+)/[A-Za-z0-9._-]+\Z")
_MERGED = re.compile(r"_txns-(\d{20})-(\d{20})/(\d{10})-([A-Za-z0-9._-]+)/[A-Za-z0-9._-]+\Z")
_MERGING = re.compile(r"_txns-(\d{20})-(\d{20})/(\d{10})-([A-Za-z0-9._-]+)/.+\Z")
"""Paths that Spark writes during a compaction, at any depth. A killed compaction leaves them behind."""


def parts_folder(txn: Txn, token: WriterToken) -> str:
    """The folder of one attempt's parts of a transaction, relative to the log table's root."""
    folder = f"_txn-{txn:020}/{token}"
    if not _PATH.match(f"{folder}/part"):
        raise InvalidUsage(
            f"token {token!r} can't be in a path", hint="use letters, digits, '.', '_' and '-'"
        )
    return folder


class DeltaLog:
    """One process's handle on a shard's log."""

    def __init__(  # noqa: PLR0913 - all but one by name
        self,
        uri: str,
        *,
        shard: ShardId | None = None,
        schema: Schema | None = None,
        properties: Mapping[str, str] | None = None,
        grows: bool = False,
        generation: int = 0,
        is_awaited: Callable[[Txn], bool] = lambda upper: False,
        storage_options: Mapping[str, str] | None = None,
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """`schema` and `properties` are those of a `generation`. `is_awaited` says whether a sealed
        transaction replaces a log that ends below this upper."""
        self._clock_ns = clock_ns
        self._generation, self._is_awaited = generation, is_awaited
        self._fits, self._began = True, TXN_NONE
        self._shard = shard or ShardId(uri)
        declared = shape_of(schema, properties or {}) if schema is not None else None
        self._declared = replace(declared, grows=grows) if declared is not None else None
        self._table = ControlTable(
            uri,
            storage_options=storage_options or {},
            schema=schema,
            configuration={**CONFIGURATION, **(properties or {})},
            marks=LOG_MARKS,
            seconds=lambda: clock_ns() / 1e9,
            check=lambda there, properties: None,
        )
        self._head = Head(VERSION_NONE)
        self._entries: dict[int, LogEntry] | None = {}

    @property
    def uri(self) -> str:
        return self._table.uri

    def _check(self, head: Head, there: Schema | None) -> None:
        """Raise if the declared shape doesn't fit the log, when it is opened and when it was begun anew:
        `Superseded` if a later generation has replaced the log. One that is about to be replaced may have any
        shape."""
        begins = begins_at(head)
        is_checked = self._head.version != VERSION_NONE and self._fits and begins == self._began
        if self._declared is None or there is None or is_checked:
            return
        recorded = shape_of(there, self._table.properties)
        found = misfit(self._shard, recorded=recorded, declared=self._declared)
        if found is not None and not self._is_awaited(head.upper):
            newest = int(self._table.property_of(GENERATION) or 0)
            if self._generation < newest:
                raise Superseded(generation=self._generation, newest=newest)
            raise found
        self._fits, self._began = found is None, begins

    def _check_growth(self, there: Schema | None) -> None:
        """Raise if a growing log has columns that this process doesn't know: rows would be read without
        them."""
        if there is not None and self._declared is not None and self._declared.grows:
            check_known(self._shard, recorded=shape_of(there, {}), known=self._declared)

    def head(self) -> Head:
        """Load the newest version. A missing log reads as empty and is not created."""
        head = self._table.refresh()
        if head.version != self._head.version:
            self._check(head, self._table.columns())
            self._check_growth(self._table.columns())
            self._head = head
            self._entries = None
        return self._head

    def shape(self) -> Shape | None:
        """The shape on record, regardless of the pipeline file; None if there is no log."""
        found = self._table.described()
        return shape_of(*found) if found is not None else None

    def declare(self, shape: Shape) -> None:
        """Record the shape: create the log, or widen the recorded shape. If the shape doesn't fit, nothing
        changes."""
        recorded = self.shape()
        if misfit(self._shard, recorded=recorded, declared=shape) is not None:
            return

        def fits(there: Schema) -> bool:
            known = shape_of(there, self._table.properties)
            return misfit(self._shard, recorded=known, declared=shape) is None

        # The log may be replaced meanwhile.
        self._table.declare(log_schema(shape), {**CONFIGURATION, **properties_of(shape)}, fits=fits)
        wider = recorded.widened(shape) if recorded is not None else shape
        if recorded is not None and wider.not_null != recorded.not_null:
            self._table.set_property(NOT_NULL, properties_of(wider)[NOT_NULL])

    def _loaded(self) -> Mapping[int, LogEntry]:
        if self._entries is None:
            self._entries = entries_of(self.files(), table=self.uri)
        return self._entries

    def files(self) -> Sequence[LogFile]:
        """The active files of the version that `head` loaded last."""
        return [file_of(file, table=self.uri) for file in self._table.files()]

    def mark(self, name: str) -> int:
        return self._head.marks.get(name, 0)

    def marked(self, prefix: str) -> dict[str, int]:
        return self._table.marked(prefix)

    def read(self, lower: int, upper: int) -> Sequence[LogEntry]:
        if lower >= self._head.upper:
            return []  # The range begins at or above the log's upper, so no file list is needed.
        entries = self._loaded()
        return [entries[txn] for txn in sorted(entries) if lower <= txn < upper]

    def find(self, key: str) -> Sequence[LogEntry]:
        entries = self._loaded()
        return [entries[txn] for txn in sorted(entries) if entries[txn].key == key]

    def written_at(self, number: int) -> datetime | None:
        """When a transaction's parts were appended; None if it has none, or if they were merged. For alarms
        only: no decision about what happened depends on it."""
        listed = ((file.location, file.add["modificationTime"]) for file in self._table.files())
        at_ms = next((at for path, at in listed if span_of(path) == (number, number)), None)
        return datetime.fromtimestamp(int(at_ms) / 1000, UTC) if at_ms is not None else None

    def commit(self, head: Head, put: Put[LogEntry, Any]) -> CommitOutcome:
        """Append the entries' parts, if and only if the log is still at `head`."""
        at_ms = self._clock_ns() // 1_000_000
        adds = [add_of(entry, part, at_ms=at_ms) for entry in put.records for part in entry.parts]
        shapes = {entry.generation: entry.replaced for entry in put.records if entry.replaced is not None}
        if head.version != self._head.version or not shapes:
            return self._commit(head, put.marks, adds)
        ((generation, shape),) = shapes.items()
        if head.version == VERSION_NONE:
            # The whole log was lost: it is created first.
            self._table.declare(log_schema(shape), {**CONFIGURATION, **properties_of(shape)}, fits=bool)
            return Conflict()
        described = self._table.described_as(
            schema=log_schema(shape).to_json(),
            properties={**properties_of(shape), GENERATION: str(generation)},
        )
        # A log is append-only by its properties, which allow removals that are no changes of data.
        gone = [
            remove_action(file.location, size=file.bytes, at_ms=at_ms, data_change=False)
            for file in self._table.files()
        ]
        return self._commit(head, put.marks, [*described, *gone, *adds])

    def replace(self, head: Head, put: Put[Replacement, Any]) -> CommitOutcome:
        """Replace files and move marks, if and only if the log is still at `head`. No row changes.

        `dataChange` is false even where rows below `since` are dropped: streaming readers of an append-only
        table are not notified of rows past their retention."""
        at_ms = self._clock_ns() // 1_000_000
        actions: list[Action] = []
        for change in put.records:
            actions += [
                remove_action(old.part.path, size=old.part.bytes, at_ms=at_ms, data_change=False)
                for old in change.removed
            ]
            actions += [merged_add_of(part, at_ms=at_ms) for part in change.added]
        return self._commit(head, put.marks, actions)

    def _commit(self, head: Head, moved: Mapping[str, int], actions: Sequence[Action]) -> CommitOutcome:
        # A decision may have loaded a newer version than the one that it is about.
        if head.version != self._head.version:
            return Conflict()
        marks = self._head.moved(moved)
        if not self._table.prepare(head, moved, widens=self._fits):
            return Conflict()
        outcome = self._table.commit(actions, moved=moved, marks=marks)
        if isinstance(outcome, Committed):
            with housekeeping(self.uri):
                self._table.tidy_log()
        return outcome

    def remember_removals(self, days: int) -> None:
        """Keep the record of removed files for `days`, but at least for a week."""
        kept = min(max(days, REMEMBERED_DAYS), REMEMBERED_DAYS_MAX)
        self._table.set_property(REMEMBERED, f"interval {kept} days")

    def leftovers(self) -> Sequence[Leftover]:
        """The files in the log's folder that the newest version does not name."""
        # List files before reading the table: a file that is committed in between is then active, not a
        # leftover.
        found = self._table.store.listed()
        self.head()
        newest = read_history(self._table.store)
        active = {file.location for file in newest.head.files.values()}
        removed = {file.location: file.at_ms for file in newest.removed}
        left = {path: size for path, size in sorted(found.items()) if path not in active}
        named = (leftover_of(path, size, removed.get(path)) for path, size in left.items())
        return [leftover for leftover in named if leftover is not None]

    def delete(self, leftovers: Sequence[Leftover]) -> None:
        """Delete these files. Files that another process has already deleted are ignored."""
        for leftover in leftovers:
            self._table.store.delete(leftover.path)
        remove_unlinked(self._table.store, self._head.version)


def add_of(entry: LogEntry, part: Part, *, at_ms: int) -> Action:
    """The add action of a part. Its path must belong to the entry, and its statistics must match its row
    count."""
    if not part.path.startswith(parts_folder(entry.txn, entry.token) + "/") or not _PATH.match(part.path):
        raise InvalidUsage(f"part {part.path!r} is not one of transaction {entry.txn} by {entry.token}")
    stats = part.stats or json.dumps({"numRecords": part.rows})
    counted = json.loads(stats).get("numRecords")
    if counted != part.rows:
        raise InvariantViolation(f"part {part.path} has {part.rows} rows, but its statistics say {counted}")
    return add_action(part.path, size=part.bytes, at_ms=at_ms, data_change=True, stats=stats)


def merged_add_of(part: Part, *, at_ms: int) -> Action:
    """The add action of a file that compaction wrote."""
    if not _MERGED.match(part.path):
        raise InvalidUsage(f"{part.path!r} is not a file of a compaction")
    stats = part.stats or json.dumps({"numRecords": part.rows})
    return add_action(part.path, size=part.bytes, at_ms=at_ms, data_change=False, stats=stats)


def file_of(file: LiveFile, *, table: str) -> LogFile:
    """An active file with the range of transactions in its name."""
    path = file.location
    span = span_of(path)
    if span is None:
        raise InvariantViolation(
            f"{table}: {path} is in the log, and is neither a sealed part nor a compaction's file",
            hint="something else than tidemark wrote to the log: restore it from a backup",
        )
    return LogFile(Part(path, int(file.stats.get("numRecords") or 0), file.bytes), *span)


def span_of(path: str) -> tuple[Txn, Txn] | None:
    """The first and the last transaction that a log file may have rows of, by its name; None for a foreign
    name."""
    if part := _PATH.match(path):
        return Txn(int(part[1])), Txn(int(part[1]))
    if merged := _MERGED.match(path):
        return Txn(int(merged[1])), Txn(int(merged[2]))
    return None


def leftover_of(path: str, size: int, removed_ms: int | None) -> Leftover | None:
    """Classify an unreferenced file by its name; None for a foreign file."""
    if merging := _MERGING.match(path):
        span = Txn(int(merging[1])), Txn(int(merging[2]))
        return Leftover(path, size, *span, merging[4], int(merging[3]), removed_ms)
    if part := _PATH.match(path):
        return Leftover(path, size, Txn(int(part[1])), Txn(int(part[1])), part[2], removed_ms=removed_ms)
    return None


def entries_of(files: Iterable[LogFile], *, table: str) -> dict[int, LogEntry]:
    """The entries that a log's active files form, with parts sorted by path."""
    parts: dict[tuple[int, str], list[Part]] = {}
    for part in sorted((file.part for file in files), key=lambda one: one.path):
        named = _PATH.match(part.path)
        if named is not None:
            parts.setdefault((int(named[1]), named[2]), []).append(part)
    entries: dict[int, LogEntry] = {}
    for (txn, token), found in parts.items():
        if txn in entries:
            raise InvariantViolation(
                f"{table}: transaction {txn} has parts of {entries[txn].token} and of {token}",
                hint="something else than tidemark wrote to the log: restore it from a backup",
            )
        entries[txn] = LogEntry(Txn(txn), WriterToken(token), tuple(found))
    return entries
