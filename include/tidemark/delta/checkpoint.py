"""The checkpoints of a table's log: which there are, and the actions in them.

A checkpoint that is wanted for a head is read without what was taken out: that is most of it.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from tidemark.core.errors import Determinate
from tidemark.core.publish import VERSION_NONE
from tidemark.delta.commit import LOG, Action, entry_path
from tidemark.delta.store import Store

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


def read_checkpoint(
    store: Store, until: int | None, fields: Mapping[str, Sequence[str]]
) -> tuple[int, list[Action], int]:
    """The version of a checkpoint, its actions and its bytes; -1 and none where there is no checkpoint."""
    try:
        version, parts = _newest(store, until)
    except OSError as error:
        raise Determinate(f"the checkpoints of {store.uri} can't be read: {error}", hint="retry") from error
    if version == VERSION_NONE:
        return version, [], 0
    name = f"{LOG}/{version:020}.checkpoint"
    names = [f"{name}.{at:010}.{parts:010}.parquet" for at in range(1, parts + 1)] or [f"{name}.parquet"]
    found: list[Action] = []
    size = 0
    for one in names:
        try:
            data = store.get(one)
        except OSError as error:
            raise Determinate(
                f"{one} of {store.uri} can't be read: {error}",
                hint="retry: it may have been cleaned meanwhile",
            ) from error
        found += _in_checkpoint(data, fields)
        size += len(data)
    return version, found, size


def _newest(store: Store, until: int | None) -> tuple[int, int]:
    """Its version, and of how many parts it is; 0 for one that is whole. The pointer is a hint: without it
    the log is looked through, since the entries before a checkpoint may be gone."""
    try:
        pointer = json.loads(store.get(f"{LOG}/_last_checkpoint"))
        last = int(pointer["version"]), int(pointer.get("parts") or 0)
        if until is None or last[0] <= until:
            return last
    except FileNotFoundError:
        pass
    found = _checkpoints(store)
    wanted = [one for one in found if until is None or one[0] <= until]
    if wanted:
        return max(wanted)
    # Entries are cleaned away from the first one on.
    return (VERSION_NONE, 0) if not found or store.has(entry_path(0)) else min(found)


def _checkpoints(store: Store) -> list[tuple[int, int]]:
    """The checkpoints that are there with all their parts."""
    names = (_CHECKPOINT.match(name) for name in store.names_after(LOG, ""))
    parts = Counter((int(one[1]), int(one[2] or 0)) for one in names if one)
    return [one for one, count in parts.items() if count == max(one[1], 1)]


def _in_checkpoint(data: bytes, fields: Mapping[str, Sequence[str]]) -> Iterator[Action]:
    # Here and not above, because most heads come from a few entries, and start sooner without it.
    import pyarrow as pa
    import pyarrow.parquet as pq

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
    for kind in table.column_names:
        column = table[kind]
        for row in column.filter(column.is_valid()).to_pylist():
            if any(value is not None for value in row.values()):
                yield {kind: _without_nulls(row)}


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
