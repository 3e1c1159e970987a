"""A ledger on a Delta table: numbered records, a few marks, one conditional commit.

`DeltaLedger` implements `tidemark.ports.control.Ledger` without a JVM. A commit writes one small Parquet file
and one log entry. The file is invisible until the entry names it, and is removed if the entry can't be
committed. Reads skip files by their statistics and cache decoded files, which never change.

Commits also do the housekeeping, so that read cost does not grow with the history. From time to time the
newest small files are merged into one (a separate conditional commit that changes no record and no mark), and
the log gets a checkpoint. If housekeeping fails or loses a race, the next commit does it.

A file of records is read and checked as its rows are asked for (`Contents`). The whole file agrees with the
digest in its name. Its rows become Python values a block at a time, and a block's links are verified then, so
that a few rows of a file with ten thousand cost little.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from itertools import islice
from typing import Any, Final, Generic, TypeVar, overload

from arro3.core import Table

from tidemark.core.errors import Determinate, InvalidUsage
from tidemark.core.ledger import (
    CHAIN,
    FORMAT,
    GENERATION,
    UPPER,
    CommitOutcome,
    Committed,
    Conflict,
    Head,
    Put,
    Record,
    check_chain,
    check_format,
    link,
)
from tidemark.delta.head import LiveFile
from tidemark.delta.key_summary import Keys, KeySummary, Summarized
from tidemark.delta.records import (
    ARROW_SCHEMA,
    COLUMNS,
    ROWS_FULL,
    SCHEMA,
    Codec,
    FileGone,
    Merge,
    RecordFile,
    Row,
    broken,
    checked_order,
    choose_merge,
    configuration_in,
    file_of,
    joined,
    opened_file,
    read_keys,
    rows_of,
    run_column,
    table_of,
    token_column,
    txn_column,
    with_texts,
    write_file,
)
from tidemark.delta.settings import Settings
from tidemark.delta.store import Store, housekeeping
from tidemark.delta.table import VERSION_NONE, ControlTable

R = TypeVar("R", bound=Record)
CONFIGURATION: Final = {
    "delta.appendOnly": "true",
    "delta.logRetentionDuration": "interval 10 minutes",
    "delta.deletedFileRetentionDuration": "interval 1 hours",
    "delta.checkpointInterval": "10",
    "delta.dataSkippingStatsColumns": "number,key",
}
MARKS: Final = (UPPER, GENERATION, CHAIN)
ROWS_CACHED_MAX: Final = 20_000
LARGE_FILES_MAX: Final = 2
"""How many full files a key is looked for in without a summary of the table's keys."""
RETENTION_HOURS: Final = 1


@dataclass(frozen=True, slots=True)
class LedgerView:
    """The version that `head` loaded. Reads are answered from it until the next `head`."""

    head: Head
    files: tuple[RecordFile, ...]


