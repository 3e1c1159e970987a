"""The checked head of a Delta table: what its newest version has, read from the log without an engine.

It comes from the last checkpoint and the entries after it, and follows the log entry by entry from then on.
By the protocol the last word on a file counts, where a file is its path *and* its deletion vector. Actions
are kept as the log has them, because whoever commits has to say some of them again, word for word.

An entry that is empty or can't be read is no entry that anyone wrote: a machine lost power before it was
synced. Other readers take an empty one for a commit that did nothing; here it stops everything.
"""

from __future__ import annotations

import io
import json
import logging
import re
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final
from urllib.parse import unquote

from arro3.io import read_parquet

from tidemark.core.errors import Determinate, InvalidUsage, InvariantViolation
from tidemark.core.publish import VERSION_NONE
from tidemark.delta.commit import CHECKSUM, LOG, Action, checksum_of, entry_actions, entry_path
from tidemark.delta.store import Store
from tidemark.delta.vectors import Descriptor

logger = logging.getLogger(__name__)

_CHECKPOINT_FIELDS: Final = {
    "protocol": ("minReaderVersion", "minWriterVersion", "readerFeatures", "writerFeatures"),
    "metaData": (
        "id", "name", "description", "format", "schemaString", "partitionColumns", "configuration",
        "createdTime",
    ),
    "txn": ("appId", "version", "lastUpdated"),
    "remove": (
        "path", "deletionTimestamp", "dataChange", "extendedFileMetadata", "partitionValues", "size",
        "deletionVector",
    ),
    "add": (
        "path", "partitionValues", "size", "modificationTime", "dataChange", "stats", "tags",
        "deletionVector", "baseRowId", "defaultRowCommitVersion", "clusteringProvider",
    ),
}  # fmt: skip
_CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint\.(?:\d{10}\.(\d{10})\.)?parquet\Z")
LAST_CHECKPOINT: Final = "_last_checkpoint"
_PARQUET: Final = b"PAR1"
_ENTRY: Final = re.compile(r"\d{20}\.json\Z")
_DAMAGE: Final = (ValueError, KeyError, TypeError, InvariantViolation)
_MAPS: Final = ("partitionValues", "tags", "configuration", "options")


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
    """What a table's version has; `files` by the log's spelling of their paths."""

    version: int = VERSION_NONE
    protocol: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    txns: Mapping[str, int] = field(default_factory=dict)
    files: Mapping[str, LiveFile] = field(default_factory=dict)
    removed: Mapping[tuple[str, Descriptor | None], RemovedFile] = field(default_factory=dict)

    @property
    def configuration(self) -> Mapping[str, str]:
        return self.metadata.get("configuration") or {}

    @property
    def rows(self) -> int:
        """How many rows a reader sees."""
        return sum(file.live for file in self.files.values())

    def after(self, actions: Iterable[Action], *, version: int, table: str = "the table") -> TableHead:
        """The head after one entry, or after a checkpoint's actions."""
        lines = list(actions)
        files, removed, txns = dict(self.files), dict(self.removed), dict(self.txns)
        protocol, metadata = self.protocol, self.metadata
        for line in lines:
            protocol, metadata = line.get("protocol", protocol), line.get("metaData", metadata)
            if "txn" in line:
                txns[line["txn"]["appId"]] = int(line["txn"]["version"])
            if "remove" in line:
                _take_out(line["remove"], files, removed)
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
            removed.pop((file.path, file.vector), None)
        return TableHead(version, protocol, metadata, txns, files, removed)


def _take_out(
    remove: Mapping[str, Any],
    files: dict[str, LiveFile],
    removed: dict[tuple[str, Descriptor | None], RemovedFile],
) -> None:
    path, vector = str(remove["path"]), Descriptor.of(remove)
    if path in files and files[path].vector == vector:
        del files[path]
    removed[path, vector] = RemovedFile(path, vector, int(remove.get("deletionTimestamp") or 0))


def read_head(store: Store, head: TableHead | None = None) -> TableHead:
    """The newest head, on from the given one. A table that is not there has version -1."""
    found = open_head(store) if head is None or head.version == VERSION_NONE else head
    for _, after in entries_after(store, found):
        found = after
    return found


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
            head = head.after(actions, version=version, table=store.uri)
        except (KeyError, TypeError, ValueError) as error:
            raise InvariantViolation(
                f"entry {version} of the log of {store.uri} has an action that is none: {error!r}",
                hint="restore the table's log from a backup",
            ) from error
        yield actions, head


def open_head(store: Store, *, until: int | None = None) -> TableHead:
    """The head of the newest checkpoint, or of the newest one up to a version; version -1 where there is no
    checkpoint, and the log begins with its first entry.

    A log that does not reach back to the version any more is opened at its oldest checkpoint, after it. A
    checkpoint only repeats what entries say: one that is damaged is passed over for an older one."""
    damaged: list[str] = []
    try:
        for version, parts, checksum in _candidates(store, until):
            try:
                return _at_checkpoint(store, version, parts, checksum)
            except FileNotFoundError:
                continue  # Cleaned away meanwhile: there is a newer one.
            except _DAMAGE as error:
                damaged.append(f"checkpoint {version} is damaged: {error}")
                logger.warning("%s: %s", store.uri, damaged[-1])
        first = next((name for name in store.names_after(LOG, "") if _ENTRY.match(name)), None)
    except OSError as error:
        raise Determinate(f"the checkpoints of {store.uri} can't be read: {error}", hint="retry") from error
    if first is not None and int(first[:20]) > 0:
        raise InvariantViolation(
            f"the log of {store.uri} begins with {first}, and no checkpoint that can be read has what was"
            f" before{': ' if damaged else ''}{'; '.join(damaged)}",
            hint="restore the table's log from a backup",
        )
    return TableHead()


