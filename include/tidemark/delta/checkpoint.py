"""The checkpoints of a table's log: found, read, made and mended.

A checkpoint only repeats what entries say, so that nobody has to read them all; one that is wanted for a head
is read without what was taken out: that is most of it. delta-rs writes them. The pointer to a checkpoint says
its checksum, so that a damaged one is known before it is parsed.
"""

from __future__ import annotations

import io
import json
import logging
import re
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from arro3.io import read_parquet
from deltalake import DeltaTable

from tidemark.core.errors import Determinate, InvariantViolation
from tidemark.core.publish import VERSION_NONE
from tidemark.delta.commit import CHECKSUM, ENTRY, LOG, Action, checksum_of, entry_path
from tidemark.delta.store import Store

logger = logging.getLogger(__name__)

EVERY_FIELD: Final = {
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
HEAD_FIELDS: Final = {kind: names for kind, names in EVERY_FIELD.items() if kind != "remove"}
_CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint\.(?:\d{10}\.(\d{10})\.)?parquet\Z")
_MAPS: Final = ("partitionValues", "tags", "configuration", "options")
_PARQUET: Final = b"PAR1"
_LAST: Final = "_last_checkpoint"
_DAMAGE: Final = (ValueError, KeyError, TypeError)


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


def read_checkpoint(
    store: Store, until: int | None, fields: Mapping[str, Sequence[str]]
) -> tuple[int, list[Action], int]:
    """The version of a checkpoint, its actions and its bytes; -1 and none where there is no checkpoint, and
    the log begins with its first entry.

    A log that does not reach back to a version any more is opened at its oldest checkpoint, after it. One
    that is damaged is passed over for an older one."""
    damaged: list[str] = []
    try:
        for one in _candidates(store, until):
            try:
                return one.version, *_read(store, one, fields)
            except FileNotFoundError:
                continue  # Cleaned away meanwhile: there is a newer one.
            except _DAMAGE as error:
                damaged.append(f"checkpoint {one.version} is damaged: {error}")
                logger.warning("%s: %s", store.uri, damaged[-1])
        first = next((name for name in store.names_after(LOG, "") if ENTRY.match(name)), None)
    except OSError as error:
        raise Determinate(f"the checkpoints of {store.uri} can't be read: {error}", hint="retry") from error
    if first is not None and int(first[:20]) > 0:
        raise InvariantViolation(
            f"the log of {store.uri} begins with {first}, and no checkpoint that can be read has what was"
            f" before{': ' if damaged else ''}{'; '.join(damaged)}",
            hint="restore the table's log from a backup",
        )
    return VERSION_NONE, [], 0


def _read(
    store: Store, checkpoint: Checkpoint, fields: Mapping[str, Sequence[str]]
) -> tuple[list[Action], int]:
    """The actions of a checkpoint, and its bytes. One of `_DAMAGE` where it is not what was written."""
    found: list[Action] = []
    size = 0
    for name in checkpoint.names:
        data = store.get(name)
        found += _in_checkpoint(data, checkpoint.checksum, fields)
        size += len(data)
    if not {"protocol", "metaData"} <= {kind for action in found for kind in action}:
        raise ValueError("it does not say what table it is of")
    return found, size


def make_checkpoint(store: Store, options: Mapping[str, str]) -> int:
    """Have the newest version in a checkpoint, and let go of entries that are past their retention; returns
    its bytes. It is on disk before the entries go that it replaces."""
    _mend(store)
    # A table of its own: the one that reads answer from must not move on by housekeeping.
    newest = DeltaTable(store.uri, storage_options=dict(options))
    newest.create_checkpoint()
    written = _point_to(store, newest.version())
    store.sync_files(written)
    store.sync_folders(written)
    newest.cleanup_metadata()
    return store.size(written[0])


def _mend(store: Store) -> None:
    """Remove a newest checkpoint that can't be read, so that other readers don't stop at it: all that it said
    is said by what is before and after it, or nobody could have opened the table."""
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
    """Checkpoints to open a log at, the best one first. The pointer is a hint: behind it the log is looked
    through. Up to a version, where there is one; else the oldest, where the log begins with it."""
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
        # Entries are cleaned away from the first one on.
        yield from later


def _point_to(store: Store, version: int) -> list[str]:
    """Have the pointer say the checksum of a checkpoint that was just made; the files of both."""
    name, pointer = f"{LOG}/{version:020}.checkpoint.parquet", f"{LOG}/{_LAST}"
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


def _in_checkpoint(data: bytes, checksum: str, fields: Mapping[str, Sequence[str]]) -> Iterator[Action]:
    """The actions of a checkpoint. pyarrow finds out what is wrong with a damaged one, but loading it takes
    longer than a run with nothing to do; arro3 may die of one, and reads what is known to be whole."""
    if len(data) < 12 or not data.startswith(_PARQUET) or not data.endswith(_PARQUET):
        raise ValueError(f"its {len(data)} bytes are no whole Parquet file")
    if checksum and checksum_of(data) != checksum:
        raise ValueError("it does not agree with its checksum")
    columns = _columns_by_arro3(data, fields) if checksum else _columns_by_pyarrow(data, fields)
    for kind, names in fields.items():
        for row in columns.get(kind, ()):
            if row is not None and any(value is not None for value in row.values()):
                yield {kind: _without_nulls({name: row[name] for name in names if name in row})}


def _columns_by_arro3(data: bytes, fields: Mapping[str, Sequence[str]]) -> dict[str, list[Any]]:
    table = read_parquet(io.BytesIO(data)).read_all()
    return {kind: list(table[kind].to_pylist()) for kind in fields if kind in table.column_names}


def _columns_by_pyarrow(data: bytes, fields: Mapping[str, Sequence[str]]) -> dict[str, list[Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(pa.BufferReader(data))
        schema = file.schema_arrow
        # The parsed statistics are large, and are in the text as well.
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
