"""The checked head of a Delta table: what its newest version has, read from the log without an engine.

It comes from the last checkpoint and the entries after it, and follows the log entry by entry from then on.
By the protocol the last word on a file counts, where a file is its path *and* its deletion vector. Actions
are kept as the log has them, because whoever commits has to say some of them again, word for word.

What entries have taken out is no part of a head. A checkpoint has as many of those as there were publishes
within the retention, and only clean-up needs them (`read_history`).

An entry that is empty or can't be read is no entry that anyone wrote: a machine lost power before it was
synced. Other readers take an empty one for a commit that did nothing; here it stops everything.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final
from urllib.parse import unquote

from tidemark.core.errors import Determinate, InvalidUsage, InvariantViolation
from tidemark.core.publish import VERSION_NONE
from tidemark.delta.checkpoint import EVERY_FIELD, HEAD_FIELDS, read_checkpoint
from tidemark.delta.commit import Action, entry_actions, entry_path, newest_version
from tidemark.delta.deletion_vectors import Descriptor
from tidemark.delta.store import Store

ENTRY_BYTES_MIN: Final = 8 * 1024
"""An entry costs whoever opens the table a request, as much as so many bytes."""
CHECKPOINT_BYTES_MIN: Final = 512 * 1024
OPENINGS_MAX: Final = 3


@dataclass(frozen=True)
class LiveFile:
    """A data file of the newest version: its `add`, as the log has it."""

    add: Mapping[str, Any]

    @property
    def path(self) -> str:
        """As the log spells it."""
        return str(self.add["path"])

    @property
    def location(self) -> str:
        """Where it lies below the table."""
        return unquote(self.path)

    @property
    def locations(self) -> list[str]:
        """Where it lies below the table, and the file of its vector."""
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
        """What the log says of its rows."""
        found: Mapping[str, Any] = json.loads(self.add.get("stats") or "{}")
        return found

    @cached_property
    def rows(self) -> int:
        """How many rows it has, hidden ones too."""
        counted = self.stats.get("numRecords")
        if counted is None:
            raise InvalidUsage(
                f"{self.path} has no statistics in the log, so its rows can't be counted",
                hint="rebuild the state, or have its statistics computed",
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
    """What some entry has taken out: a file, or a file with one of its vectors."""

    path: str
    vector: Descriptor | None
    at_ms: int

    @property
    def location(self) -> str:
        return unquote(self.path)


@dataclass(frozen=True)
class TableHead:
    """What a table's version has; `files` by the log's spelling of their paths. `checkpoint_bytes` and
    `entries_bytes` are what it was read from."""

    version: int = VERSION_NONE
    protocol: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    txns: Mapping[str, int] = field(default_factory=dict)
    files: Mapping[str, LiveFile] = field(default_factory=dict)
    checkpoint_bytes: int = field(default=0, compare=False)
    entries_bytes: int = field(default=0, compare=False)

    @property
    def checkpoint_due(self) -> bool:
        """Whether the entries weigh more than the checkpoint before them. So what is written of checkpoints
        is no more than what is written of entries, and neither is what has to be read to open the table."""
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
        """The head after one entry of so many bytes."""
        lines = list(actions)
        files, txns = dict(self.files), dict(self.txns)
        protocol, metadata = self.protocol, self.metadata
        for line in lines:
            protocol, metadata = line.get("protocol", protocol), line.get("metaData", metadata)
            if "txn" in line:
                txns[line["txn"]["appId"]] = int(line["txn"]["version"])
            if "remove" in line:
                path, vector = str(line["remove"]["path"]), Descriptor.of(line["remove"])
                if path in files and files[path].vector == vector:
                    del files[path]
        # A commit's removals come first: it may put a file back with another deletion vector.
        for add in (line["add"] for line in lines if "add" in line):
            file = LiveFile(add)
            current = files.get(file.path)
            if current is not None and current.vector != file.vector:
                raise InvariantViolation(
                    f"{file.path} is in version {version} of {table} twice, with two deletion vectors",
                    hint="two writers didn't know of each other; rebuild the state from its log",
                )
            files[file.path] = file
        weight = self.entries_bytes + max(size, ENTRY_BYTES_MIN)
        return TableHead(version, protocol, metadata, txns, files, self.checkpoint_bytes, weight)


@dataclass(frozen=True, slots=True)
class History:
    """A head, and what was taken out up to it and is still remembered."""

    head: TableHead
    removed: Sequence[RemovedFile]


def read_head(store: Store, head: TableHead | None = None) -> TableHead:
    """The newest head, on from the given one. A table that is not there has version -1."""
    if head is not None and head.version != VERSION_NONE:
        return _followed(store, head)
    for _ in range(OPENINGS_MAX):
        found = _followed(store, open_head(store))
        # Nothing may come after it: entries are cleaned away from the first one on, so one is missing.
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
    """The newest head, and what entries have taken out, as far as the log remembers."""
    version, actions, size = read_checkpoint(store, None, EVERY_FIELD)
    head = _opened(store, version, actions, size)
    removed: dict[tuple[str, Descriptor | None], RemovedFile] = {}
    _take_out(actions, removed)
    for entry, after in entries_after(store, head):
        head = after
        _take_out(entry, removed)
    return History(head, tuple(removed.values()))


def _take_out(actions: Sequence[Action], removed: dict[tuple[str, Descriptor | None], RemovedFile]) -> None:
    """Note what an entry takes out; what it puts back is no longer out."""
    for remove in (line["remove"] for line in actions if "remove" in line):
        path, vector = str(remove["path"]), Descriptor.of(remove)
        removed[path, vector] = RemovedFile(path, vector, int(remove.get("deletionTimestamp") or 0))
    for add in (line["add"] for line in actions if "add" in line):
        removed.pop((str(add["path"]), Descriptor.of(add)), None)


def entries_after(store: Store, head: TableHead) -> Iterator[tuple[list[Action], TableHead]]:
    """The entries that follow a head, each with the head after it."""
    while True:
        version = head.version + 1
        try:
            data = store.get(entry_path(version))
        except FileNotFoundError:
            return
        except OSError as error:
            raise Determinate(f"the log of {store.uri} can't be read: {error}", hint="retry") from error
        actions = entry_actions(data, version, store.uri)
        try:
            head = head.after(actions, version=version, table=store.uri, size=len(data))
        except (KeyError, TypeError, ValueError) as error:
            raise InvariantViolation(
                f"entry {version} of the log of {store.uri} has an action that is none: {error!r}",
                hint="restore the table's log from a backup",
            ) from error
        yield actions, head


def open_head(store: Store, *, until: int | None = None) -> TableHead:
    """The head of the newest checkpoint, or of the newest one up to a version; version -1 where there is no
    checkpoint.

    A log that does not reach back to the version any more is opened at its oldest checkpoint, after it."""
    return _opened(store, *read_checkpoint(store, until, HEAD_FIELDS))


def _opened(store: Store, version: int, actions: Sequence[Action], size: int) -> TableHead:
    found = TableHead().after(actions, version=version, table=store.uri)
    return replace(found, checkpoint_bytes=size, entries_bytes=0)
