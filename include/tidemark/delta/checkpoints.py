"""Checkpoints of a table's log: found, read, pointed to, and mended.

A checkpoint only repeats what entries say, so that readers need not read them all. delta-rs writes it; the
pointer to it says its checksum, so that a damaged one is known before it is parsed.
"""

from __future__ import annotations

import io
import json
import re
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from arro3.io import read_parquet
from deltalake import DeltaTable

from tidemark.core.errors import InvariantViolation
from tidemark.delta.commit import CHECKSUM, LOG, Action, checksum_of, entry_path
from tidemark.delta.store import Store

CHECKPOINT_VERSIONS: Final = 10
CLEANUP_VERSIONS: Final = 50
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
DAMAGE: Final = (ValueError, KeyError, TypeError, InvariantViolation)
_MAPS: Final = ("partitionValues", "tags", "configuration", "options")


@dataclass(frozen=True, slots=True, order=True)
class Checkpoint:
    """One that a log may be opened at. `parts` is 0 for one that is whole; `checksum` may not be known."""

    version: int
    parts: int = 0
    checksum: str = ""

    @property
    def names(self) -> list[str]:
        name = f"{LOG}/{self.version:020}.checkpoint"
        parts = (f"{name}.{at:010}.{self.parts:010}.parquet" for at in range(1, self.parts + 1))
        return list(parts) or [f"{name}.parquet"]


def checkpoint_parts(store: Store, checkpoint: Checkpoint) -> Iterator[Iterator[Action]]:
    """The actions of each file of a checkpoint. One of `DAMAGE` where it is not what was written."""
    return (_in_checkpoint(store.get(name), checkpoint.checksum) for name in checkpoint.names)


def tidy_log(uri: str, options: Mapping[str, str], committed: int) -> None:
    """Keep a table's log short, when the version that was just committed is due for it. The checkpoint is on
    disk before the entries go that it replaces."""
    if committed == 0 or committed % CHECKPOINT_VERSIONS != 0:
        return
    store = Store(uri, options)
    _mend(store)
    # A table of its own: the one that reads answer from must not move on by housekeeping.
    newest = DeltaTable(uri, storage_options=dict(options))
    newest.create_checkpoint()
    written = _point_to(store, newest.version())
    if committed % CLEANUP_VERSIONS == 0:
        store.sync_files(written)
        store.sync_folders(written)
        newest.cleanup_metadata()


def _mend(store: Store) -> None:
    """Remove a newest checkpoint that can't be read, so that other readers don't stop at it: all that it said
    is said by what is before and after it, or nobody could have opened the table."""
    for checkpoint in candidates(store, None):
        try:
            for actions in checkpoint_parts(store, checkpoint):
                list(actions)
        except FileNotFoundError:
            continue
        except DAMAGE:
            store.remove_quietly(f"{LOG}/{LAST_CHECKPOINT}")
            for name in checkpoint.names:
                store.remove_quietly(name)
            continue
        return


def candidates(store: Store, until: int | None) -> Iterator[Checkpoint]:
    """Checkpoints to open a log at, the best one first. The pointer is a hint: behind it the log is looked
    through. Up to a version, where there is one; else the oldest, where the log begins with it."""
    hint: Checkpoint | None = None
    with suppress(FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        pointer = json.loads(store.get(f"{LOG}/{LAST_CHECKPOINT}"))
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
        # Entries are cleaned away from the first one on.
        yield from later


def _point_to(store: Store, version: int) -> list[str]:
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


def _listed(store: Store) -> list[Checkpoint]:
    """The checkpoints that are there with all their parts."""
    names = (_CHECKPOINT.match(name) for name in store.names_after(LOG, ""))
    parts = Counter((int(one[1]), int(one[2] or 0)) for one in names if one)
    return [Checkpoint(*one) for one, count in parts.items() if count == max(one[1], 1)]


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
