"""A table's head: the content of its newest version, read from the log without Spark and checked.

A head is loaded from the last checkpoint and the entries after it, and then follows the log entry by entry.
By the protocol the last action for a file counts, where a file is its path *and* its deletion vector. Actions
are kept as the log has them, because a commit must repeat some of them exactly.

Removed files are not part of a head. A checkpoint has as many of them as there were publishes within the
retention, and only vacuum needs them (`read_history`).

No writer leaves an entry that is empty, truncated or changed: it means that a machine lost power before the
entry was synced. Other readers treat an empty entry as an empty commit. Here reads and writes stop at such an
entry with an `InvariantViolation`, also where it is the newest: a table that went on above it would lose its
content silently. A recovery may set such newest entries aside (`set_aside`). They are moved, not deleted,
into a folder of the log that no Delta reader looks into. The table then ends at its last intact entry, and
its losses are found as for any table that was set back. A damaged entry with intact ones after it stays:
their changes can't be interpreted without it.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final
from urllib.parse import unquote

from tidemark.core.errors import Determinate, InvalidUsage, InvariantViolation
from tidemark.core.ids import is_name
from tidemark.core.publish import VERSION_NONE
from tidemark.delta.checkpoint import EVERY_FIELD, HEAD_FIELDS, CheckpointContent, read_checkpoint
from tidemark.delta.commit import LOG, Action, entry_actions, entry_path, newest_version, read_entry
from tidemark.delta.deletion_vectors import Descriptor
from tidemark.delta.store import Store

ENTRY_BYTES_MIN: Final = 8 * 1024
"""The minimum weight of an entry: opening the table needs one request per entry, which costs as much as
reading this many bytes."""
CHECKPOINT_BYTES_MIN: Final = 512 * 1024
OPENINGS_MAX: Final = 3


@dataclass(frozen=True)
class LiveFile:
    """A data file of a version: its `add` action as the log has it."""

    add: Mapping[str, Any]

    @property
    def path(self) -> str:
        """The path as the log spells it (URL-encoded)."""
        return str(self.add["path"])

    @property
    def location(self) -> str:
        """The decoded path, relative to the table."""
        return unquote(self.path)

    @property
    def locations(self) -> list[str]:
        """The decoded paths of the file and of its vector's file, if it has one."""
        vector = self.vector.path if self.vector is not None else None
        return [self.location, *([vector] if vector is not None else [])]

    @property
    def bytes(self) -> int:
        return int(self.add["size"])

    @cached_property
    def vector(self) -> Descriptor | None:
        return Descriptor.of(self.add)

    @cached_property
    def stats(self) -> Mapping[str, Any]:
        """The statistics in the log."""
        found: Mapping[str, Any] = json.loads(self.add.get("stats") or "{}")
        return found

    @cached_property
    def rows(self) -> int:
        """The number of rows, including hidden ones."""
        counted = self.stats.get("numRecords")
        if counted is None:
            raise InvalidUsage(
                f"{self.path} has no statistics in the log, so its rows can't be counted",
                hint="run `tidemark rebuild PIPELINE SHARD`",
            )
        return int(counted)

    @property
    def hidden(self) -> int:
        return self.vector.cardinality if self.vector is not None else 0

    @property
    def live(self) -> int:
        """How many rows a reader sees."""
        return self.rows - self.hidden


@dataclass(frozen=True, slots=True)
class RemovedFile:
    """A removed file, or a removed combination of a file and its vector."""

    path: str
    vector: Descriptor | None
    at_ms: int

    @property
    def location(self) -> str:
        return unquote(self.path)


