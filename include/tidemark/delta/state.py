"""A state's Delta table: the log entry of a commit, decided purely, and the handle that commits it.

`decide_entry` neither reads nor writes; time and names are arguments. It first compares the change with the
head. A wrong row number would hide a row of another key, so every inconsistency is rejected: rows that a file
does not have, rows that are already hidden, and a row count that differs from the expected one.

The order of actions is: `commitInfo`, `protocol` and `metaData` if they change, `txn`, removes, adds, `cdc`.
A file whose vector changes is removed with its exact previous vector, and added again unchanged except for
the vector and `tightBounds`. A file without a visible row is only removed.

`StateTable.commit` takes a change that was computed on the given head: it reads the vectors of the touched
files at that head, decides the entry, makes the vector file durable and puts the entry. A lost race is a
returned value and leaves no vector file behind; the caller removes its own data files, or decides again.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final
from uuid import UUID

from tidemark.core.errors import Determinate, InvalidUsage, InvariantViolation
from tidemark.core.ledger import CommitOutcome, Committed, Conflict
from tidemark.core.publish import VERSION_NONE
from tidemark.delta.checkpoint import make_checkpoint
from tidemark.delta.commit import Action, add_action, commit_info, entry_bytes, put_entry, txn_actions
from tidemark.delta.deletion_vectors import Descriptor, Rows, name_for, pack, read_vectors, vector_path
from tidemark.delta.head import LiveFile, TableHead, read_head
from tidemark.delta.protocol import FEED, VECTORS, check_features, is_on
from tidemark.delta.store import Store


@dataclass(frozen=True, slots=True)
class NewFile:
    """A data file written for this commit; `path` as the log spells it, `stats` as JSON. `hidden` are rows
    that were deleted since it was written; they get a vector."""

    path: str
    bytes: int
    rows: int
    stats: str
    hidden: Rows = field(default_factory=Rows, hash=False)

    @property
    def live(self) -> int:
        """How many rows a reader sees."""
        return self.rows - len(self.hidden)

    def __post_init__(self) -> None:
        if self.hidden and (self.live < 1 or self.hidden.max() >= self.rows):
            raise InvariantViolation(
                f"{len(self.hidden)} rows up to {self.hidden.max()} are hidden in {self.path}, "
                f"which has {self.rows}",
                hint="remove the file instead",
            )
        if self.rows < 1 or json.loads(self.stats).get("numRecords") != self.rows:
            raise InvariantViolation(
                f"{self.path} has {self.rows} rows, and its statistics say {self.stats[:80]}",
                hint="leave the file out",
            )


@dataclass(frozen=True, slots=True)
class Change:
    """The effect of a commit on a table.

    `hidden` are rows to hide, by file; `removed` are files to remove. `carried` counts rows of removed files
    that the added files contain again, for tables without vectors. `rows_after` is the number of rows that a
    reader must see afterwards. `feed` are files of the change data feed, which list every change. `facts` go
    into `commitInfo`. A change that is not `of_rows` only rearranges files or changes metadata, or `expires`
    rows that no reader needs."""

    operation: str
    rows_after: int
    hidden: Mapping[str, Rows] = field(default_factory=dict)
    added: Sequence[NewFile] = ()
    removed: Sequence[str] = ()
    carried: int = 0
    feed: Sequence[NewFile] = ()
    txns: Mapping[str, int] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    protocol: Mapping[str, Any] | None = None
    metadata: Mapping[str, Any] | None = None
    of_rows: bool = True
    expires: bool = False

    @property
    def new_paths(self) -> list[str]:
        """The files that the commit names for the first time, without vectors."""
        return [file.path for file in (*self.added, *self.feed)]


@dataclass(frozen=True, slots=True)
class Entry:
    """The actions of one version, and the vector file that they name, which is written first."""

    version: int
    actions: tuple[Action, ...]
    vector_path: str = ""
    vector_bytes: bytes = b""


def decide_entry(
    head: TableHead,
    change: Change,
    *,
    table: str,
    attempt: str,
    now_ms: int,
    random: UUID,
    previous: Mapping[str, Rows] | None = None,
) -> Entry:
    """The entry that makes the change on this head. `previous` are the rows that the head's vectors hide in
    the files of `hidden`."""
    version = head.version + 1
    protocol, metadata = change.protocol or head.protocol, change.metadata or head.metadata
    check_features(table, protocol, metadata)
    if head.version == VERSION_NONE and (change.protocol is None or change.metadata is None):
        raise InvalidUsage(f"{table} is not there, and the commit has no schema to create it with")
    vectors = {
        path: _united(head, path, rows, (previous or {}).get(path)) for path, rows in change.hidden.items()
    }
    _check_rows(head, change, vectors, metadata, table=table)
    kept = {path: rows for path, rows in vectors.items() if len(rows) < head.files[path].rows}
    # Sorted paths: the same change gives the same entry.
    order = sorted(kept)
    hiding = [file for file in change.added if file.hidden]
    packed = [*(kept[path] for path in order), *(file.hidden for file in hiding)]
    data, found = pack(packed, name_for(version, random)) if packed else (b"", ())
    added = dict(zip((file.path for file in hiding), found[len(order) :], strict=True))
    gone = sorted({*vectors, *change.removed})
    actions: list[Action] = [
        commit_info(change.operation, attempt=attempt, at_ms=now_ms, **change.facts),
        *({"protocol": dict(one)} for one in (change.protocol,) if one is not None),
        *({"metaData": dict(one)} for one in (change.metadata,) if one is not None),
        *txn_actions(change.txns, at_ms=now_ms),
        *({"remove": _remove(head.files[path], change, now_ms)} for path in gone),
        *({"add": _hiding(head.files[path], one)} for path, one in zip(order, found, strict=False)),
        *(_add(one, added.get(one.path), change, now_ms) for one in change.added),
        *({"cdc": _cdc(one)} for one in change.feed),
    ]
    path = vector_path(name_for(version, random)) if packed else ""
    return Entry(version, tuple(actions), path, data)


def _united(head: TableHead, path: str, rows: Rows, before: Rows | None) -> Rows:
    """All hidden rows of a file after the commit."""
    file = head.files.get(path)
    if file is None:
        raise InvariantViolation(
            f"rows of {path} are to be removed, but version {head.version} does not have the file",
            hint="retry; if it stays so, run `tidemark rebuild PIPELINE SHARD`",
        )
    if file.hidden != (len(before) if before is not None else 0):
        raise InvariantViolation(
            f"{path} has a vector of {file.hidden} rows, but the commit was prepared without it",
            hint="read the vector of this version",
        )
    if not rows or rows.max() >= file.rows:
        raise InvariantViolation(
            f"row {rows.max() if rows else 'none'} of {path} is to be removed, but it has {file.rows} rows",
            hint="retry; if it stays so, run `tidemark rebuild PIPELINE SHARD`",
        )
    if before is None:
        return rows
    twice = rows.intersection_cardinality(before)
    if twice:
        raise InvariantViolation(
            f"{twice} rows of {path} are to be removed, but are hidden already",
            hint="retry; if it stays so, run `tidemark rebuild PIPELINE SHARD`",
        )
    return rows | before


def _check_rows(
    head: TableHead, change: Change, vectors: Mapping[str, Rows], metadata: Mapping[str, Any], *, table: str
) -> None:
    """Check that readers will see exactly the row count of the change."""
    configuration: Mapping[str, str] = metadata.get("configuration") or {}
    hiding = vectors or any(file.hidden for file in change.added)
    if hiding and not is_on(configuration, VECTORS):
        raise InvalidUsage(
            f"{table} has no deletion vectors: {VECTORS} is not true",
            hint="rewrite the touched files without the removed rows",
        )
    for path in change.removed:
        if path not in head.files or path in vectors:
            raise InvariantViolation(f"{path} is to be removed, but is not a file of version {head.version}")
    hidden = sum(len(rows) for rows in change.hidden.values())
    whole = set(change.removed)
    # Removed files need no statistics, so that a rebuild repairs a table whose rows can't be counted.
    kept = sum(file.live for path, file in head.files.items() if path not in whole)
    added = sum(file.live for file in change.added)
    after = kept - hidden + added
    wanted = change.rows_after if change.of_rows or change.expires else head.rows
    if after != change.rows_after or after != wanted:
        raise InvariantViolation(
            f"{table} would have {after} rows ({kept} - {hidden} + {added}) instead of {wanted}",
            hint="run `tidemark verify PIPELINE`; if it fails, `tidemark rebuild PIPELINE SHARD`",
        )
    _check_feed(head, change, hidden + added, is_fed=is_on(configuration, FEED), table=table)


def _check_feed(head: TableHead, change: Change, moved: int, *, is_fed: bool, table: str) -> None:
    """Check that the feed lists all changes or none. Without a feed, readers derive the changes from files
    and vectors, and would see carried rows as changes."""
    listed = sum(file.rows for file in change.feed)
    if not listed and not (change.carried and is_fed):
        return
    gone = sum(head.files[path].live for path in change.removed)
    needed = moved + gone - 2 * change.carried if change.of_rows and is_fed else 0
    if listed != needed:
        raise InvariantViolation(
            f"the change data feed of {table} lists {listed} changes instead of {needed}",
            hint="a commit with a change data feed lists all of its changes, inserted rows too",
        )


def _remove(file: LiveFile, change: Change, now_ms: int) -> Action:
    found: Action = {
        "path": file.path,
        "deletionTimestamp": now_ms,
        "dataChange": change.of_rows,
        "extendedFileMetadata": True,
        "partitionValues": dict(file.add.get("partitionValues") or {}),
        "size": file.bytes,
    }
    for name in ("tags", "deletionVector"):
        if file.add.get(name):
            found[name] = file.add[name]
    return found


def _hiding(file: LiveFile, vector: Descriptor) -> Action:
    """An existing file with a new vector, otherwise as the log has it."""
    stats = loosened(str(file.add["stats"]))
    return {**file.add, "dataChange": True, "stats": stats, "deletionVector": vector.action}


def _add(file: NewFile, vector: Descriptor | None, change: Change, now_ms: int) -> Action:
    stats = file.stats if vector is None else loosened(file.stats)
    found = add_action(file.path, size=file.bytes, at_ms=now_ms, data_change=change.of_rows, stats=stats)
    if vector is not None:
        found["add"]["deletionVector"] = vector.action
    return found


def _cdc(file: NewFile) -> Action:
    return {"path": file.path, "partitionValues": {}, "size": file.bytes, "dataChange": False}


def loosened(stats: str) -> str:
    """Set `tightBounds` to false in JSON statistics. All other text stays as it is, because a number that is
    parsed and written again may differ."""
    parse, at = json.JSONDecoder().raw_decode, stats.index("{") + 1
    while (start := _skip(stats, at)) < len(stats) and stats[start] == '"':
        name, at = parse(stats, start)
        begin = _skip(stats, _skip(stats, at) + 1)
        value, at = parse(stats, begin)
        if name == "tightBounds":
            return stats if value is False else stats[:begin] + "false" + stats[at:]
        at = _skip(stats, at)
        at += stats[at] == ","
    body = stats.rstrip()[:-1].rstrip()
    return body + ("" if body.endswith("{") else ",") + '"tightBounds":false}'


def _skip(text: str, at: int) -> int:
    """The position of the next character that is not white space."""
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at


# The table.
# Application transactions, which log clean-up keeps, unlike entries.
ROWS: Final = "tidemark.rows"
"""The last version whose commit changed rows."""
EXPIRED: Final = "tidemark.expired"
"""Of a tombstone table: the last publish whose too late tombstones are gone. A reader that starts from this
publish or a later one may read the version after it. A reader of an earlier one reads the version that its
publish has recorded, because a record in between may still need an expired tombstone."""


class StateTable:
    """One process's handle on a state. It caches the last head and the vectors of its files."""

    def __init__(
        self,
        uri: str,
        *,
        storage_options: Mapping[str, str] | None = None,
        clock_ns: Callable[[], int] = time.time_ns,
        random: Callable[[], uuid.UUID] = uuid.uuid4,
    ) -> None:
        self.options = dict(storage_options or {})
        self.store = Store(uri, self.options)
        self._clock_ns, self._random = clock_ns, random
        self._head = TableHead()
        self._vectors: dict[str, tuple[object, Rows]] = {}

    def head(self) -> TableHead:
        """Read the newest version; a missing table has version -1."""
        self._head = read_head(self.store, self._head)
        self._vectors = {path: known for path, known in self._vectors.items() if path in self._head.files}
        return self._head

    @property
    def known(self) -> TableHead:
        """The newest version that this handle has read."""
        return self._head

    def hidden(self, head: TableHead, paths: Iterable[str]) -> dict[str, Rows]:
        """The hidden rows of these files at a head; files without a vector are left out."""
        found: dict[str, Rows] = {}
        wanted = {}
        for path in paths:
            vector = head.files[path].vector if path in head.files else None
            if vector is None:
                continue
            known = self._vectors.get(path)
            if known is not None and known[0] == vector:
                found[path] = known[1]
            else:
                wanted[path] = vector
        read = read_vectors(self.store, wanted)
        self._vectors |= {path: (wanted[path], rows) for path, rows in read.items()}
        return found | read

    def commit(self, head: TableHead, change: Change) -> CommitOutcome:
        """Commit the next version, if and only if the table is still at `head`. The bytes of the change's own
        files must already be on disk."""
        if change.of_rows:
            change = replace(change, txns={**change.txns, ROWS: head.version + 1})
        entry = decide_entry(
            head,
            change,
            table=self.store.uri,
            attempt=self._random().hex,
            now_ms=self._clock_ns() // 1_000_000,
            random=self._random(),
            previous=self.hidden(head, change.hidden),
        )
        try:
            outcome = self._put(entry, change)
        except Determinate:
            self._forget(entry)
            raise
        if isinstance(outcome, Conflict):
            # Entries in between may have been cleaned up; then the log can't be followed from the old head.
            self._head = TableHead()
            self._forget(entry)
        elif isinstance(outcome, Committed) and head is self._head:
            size = len(entry_bytes(entry.actions))
            self._head = head.after(entry.actions, version=entry.version, table=self.store.uri, size=size)
        return outcome

    def tidy_log(self) -> None:
        """Write a checkpoint if one is due, and delete log entries past their retention. Call it after a
        commit; it is never part of one."""
        if not self._head.checkpoint_due:
            return
        size = make_checkpoint(self.store, self.options, now_ms=self._clock_ns() // 1_000_000)
        self._head = replace(self._head, checkpoint_bytes=size, entries_bytes=0)

    def _put(self, entry: Entry, change: Change) -> CommitOutcome:
        named = list(change.new_paths)
        if entry.vector_path:
            try:
                self.store.put_synced(entry.vector_path, entry.vector_bytes)
            except OSError as error:
                raise Determinate(
                    f"the vectors for version {entry.version} of {self.store.uri} were not written: {error}",
                    hint="check the free space and the permissions, then retry",
                ) from error
            named.append(entry.vector_path)
        return put_entry(
            self.store, entry.version, entry.actions, files=named, seconds=lambda: self._clock_ns() / 1e9
        )

    def _forget(self, entry: Entry) -> None:
        """Remove the vector file of an entry that was not committed and never will be."""
        if entry.vector_path:
            self.store.remove_quietly(entry.vector_path)