def mend_checkpoints(store: Store) -> None:
    """Remove a newest checkpoint that can't be read, so that other readers don't stop at it: all that it said
    is said by what is before and after it, or nobody could have opened the table."""
    for version, parts, checksum in _candidates(store, None):
        try:
            _at_checkpoint(store, version, parts, checksum)
        except FileNotFoundError:
            continue
        except _DAMAGE:
            store.remove_quietly(f"{LOG}/{LAST_CHECKPOINT}")
            for name in store.names_after(LOG, f"{version:020}.checkpoint"):
                if name.startswith(f"{version:020}.checkpoint"):
                    store.remove_quietly(f"{LOG}/{name}")
            continue
        return


def _at_checkpoint(store: Store, version: int, parts: int, checksum: str = "") -> TableHead:
    name = f"{LOG}/{version:020}.checkpoint"
    names = [f"{name}.{at:010}.{parts:010}.parquet" for at in range(1, parts + 1)] or [f"{name}.parquet"]
    found = TableHead()
    for one in names:
        data = store.get(one)
        found = found.after(_in_checkpoint(data, checksum), version=version, table=store.uri)
    if not found.metadata or not found.protocol:
        raise ValueError("it does not say what table it is of")
    return replace(found, version=version)


def _candidates(store: Store, until: int | None) -> Iterator[tuple[int, int, str]]:
    """Checkpoints to open a log at, the best one first: the version, the number of parts (0 for one that is
    whole), the checksum where it is known. The pointer is a hint: behind it the log is looked through."""
    hint: tuple[int, int, str] | None = None
    with suppress(FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        pointer = json.loads(store.get(f"{LOG}/{LAST_CHECKPOINT}"))
        hint = int(pointer["version"]), int(pointer.get("parts") or 0), str(pointer.get(CHECKSUM) or "")
        if until is None or hint[0] <= until:
            yield hint
    found = sorted(((*one, "") for one in _checkpoints(store) if not hint or one != hint[:2]), reverse=True)
    yield from (one for one in found if until is None or one[0] <= until)
    later = sorted(one for one in (*found, *([hint] if hint else ())) if until is not None and one[0] > until)
    if later and not store.has(entry_path(0)):
        # Entries are cleaned away from the first one on.
        yield from later


def point_to(store: Store, version: int) -> list[str]:
    """Have the pointer say the checksum of a checkpoint that was just made; the files of both."""
    name, pointer = f"{LOG}/{version:020}.checkpoint.parquet", f"{LOG}/{LAST_CHECKPOINT}"
    with suppress(FileNotFoundError, ValueError, KeyError):
        said = json.loads(store.get(pointer))
        if int(said["version"]) == version and not said.get("parts"):
            told = json.dumps({**said, CHECKSUM: checksum_of(store.get(name))}).encode()
            attempt = f"{pointer}_{uuid.uuid4().hex}.tmp"
            store.put_synced(attempt, told)
            store.move(attempt, pointer)
    return [name, pointer]


def _checkpoints(store: Store) -> list[tuple[int, int]]:
    """The checkpoints that are there with all their parts."""
    names = (_CHECKPOINT.match(name) for name in store.names_after(LOG, ""))
    parts = Counter((int(one[1]), int(one[2] or 0)) for one in names if one)
    return [one for one, count in parts.items() if count == max(one[1], 1)]


def _in_checkpoint(data: bytes, checksum: str) -> Iterator[Action]:
    """The actions of a checkpoint. pyarrow finds out what is wrong with a damaged one, but loading it takes
    longer than a run with nothing to do; arro3 may die of one, and reads what is known to be whole."""
    if len(data) < 12 or not data.startswith(_PARQUET) or not data.endswith(_PARQUET):
        raise ValueError(f"its {len(data)} bytes are no whole Parquet file")
    if checksum and checksum_of(data) != checksum:
        raise ValueError("it does not agree with its checksum")
    columns = _columns_by_arro3(data) if checksum else _columns_by_pyarrow(data)
    for kind, names in _CHECKPOINT_FIELDS.items():
        for row in columns.get(kind, ()):
            if row is not None and any(value is not None for value in row.values()):
                yield {kind: _without_nulls({name: row[name] for name in names if name in row})}


def _columns_by_arro3(data: bytes) -> dict[str, list[Any]]:
    table = read_parquet(io.BytesIO(data)).read_all()
    return {kind: list(table[kind].to_pylist()) for kind in _CHECKPOINT_FIELDS if kind in table.column_names}


def _columns_by_pyarrow(data: bytes) -> dict[str, list[Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(pa.BufferReader(data))
        schema = file.schema_arrow
        # The parsed statistics are large, and are in the text as well.
        columns = [
            f"{kind}.{name}"
            for kind, names in _CHECKPOINT_FIELDS.items()
            if kind in schema.names
            for name in names
            if schema.field(kind).type.get_field_index(name) >= 0
        ]
        table = file.read(columns=columns, use_threads=False)
    except (OSError, pa.ArrowException) as error:
        raise ValueError(str(error)) from error
    return {
        kind: column.filter(column.is_valid()).to_pylist()
        for kind, column in zip(table.column_names, table.columns, strict=True)
    }


def _without_nulls(row: Mapping[str, Any]) -> Action:
    """A checkpoint's row as an action: what the log would not say is left out, maps are objects."""
    found: Action = {}
    for name, value in row.items():
        if value is None:
            continue
        if name in _MAPS:
            found[name] = dict(value)
        else:
            found[name] = _without_nulls(value) if isinstance(value, dict) else value
    return found