@dataclass(frozen=True)
class TableHead:
    """The content of a table version; `files` by path as the log spells it. `checkpoint_bytes` and
    `entries_bytes` are the sizes that it was read from."""

    version: int = VERSION_NONE
    protocol: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    txns: Mapping[str, int] = field(default_factory=dict)
    files: Mapping[str, LiveFile] = field(default_factory=dict)
    checkpoint_bytes: int = field(default=0, compare=False)
    entries_bytes: int = field(default=0, compare=False)

    @property
    def checkpoint_due(self) -> bool:
        """Whether the entries are larger than the checkpoint before them. This bounds the bytes written for
        checkpoints, and the bytes read to open the table, by the bytes written for entries."""
        return self.entries_bytes > max(self.checkpoint_bytes, CHECKPOINT_BYTES_MIN)

    @property
    def configuration(self) -> Mapping[str, str]:
        return self.metadata.get("configuration") or {}

    @property
    def rows(self) -> int:
        """How many rows a reader sees."""
        return sum(file.live for file in self.files.values())

    def after(
        self, actions: Iterable[Action], *, version: int, table: str = "the table", size: int = 0
    ) -> TableHead:
        """The head after one more entry of `size` bytes."""
        lines = list(actions)
        files, txns = dict(self.files), dict(self.txns)
        protocol, metadata = self.protocol, self.metadata
        for line in lines:
            if "txn" in line:
                txns[line["txn"]["appId"]] = int(line["txn"]["version"])
                continue
            protocol, metadata = line.get("protocol", protocol), line.get("metaData", metadata)
            if "remove" in line:
                path, vector = str(line["remove"]["path"]), Descriptor.of(line["remove"])
                if path in files and files[path].vector == vector:
                    del files[path]
        # Apply a commit's removes first: it may add a file again with another deletion vector.
        for add in (line["add"] for line in lines if "add" in line):
            file = LiveFile(add)
            current = files.get(file.path)
            if current is not None and current.vector != file.vector:
                raise InvariantViolation(
                    f"{file.path} is in version {version} of {table} twice, with two deletion vectors",
                    hint="another writer changed the state; run `tidemark rebuild PIPELINE SHARD`",
                )
            files[file.path] = file
        weight = self.entries_bytes + max(size, ENTRY_BYTES_MIN)
        return TableHead(version, protocol, metadata, txns, files, self.checkpoint_bytes, weight)


@dataclass(frozen=True, slots=True)
class History:
    """A head, and the files removed before it that the log still lists."""

    head: TableHead
    removed: Sequence[RemovedFile]


def read_head(store: Store, head: TableHead | None = None) -> TableHead:
    """Read the newest head, continuing from the given one. A missing table has version -1."""
    if head is not None and head.version != VERSION_NONE:
        return _followed(store, head)
    for _ in range(OPENINGS_MAX):
        found = _followed(store, open_head(store))
        # No later entry may exist. If one does, clean-up has deleted an entry in between: open the table
        # again.
        if newest_version(store, found.version + 1) <= found.version:
            return found
    raise InvariantViolation(
        f"the log of {store.uri} has later entries than {found.version}, and not {found.version + 1}",
        hint="an entry is lost; restore the table's log from a backup",
    )


def _followed(store: Store, head: TableHead) -> TableHead:
    for _, after in entries_after(store, head):
        head = after
    return head


def read_history(store: Store) -> History:
    """Read the newest head and the removed files that the log still lists."""
    content = read_checkpoint(store, None, EVERY_FIELD)
    head = _opened(store, content)
    removed: dict[tuple[str, Descriptor | None], RemovedFile] = {}
    _take_out(content.actions, removed)
    for entry, after in entries_after(store, head):
        head = after
        _take_out(entry, removed)
    return History(head, tuple(removed.values()))


def _take_out(actions: Sequence[Action], removed: dict[tuple[str, Descriptor | None], RemovedFile]) -> None:
    """Record an entry's removed files, and drop those that it adds again."""
    for remove in (line["remove"] for line in actions if "remove" in line):
        path, vector = str(remove["path"]), Descriptor.of(remove)
        removed[path, vector] = RemovedFile(path, vector, int(remove.get("deletionTimestamp") or 0))
    for add in (line["add"] for line in actions if "add" in line):
        removed.pop((str(add["path"]), Descriptor.of(add)), None)