class DeltaLedger(Generic[R]):
    """One process's handle on a control table."""

    def __init__(
        self,
        uri: str,
        codec: Codec[R],
        *,
        storage_options: Mapping[str, str] | None = None,
        marks: Sequence[str] = MARKS,
        properties: Mapping[str, str] | None = None,
        settings: Settings | None = None,
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """`settings` has the texts of the configurations that the records name."""
        self._codec = codec
        self._settings = settings
        self._clock_ns = clock_ns
        self._table = ControlTable(
            uri,
            storage_options=storage_options or {},
            schema=SCHEMA,
            configuration={**CONFIGURATION, **(properties or {})},
            marks=tuple(dict.fromkeys((*marks, CHAIN))),
            seconds=lambda: clock_ns() / 1e9,
        )
        self._snapshot = LedgerView(Head(VERSION_NONE), ())
        self._contents: OrderedDict[str, Contents] = OrderedDict()
        self._keys: dict[str, frozenset[str]] = {}
        self._summary = KeySummary(self._table.store)
        self._checked: dict[int, tuple[LiveFile, RecordFile]] = {}

    @property
    def uri(self) -> str:
        return self._table.uri

    def property_of(self, name: str) -> str:
        """A property of the table as of the loaded version, set when it was created; empty if it is not."""
        return self._table.property_of(name)

    def head(self) -> Head:
        """Load the newest version. A missing table reads as empty and is not created."""
        self._snapshot = self._loaded(self._table.refresh())
        return self._snapshot.head

    def _loaded(self, head: Head) -> LedgerView:
        if head.version == self._snapshot.head.version:
            return self._snapshot
        before, self._checked = self._checked, {}
        for file in self._table.files():
            # A file's entry is checked once, as long as the loaded log has the same one.
            known = before.get(id(file))
            checked = known[1] if known is not None else file_of(file, table=self.uri)
            self._checked[id(file)] = (file, checked)
        found = (checked for _, checked in self._checked.values())
        files = checked_order(found, chain=head.marks.get(CHAIN, 0), table=self.uri)
        active = {file.path for file in files}
        self._keys = {path: keys for path, keys in self._keys.items() if path in active}
        return LedgerView(head, files)

    def mark(self, name: str) -> int:
        """A mark by name, declared or not; 0 if it is not set."""
        return self._snapshot.head.marks.get(name) or self._table.mark(name) or 0

    def marked(self, prefix: str) -> dict[str, int]:
        """The marks that begin with a prefix, without it."""
        return self._table.marked(prefix)

    def read(self, lower: int, upper: int, kinds: tuple[type, ...] = ()) -> Sequence[R]:
        """The records numbered in [lower, upper), of the given kinds or of all. Records of one number keep
        the order of their commits."""
        but = self._all_but(kinds)

        def look() -> Iterator[Found]:
            for file in self._snapshot.files:
                if file.may_hold_number(lower, upper):
                    contents = self._contents_of(file)
                    ends = max(lower, file.number_min), min(upper, file.number_max + 1)
                    yield from ((contents, place) for place in contents.numbered(*ends, but=but))

        return self._decoded(look)

    def find(self, key: str, kinds: tuple[type, ...] = ()) -> Sequence[R]:
        """The records with this key, of the given kinds or of all, sorted by number."""
        but = self._all_but(kinds)

        def look() -> Iterator[Found]:
            files = self._snapshot.files
            large = (file for file in files if file.rows >= ROWS_FULL and file.may_hold_key(key))
            many = len(list(islice(large, LARGE_FILES_MAX + 1))) > LARGE_FILES_MAX
            known = self._summary.look(key, files, self._keys_in) if many else Summarized()
            for place, file in enumerate(files):
                if not file.may_hold_key(key) or not known.may_hold(place, file):
                    continue
                if place < known.covered or self._holds_key(file, key):
                    contents = self._contents_of(file)
                    yield from ((contents, at) for at in contents.keyed(key) if contents.kinds[at] not in but)

        return self._decoded(look)

    def _all_but(self, kinds: tuple[type, ...]) -> frozenset[str]:
        """The names of all other kinds, whose rows are not read. Unknown kinds are, so that decoding rejects
        them."""
        return self._codec.names_of(()) - self._codec.names_of(kinds)

    def _decoded(self, look: Callable[[], Iterator[Found]]) -> Sequence[R]:
        """The records that `look` finds, sorted by number. If the loaded version is older than
        the retention, its files may have been merged and deleted; then `look` runs again on the newest
        version."""
        try:
            found = list(look())
        except FileGone:
            before = self._snapshot.head.version
            if self.head().version == before:
                raise
            found = list(look())
        found.sort(key=lambda one: one[0].numbers[one[1]])
        records = [contents.record(place, self._codec, table=self.uri) for contents, place in found]
        texts = self._settings
        return records if texts is None else [with_texts(record, texts) for record in records]

    def written_at(self, number: int, kinds: tuple[type, ...] = ()) -> datetime | None:
        """When the last record of a number was committed, by its writer's clock; None if there is none. For
        alarms and retention only: no decision about what happened depends on it."""
        but = self._all_but(kinds)
        for file in reversed(self._snapshot.files):
            if file.may_hold_number(number, number + 1):
                contents = self._contents_of(file)
                for at in reversed(contents.numbered(number, number + 1, but=but)):
                    found: datetime = contents.table["at"][at].as_py()
                    return found
        return None

    def _holds_key(self, file: RecordFile, key: str) -> bool:
        if file.rows < 100 or file.path in self._contents:
            return True  # Reading the whole file is as cheap.
        if file.path not in self._keys:
            self._keys[file.path] = frozenset(one for one, _ in self._keys_in(file))
        return key in self._keys[file.path]

    def _keys_in(self, file: RecordFile) -> Keys:
        return read_keys(self._table.store, file, table=self.uri)

    def _contents_of(self, file: RecordFile) -> Contents:
        kept = self._contents.get(file.path)
        if kept is not None:
            self._contents.move_to_end(file.path)
            return kept
        contents = read_file(self._table.store, file, table=self.uri)
        self._keep(file, contents)
        return contents

    def _keep(self, file: RecordFile, contents: Contents) -> None:
        self._contents[file.path] = contents
        while len(self._contents) > 1 and sum(len(c.rows) for c in self._contents.values()) > ROWS_CACHED_MAX:
            self._contents.popitem(last=False)

    def commit(self, head: Head, put: Put[R, Any]) -> CommitOutcome:
        """Add the records and move the marks, if and only if the table is still at `head`."""
        if CHAIN in put.marks:
            raise InvalidUsage(f"the mark {CHAIN!r} of {self.uri} is set by the ledger itself")
        snapshot = self._snapshot
        # A decision may have loaded a newer version than the one that it is about.
        if head.version != snapshot.head.version:
            return Conflict()
        marks = snapshot.head.moved(put.marks)
        if not self._table.prepare(head, put.marks):
            return Conflict()
        chain = marks.get(CHAIN, 0)
        if not put.records:
            outcome = self._table.commit((), moved=put.marks, marks=marks)
            return self._settled(outcome, snapshot.files)
        self._keep_settings(put.records)
        rows = self._encoded(put.records, chain)
        version = self._table.version + 1
        file = self._written(rows, versions=(version, version), link_before=chain, version=version)
        marks = {**marks, CHAIN: file.link_last}
        try:
            add = file.add(at_ms=self._clock_ns() // 1_000_000, data_change=True)
            moved = {**put.marks, CHAIN: file.link_last}
            outcome = self._table.commit((add,), moved=moved, marks=marks, files=(file.path,))
        except Determinate:
            self._table.store.remove_quietly(file.path)
            raise
        if isinstance(outcome, Conflict):
            self._table.store.remove_quietly(file.path)
            return outcome
        self._keep(file, Contents(rows, rows_of(rows)))
        return self._settled(outcome, (*snapshot.files, file))

    def _keep_settings(self, records: Sequence[R]) -> None:
        """Make the configurations durable that the records name."""
        if self._settings is None:
            return
        for named in {configuration_in(record) for record in records}:
            if named is not None:
                self._settings.keep(named)

    def _encoded(self, records: Sequence[R], chain: int) -> Table:
        at = self._clock_ns() // 1_000
        columns: dict[str, list[Any]] = {name: [] for name in ARROW_SCHEMA.names}
        for record in records:
            body = self._codec.encode(record)
            chain = link(chain, body)
            values = {
                "number": record.number,
                "kind": self._codec.kind_of(record),
                "key": record.key,
                "txn": txn_column(record),
                "token": token_column(record),
                "run_id": run_column(record),
                "at": at,
                "format": FORMAT,
                "link": chain,
                "body": body,
            }
            for name, value in values.items():
                columns[name].append(value)
        return table_of(columns)

    def _written(
        self, rows: Table, *, versions: tuple[int, int], link_before: int, version: int
    ) -> RecordFile:
        store = self._table.store
        try:
            return write_file(store, rows, versions=versions, link_before=link_before, version=version)
        except OSError as error:
            raise Determinate(
                f"no record was written to {self.uri}: {error}",
                hint="check the free space and the permissions, then retry",
            ) from error

    def _settled(self, outcome: CommitOutcome, files: tuple[RecordFile, ...]) -> CommitOutcome:
        """Do the housekeeping after a commit. The commit is valid whether or not this succeeds."""
        if isinstance(outcome, Committed):
            with housekeeping(self.uri):
                self._table.tidy_log()
                merge = choose_merge(files)
                if merge is not None:
                    self._merge(merge, outcome.version)
        return outcome

    def _merge(self, merge: Merge, committed: int) -> None:
        """Replace neighbouring files by one, if no commit has followed."""
        head = self._table.refresh()
        if head.version != committed:
            return
        contents = joined(verified(self._contents_of(file)) for file in merge.files)
        versions = (merge.files[0].version_first, merge.files[-1].version_last)
        before = merge.files[0].link_before
        merged = self._written(contents, versions=versions, link_before=before, version=committed + 1)
        at_ms = self._clock_ns() // 1_000_000
        actions = [
            *(file.remove(at_ms=at_ms) for file in merge.files),
            merged.add(at_ms=at_ms, data_change=False),
        ]
        try:
            outcome = self._table.commit(actions, moved={}, marks=head.marks, files=(merged.path,))
        except Determinate:
            self._table.store.remove_quietly(merged.path)
            raise
        if isinstance(outcome, Committed):
            self._table.tidy_log()
        else:
            self._table.store.remove_quietly(merged.path)

    def sweep(self) -> int:
        """Remove files that no version within the retention needs; return how many."""
        return self._table.sweep(retention_hours=RETENTION_HOURS)


ROWS_AT_ONCE: Final = 500


class Rows(Sequence[Row]):
    """The rows of a file, verified block by block."""

    def __init__(self, found: Table, *, link_before: int, table: str) -> None:
        self._found, self._link_before, self._table = found, link_before, table
        self._blocks: dict[int, tuple[Row, ...]] = {}

    def __len__(self) -> int:
        return int(self._found.num_rows)

    @overload
    def __getitem__(self, place: int) -> Row: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[Row]: ...

    def __getitem__(self, place: int | slice) -> Row | Sequence[Row]:
        if isinstance(place, slice):
            return [self[at] for at in range(*place.indices(len(self)))]
        if not 0 <= place < len(self):
            raise IndexError(place)
        block, at = divmod(place, ROWS_AT_ONCE)
        if block not in self._blocks:
            self._blocks[block] = self._read(block * ROWS_AT_ONCE)
        return self._blocks[block][at]

    def _read(self, first: int) -> tuple[Row, ...]:
        rows = rows_of(self._found.slice(first, min(ROWS_AT_ONCE, len(self) - first)))
        for row in rows:
            check_format(row.format, table=self._table)
        previous = self._found["link"][first - 1].as_py() if first else self._link_before
        check_chain(((row.number, row.link, row.body) for row in rows), previous=previous, table=self._table)
        return rows


@dataclass(frozen=True, eq=False)
class Contents:
    """A file's rows and their Arrow table, so that compaction copies them unchanged.

    Rows are found by number and by key without a scan, and each is decoded once: files never change."""

    table: Table
    rows: Sequence[Row]
    _decoded: dict[int, Any] = field(default_factory=dict)

    @cached_property
    def numbers(self) -> list[int]:
        return list(self.table["number"].to_pylist())

    @cached_property
    def kinds(self) -> list[str]:
        return list(self.table["kind"].to_pylist())

    @cached_property
    def _by_number(self) -> dict[str, tuple[list[int], list[int]]]:
        """Of each kind, the numbers in ascending order and the place of each."""
        numbers, found = self.numbers, {}
        for kind in dict.fromkeys(self.kinds):
            places = [place for place, one in enumerate(self.kinds) if one == kind]
            places.sort(key=numbers.__getitem__)
            found[kind] = [numbers[place] for place in places], places
        return found

    @cached_property
    def _by_key(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for place, key in enumerate(self.table["key"].to_pylist()):
            found.setdefault(key, []).append(place)
        return found

    def numbered(self, lower: int, upper: int, *, but: Container[str] = ()) -> Sequence[int]:
        """The places of the rows numbered in [lower, upper), in order, without those of some kinds: there may
        be very many claims before one binding, and nobody reads them all."""
        wanted = [one for kind, one in self._by_number.items() if kind not in but]
        return sorted(
            place
            for numbers, places in wanted
            for place in places[bisect_left(numbers, lower) : bisect_left(numbers, upper)]
        )

    def keyed(self, key: str) -> Sequence[int]:
        """The places of the rows with this key, in order."""
        return self._by_key.get(key, ())

    def record(self, place: int, codec: Codec[R], *, table: str) -> R:
        """The record in a place."""
        if place not in self._decoded:
            self._decoded[place] = codec.decode(self.rows[place], table=table)
        found: R = self._decoded[place]
        return found


def read_file(store: Store, file: RecordFile, *, table: str) -> Contents:
    """A file's contents, which agree with its name."""
    found = opened_file(store, file, table=table).select(list(COLUMNS)).combine_chunks()
    last = found["link"][-1].as_py() if found.num_rows else file.link_before
    if last != file.link_last or found.num_rows != file.rows:
        raise broken(table, f"the file {file.path} has {found.num_rows} rows that end at {last:016x}")
    return Contents(found, Rows(found, link_before=file.link_before, table=table))


def verified(contents: Contents) -> Table:
    """The Arrow table, once all rows and links are verified: before it is written again."""
    for _ in contents.rows:
        pass
    return contents.table


Found = tuple[Contents, int]
"""A row: its file's contents, and its place there."""
