"""Checkpoints of a Delta table's log: find, read, write and repair them.

delta-rs writes the checkpoints. A checkpoint repeats the content of the log entries before it, so a reader
need not read them all. To open a head, a checkpoint is read without its `remove` actions, which are most of
it.

The pointer `_last_checkpoint` holds the checkpoint's checksum, so damage is detected before parsing.
"""

from __future__ import annotations

import io
import json
import logging
import re
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from arro3.core import struct_field
from arro3.io import read_parquet
from deltalake import DeltaTable

from tidemark.core.errors import Determinate, InvariantViolation
from tidemark.core.publish import VERSION_NONE
from tidemark.delta.commit import CHECKSUM, ENTRY, LOG, Action, checksum_of, entry_path
from tidemark.delta.protocol import log_retention_ms
from tidemark.delta.store import Store

logger = logging.getLogger(__name__)

TXN: Final = "txn"
_TXN_FIELDS: Final = ("appId", "version")
EVERY_FIELD: Final = {
    "protocol": ("minReaderVersion", "minWriterVersion", "readerFeatures", "writerFeatures"),
    "metaData": (
        "id", "name", "description", "format", "schemaString", "partitionColumns", "configuration",
        "createdTime",
    ),
    TXN: _TXN_FIELDS,
    "remove": (
        "path", "deletionTimestamp", "dataChange", "extendedFileMetadata", "partitionValues", "size",
        "deletionVector",
    ),
    "add": (
        "path", "partitionValues", "size", "modificationTime", "dataChange", "stats", "tags",
        "deletionVector", "baseRowId", "defaultRowCommitVersion", "clusteringProvider",
    ),
}  # fmt: skip
HEAD_FIELDS: Final = {kind: names for kind, names in EVERY_FIELD.items() if kind != "remove"}
_CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint\.(?:\d{10}\.(\d{10})\.)?parquet\Z")
_MAPS: Final = ("partitionValues", "tags", "configuration", "options")
_NUMBERED: Final = re.compile(r"(\d{20})\.(?:json|checkpoint\.|crc)")
_PARQUET: Final = b"PAR1"
PRESENT_ROWS_MIN: Final = 64
_LAST: Final = "_last_checkpoint"
_DAMAGE: Final = (ValueError, KeyError, TypeError)


@dataclass(frozen=True, slots=True, order=True)
class Checkpoint:
    """A checkpoint that a log can be opened at. `parts` is 0 for a single file; `checksum` is empty if
    unknown."""

    version: int
    parts: int = 0
    checksum: str = ""

    @property
    def names(self) -> list[str]:
        name = f"{LOG}/{self.version:020}.checkpoint"
        parts = (f"{name}.{at:010}.{self.parts:010}.parquet" for at in range(1, self.parts + 1))
        return list(parts) or [f"{name}.parquet"]


@dataclass(slots=True)
class CheckpointContent:
    """What a checkpoint says; version -1 if there is none, and the log begins with its first entry. There may
    be ten thousand application transactions, a mark for each shard, so they are no actions but a mapping."""

    version: int = VERSION_NONE
    txns: dict[str, int] = field(default_factory=dict)
    actions: list[Action] = field(default_factory=list)
    bytes: int = 0


def read_checkpoint(
    store: Store, until: int | None, fields: Mapping[str, Sequence[str]]
) -> CheckpointContent:
    """Return a checkpoint's content.

    `until` limits the version. If the log no longer reaches back to `until`, the oldest checkpoint, which is
    later, is used. A damaged checkpoint is skipped in favour of an older one."""
    damaged: list[str] = []
    try:
        for one in _candidates(store, until):
            try:
                return _read(store, one, fields)
            except FileNotFoundError:
                continue  # Cleaned up in the meantime: a newer one exists.
            except _DAMAGE as error:
                damaged.append(f"checkpoint {one.version} is damaged: {error}")
                logger.warning("%s: %s", store.uri, damaged[-1])
        first = next((name for name in store.names_after(LOG, "") if ENTRY.match(name)), None)
    except OSError as error:
        raise Determinate(f"the checkpoints of {store.uri} can't be read: {error}", hint="retry") from error
    if first is not None and int(first[:20]) > 0:
        raise InvariantViolation(
            f"the log of {store.uri} begins with {first}, and no readable checkpoint has the entries"
            f" before it{': ' if damaged else ''}{'; '.join(damaged)}",
            hint="restore the table's log from a backup",
        )
    return CheckpointContent()