def entries_after(store: Store, head: TableHead) -> Iterator[tuple[list[Action], TableHead]]:
    """Yield the entries after a head, each with the head that results."""
    while True:
        version = head.version + 1
        try:
            data = read_entry(store, version)
        except FileNotFoundError:
            return
        except OSError as error:
            raise Determinate(f"the log of {store.uri} can't be read: {error}", hint="retry") from error
        actions = entry_actions(data, version, store.uri)
        try:
            head = head.after(actions, version=version, table=store.uri, size=len(data))
        except (KeyError, TypeError, ValueError) as error:
            raise InvariantViolation(
                f"entry {version} of the log of {store.uri} has an invalid action: {error!r}",
                hint="restore the table's log from a backup",
            ) from error
        yield actions, head


def open_head(store: Store, *, until: int | None = None) -> TableHead:
    """The head at the newest checkpoint, or at the newest one up to a version; version -1 if there is none.

    If the log no longer reaches back to `until`, the oldest checkpoint, which is later, is used."""
    return _opened(store, read_checkpoint(store, until, HEAD_FIELDS))


def _opened(store: Store, content: CheckpointContent) -> TableHead:
    found = TableHead(txns=content.txns).after(content.actions, version=content.version, table=store.uri)
    return replace(found, checkpoint_bytes=content.bytes, entries_bytes=0)


CONTROL: Final = ("history", "checkpoints", "attempts", "journal", "leases", "cuts")
SHARD: Final = ("log", "publishes", "state", "tombstones")
SET_ASIDE: Final = "_lost"


@dataclass(frozen=True, slots=True)
class DamagedEntry:
    """A damaged newest entry of a table's log, and the reason."""

    table: str
    version: int
    why: str


def tables_below(root: str, storage_options: Mapping[str, str] | None = None) -> Iterator[str]:
    """The tables that a pipeline may have, by their paths below its root."""
    yield from (f"_control/{name}" for name in CONTROL)
    for shard in Store(root, storage_options or {}).folders():
        if is_name(shard):
            yield from (f"{shard}/{name}" for name in SHARD)


def damaged_entries(root: str, storage_options: Mapping[str, str] | None = None) -> list[DamagedEntry]:
    """The newest entries of a pipeline's tables that are damaged, each table's newest first."""
    found: list[DamagedEntry] = []
    for table in tables_below(root, storage_options):
        store = Store(f"{root}/{table}", storage_options or {})
        whole = open_head(store).version
        for version in range(newest_version(store, whole + 1), whole, -1):
            why = _why(store, version)
            if not why:
                break
            found.append(DamagedEntry(table, version, why))
    return found


def _why(store: Store, version: int) -> str:
    """Why an entry is damaged; empty where it is intact, or not there."""
    try:
        entry_actions(store.get(entry_path(version)), version, store.uri)
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise Determinate(f"the log of {store.uri} can't be read: {error}", hint="retry") from error
    except InvariantViolation as error:
        return str(error.__cause__ or error.fact)
    return ""


def set_aside(
    root: str, damaged: list[DamagedEntry], storage_options: Mapping[str, str] | None = None
) -> None:
    """Move damaged entries aside, each table's newest first. An entry that is gone or intact by now is no
    error."""
    for one in damaged:
        store = Store(f"{root}/{one.table}", storage_options or {})
        if not _why(store, one.version):
            continue
        target = f"{LOG}/{SET_ASIDE}/{one.version:020}-{uuid.uuid4().hex}.json"
        try:
            store.set_aside(entry_path(one.version), target)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise Determinate(
                f"entry {one.version} of the log of {store.uri} can't be set aside: {error}",
                hint="check the store and its permissions, then retry",
            ) from error
