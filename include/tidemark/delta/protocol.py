"""What a table may be: the protocol and metadata that we give it, and what makes us refuse a state's.

A feature of Delta changes what a correct commit is. Those that we know how to keep are listed; any other,
also one that doesn't exist yet, is refused by its name before anything is written. Somebody can turn one on
at any time, so this is asked at every commit, of the head that the commit is made on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from tidemark.core.errors import InvalidUsage, InvariantViolation

VECTORS: Final = "delta.enableDeletionVectors"
FEED: Final = "delta.enableChangeDataFeed"
_APPENDS: Final = "delta.appendOnly"
ALLOWED: Final = frozenset({"deletionVectors", "changeDataFeed", "timestampNtz", "appendOnly", "invariants"})
_READER_VERSIONS: Final = (1, 2, 3)
_WRITER_VERSIONS: Final = (1, 2, 3, 4, 5, 6, 7)
_REFUSED_ON: Final = {
    _APPENDS: "appendOnly",
    "delta.enableInCommitTimestamps": "inCommitTimestamp",
    "delta.enableRowTracking": "rowTracking",
    "delta.enableTypeWidening": "typeWidening",
    "delta.enableIcebergCompatV1": "icebergCompatV1",
    "delta.enableIcebergCompatV2": "icebergCompatV2",
}
"""Properties that turn a feature on where they are `true`."""
_REFUSED_SET: Final = {
    "delta.setTransactionRetentionDuration": "application transactions that expire",
    "delta.coordinatedCommits.commitCoordinator-preview": "catalogManaged",
    "delta.coordinatedCommits.commitCoordinator": "catalogManaged",
}
_REFUSED_FIELD: Final = {
    "delta.invariants": "invariants",
    "delta.generationExpression": "generatedColumns",
    "delta.identity.start": "identityColumns",
    "delta.identity.step": "identityColumns",
    "delta.typeChanges": "typeWidening",
    "delta.columnMapping.id": "columnMapping",
    "delta.columnMapping.physicalName": "columnMapping",
    "CURRENT_DEFAULT": "allowColumnDefaults",
}


def protocol_action(*, configuration: Mapping[str, str], schema: str) -> dict[str, Any]:
    """The protocol that a new table needs, and no more: each feature shuts some reader out."""
    both = [
        name
        for name, is_used in (
            ("deletionVectors", is_on(configuration, VECTORS)),
            ("timestampNtz", _has_ntz(json.loads(schema))),
        )
        if is_used
    ]
    own = ((_APPENDS, "appendOnly"), (FEED, "changeDataFeed"))
    writers = both + [feature for name, feature in own if is_on(configuration, name)]
    if _has_required(json.loads(schema)):
        # Spark refuses a table with a NOT NULL column whose protocol doesn't say so.
        writers.append("invariants")
    if not both:
        return {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": writers}
    return {
        "minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": both, "writerFeatures": writers,
    }  # fmt: skip


def widened_protocol(protocol: Mapping[str, Any], needed: Mapping[str, Any]) -> dict[str, Any] | None:
    """A table's protocol with the reader's features that its new columns need; None where it has them."""
    there, writers = set(protocol.get("readerFeatures") or ()), set(protocol.get("writerFeatures") or ())
    missing = set(needed.get("readerFeatures") or ()) - there
    if not missing:
        return None
    if int(protocol["minWriterVersion"]) < 7:
        # A version says these without their names; more than version 2 is not given to a table of ours.
        writers |= {"appendOnly", "invariants"}
    return {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": sorted(there | missing),
        "writerFeatures": sorted(writers | missing),
    }


def metadata_action(
    *, table_id: str, schema: str, configuration: Mapping[str, str], at_ms: int
) -> dict[str, Any]:
    """The metadata of a new table."""
    return {
        "id": table_id,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": schema,
        "partitionColumns": [],
        "configuration": dict(configuration),
        "createdTime": at_ms,
    }


def is_on(configuration: Mapping[str, str], name: str) -> bool:
    """Whether a property says `true`."""
    return str(configuration.get(name, "")).lower() == "true"


def check_features(table: str, protocol: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
    """`InvalidUsage` that names all that we can't keep; `InvariantViolation` for a table without either."""
    if not protocol or not metadata:
        raise InvariantViolation(
            f"{table} has no {'protocol' if not protocol else 'metadata'}",
            hint="restore the table's log from a backup",
        )
    found = sorted(set(_refused(protocol, metadata)))
    if found:
        raise InvalidUsage(
            f"{table} uses what a publish can't keep: {', '.join(found)}",
            hint="drop these features from the table, or rebuild the state",
        )


def _refused(protocol: Mapping[str, Any], metadata: Mapping[str, Any]) -> Iterator[str]:
    reader, writer = int(protocol.get("minReaderVersion", 0)), int(protocol.get("minWriterVersion", 0))
    if reader not in _READER_VERSIONS or writer not in _WRITER_VERSIONS:
        yield f"protocol {reader}/{writer}"
    for kind in ("readerFeatures", "writerFeatures"):
        yield from set(protocol.get(kind) or ()) - ALLOWED
    configuration: Mapping[str, str] = metadata.get("configuration") or {}
    for name, value in configuration.items():
        if name in _REFUSED_SET:
            yield _REFUSED_SET[name]
        elif name.startswith("delta.constraints."):
            yield "checkConstraints"
        elif name in _REFUSED_ON and is_on(configuration, name):
            yield _REFUSED_ON[name]
        elif name == "delta.columnMapping.mode" and value != "none":
            yield "columnMapping"
        elif name == "delta.checkpointPolicy" and value != "classic":
            yield "v2Checkpoint"
    if metadata.get("partitionColumns"):
        yield "partition columns"
    yield from _refused_fields(json.loads(metadata["schemaString"]))


def _refused_fields(kind: object) -> Iterator[str]:
    """What the columns' own metadata turns on, at any depth."""
    if not isinstance(kind, dict):
        return
    for name in kind.get("metadata") or {}:
        if name in _REFUSED_FIELD:
            yield _REFUSED_FIELD[name]
    for inner in kind.get("fields", ()):
        yield from _refused_fields(inner)
    for part in ("type", "elementType", "keyType", "valueType"):
        yield from _refused_fields(kind.get(part))


def _has_ntz(kind: object) -> bool:
    return kind == "timestamp_ntz" or any(map(_has_ntz, _inner(kind)))


def _has_required(kind: object) -> bool:
    """Whether a column or a field of one is NOT NULL."""
    return (isinstance(kind, dict) and kind.get("nullable") is False) or any(map(_has_required, _inner(kind)))


def _inner(kind: object) -> list[object]:
    if not isinstance(kind, dict):
        return []
    return [*kind.get("fields", ()), *(kind.get(p) for p in ("type", "elementType", "keyType", "valueType"))]