def _read(store: Store, checkpoint: Checkpoint, fields: Mapping[str, Sequence[str]]) -> CheckpointContent:
    """Return a checkpoint's content. Raises one of `_DAMAGE` if it is damaged."""
    found = CheckpointContent(checkpoint.version)
    for name in checkpoint.names:
        data = store.get(name)
        columns = _columns(data, checkpoint.checksum, fields)
        found.txns |= columns.txns
        found.actions += columns.actions(fields)
        found.bytes += len(data)
    if not {"protocol", "metaData"} <= {kind for action in found.actions for kind in action}:
        raise ValueError("it does not name its table")
    return found


def make_checkpoint(store: Store, options: Mapping[str, str], *, now_ms: int) -> int:
    """Write a checkpoint of the newest version and delete log entries past their retention. Returns the
    checkpoint's size in bytes. The checkpoint is on disk before the entries that it replaces are deleted."""
    _mend(store)
    # A separate handle: housekeeping must not move the version that reads are answered from.
    newest = DeltaTable(store.uri, storage_options=dict(options))
    newest.create_checkpoint()
    written = _point_to(store, newest.version())
    store.sync_files(written)
    store.sync_folders(written)
    retention_ms = log_retention_ms(newest.metadata().configuration)
    if retention_ms is not None:
        clean_log(store, before_ms=now_ms - retention_ms)
    return store.size(written[0])


def clean_log(store: Store, *, before_ms: int) -> int:
    """Delete the log's files that no version committed since `before_ms` needs: those below the newest
    checkpoint that is older. Returns how many.

    Entries are deleted ascending, one after the other, and the first error ends it: as long as an entry is
    there, no later one was cleaned up. A commit relies on that (`delta.commit.put_entry`)."""
    found = sorted(_listed(store), reverse=True)
    old = (one for one in found if _written_ms(store, one) < before_ms)
    if (first_kept := next(old, None)) is None:
        return 0
    below = [
        name
        for name in store.names_after(LOG, "")
        if (one := _NUMBERED.match(name)) and int(one[1]) < first_kept.version
    ]
    for name in below:
        store.delete(f"{LOG}/{name}")
    return len(below)


def _written_ms(store: Store, checkpoint: Checkpoint) -> int:
    """When the version of a checkpoint was committed, or later."""
    times = store.modified_ms((entry_path(checkpoint.version), *checkpoint.names))
    return min(times.values(), default=0)


def _mend(store: Store) -> None:
    """Remove the newest checkpoint if it can't be read, so that other readers don't fail on it. Nothing is
    lost: the table could be opened, so older checkpoints and entries hold the same content."""
    for one in _candidates(store, None):
        try:
            _read(store, one, EVERY_FIELD)
        except FileNotFoundError:
            continue
        except _DAMAGE:
            store.remove_quietly(f"{LOG}/{_LAST}")
            for name in one.names:
                store.remove_quietly(name)
            continue
        return


def _candidates(store: Store, until: int | None) -> Iterator[Checkpoint]:
    """Yield checkpoints to open a log at, best first. The pointer is only a hint; after it the log is listed.
    Checkpoints up to `until` come first. Later ones follow, oldest first, if the log begins with a
    checkpoint."""
    hint: Checkpoint | None = None
    with suppress(FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        pointer = json.loads(store.get(f"{LOG}/{_LAST}"))
        hint = Checkpoint(
            int(pointer["version"]), int(pointer.get("parts") or 0), str(pointer.get(CHECKSUM) or "")
        )
        if until is None or hint.version <= until:
            yield hint
    found = sorted((one for one in _listed(store) if not hint or one.version != hint.version), reverse=True)
    yield from (one for one in found if until is None or one.version <= until)
    later = sorted(
        one for one in (*found, *([hint] if hint else ())) if until is not None and one.version > until
    )
    if later and not store.has(entry_path(0)):
        # Log clean-up deletes entries from the first one on.
        yield from later


def _point_to(store: Store, version: int) -> list[str]:
    """Store the checksum of a new checkpoint in the pointer; return the paths of both files."""
    name, pointer = f"{LOG}/{version:020}.checkpoint.parquet", f"{LOG}/{_LAST}"
    with suppress(FileNotFoundError, ValueError, KeyError):
        hint = json.loads(store.get(pointer))
        if int(hint["version"]) == version and not hint.get("parts"):
            content = json.dumps({**hint, CHECKSUM: checksum_of(store.get(name))}).encode()
            attempt = f"{pointer}_{uuid.uuid4().hex}.tmp"
            store.put_synced(attempt, content)
            store.move(attempt, pointer)
    return [name, pointer]


def _listed(store: Store) -> list[Checkpoint]:
    """Checkpoints of which all parts exist."""
    names = (_CHECKPOINT.match(name) for name in store.names_after(LOG, ""))
    parts = Counter((int(one[1]), int(one[2] or 0)) for one in names if one)
    return [Checkpoint(*one) for one, count in parts.items() if count == max(one[1], 1)]


@dataclass(frozen=True, slots=True)
class _Columns:
    """The values of a checkpoint by kind, without nulls."""

    values: Mapping[str, Sequence[Any]]
    txns: Mapping[str, int]

    def actions(self, fields: Mapping[str, Sequence[str]]) -> Iterator[Action]:
        for kind, names in fields.items():
            for row in self.values.get(kind, ()):
                if row is not None and any(value is not None for value in row.values()):
                    yield {kind: _without_nulls({name: row[name] for name in names if name in row})}


def _columns(data: bytes, checksum: str, fields: Mapping[str, Sequence[str]]) -> _Columns:
    """Parse a checkpoint; ValueError if it is damaged.

    arro3 may crash the process on a damaged file, so it only reads files whose checksum was verified. pyarrow
    reports damage, but loading it takes longer than a run with nothing to do."""
    if len(data) < 12 or not data.startswith(_PARQUET) or not data.endswith(_PARQUET):
        raise ValueError(f"its {len(data)} bytes are not a complete Parquet file")
    if checksum and checksum_of(data) != checksum:
        raise ValueError("it does not agree with its checksum")
    return _columns_by_arro3(data, fields) if checksum else _columns_by_pyarrow(data, fields)


def _columns_by_arro3(data: bytes, fields: Mapping[str, Sequence[str]]) -> _Columns:
    table = read_parquet(io.BytesIO(data)).read_all()
    columns = {kind: table[kind].combine_chunks() for kind in fields if kind in table.column_names}
    txns = {}
    if (column := columns.pop(TXN, None)) is not None:
        names = [one.name for one in column.type.fields]
        places = [names.index(name) for name in _TXN_FIELDS]
        txns = _txns(*(struct_field(column, place).to_pylist() for place in places))
    return _Columns({kind: list(_present(column)) for kind, column in columns.items()}, txns)


def _txns(names: Iterable[Any], versions: Iterable[Any]) -> dict[str, int]:
    """The application transactions. A row of another kind has none, or an empty one."""
    return {
        name: version for name, version in zip(names, versions, strict=True) if name and version is not None
    }


def _present(column: Any) -> Iterator[Any]:
    """The values of a column that are not null. A row of a checkpoint is of one kind, and those of a kind lie
    together: most of a column are nulls, which take as long to convert as values."""
    nulls, size = column.null_count, len(column)
    if nulls in (0, size) or size <= PRESENT_ROWS_MIN:
        yield from column.to_pylist() if nulls < size else ()
        return
    yield from _present(column.slice(0, size // 2))
    yield from _present(column.slice(size // 2, size - size // 2))


def _columns_by_pyarrow(data: bytes, fields: Mapping[str, Sequence[str]]) -> _Columns:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(pa.BufferReader(data))
        schema = file.schema_arrow
        # The parsed statistics are large and repeat the JSON text.
        columns = [
            f"{kind}.{name}"
            for kind, names in fields.items()
            if kind in schema.names
            for name in names
            if schema.field(kind).type.get_field_index(name) >= 0
        ]
        table = file.read(columns=columns, use_threads=False)
    except (OSError, pa.ArrowException) as error:
        raise ValueError(str(error)) from error
    values = {
        kind: column.filter(column.is_valid()).to_pylist()
        for kind, column in zip(table.column_names, table.columns, strict=True)
    }
    rows = values.pop(TXN, ())
    return _Columns(values, _txns(*([row[name] for row in rows] for name in _TXN_FIELDS)))


def _without_nulls(row: Mapping[str, Any]) -> Action:
    """Convert a checkpoint row to an action as a log entry has it: without nulls, with maps as objects."""
    found: Action = {}
    for name, value in row.items():
        if value is None:
            continue
        if name in _MAPS:
            found[name] = dict(value)
        else:
            found[name] = _without_nulls(value) if isinstance(value, dict) else value
    return found
