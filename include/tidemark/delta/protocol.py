"""Delta protocol and table features: those that new tables get, and those that a state may have.

A Delta feature changes what a correct commit is. `ALLOWED` lists the features that a commit here preserves.
Any other feature, including future ones, is rejected by name before anything is written. A feature can be
enabled at any time, so every commit checks the head that it is made on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from tidemark.core.errors import InvalidUsage, InvariantViolation

VECTORS: Final = "delta.enableDeletionVectors"
FEED: Final = "delta.enableChangeDataFeed"
LOG_RETENTION: Final = "delta.logRetentionDuration"
LOG_CLEANED: Final = "delta.enableExpiredLogCleanup"
_INTERVAL: Final = re.compile(r"(?:interval )?(\d+) (week|day|hour|minute|second)s?\Z", re.IGNORECASE)
_UNIT_MS: Final = {
    "week": 604_800_000, "day": 86_400_000, "hour": 3_600_000, "minute": 60_000, "second": 1_000,
}  # fmt: skip
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
"""Properties that enable a feature if they are `true`."""
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


def interval_ms(text: str) -> int | None:
    """The length of an interval, as Delta's properties spell it; None for other text."""
    found = _INTERVAL.match(text.strip())
    return int(found[1]) * _UNIT_MS[found[2].lower()] if found else None


def log_retention_ms(configuration: Mapping[str, str]) -> int | None:
    """How long a table keeps its log entries; None if it keeps them all, or if its property can't be read."""
    if configuration.get(LOG_CLEANED, "true").lower() != "true":
        return None
    return interval_ms(configuration.get(LOG_RETENTION, "interval 30 days"))


def protocol_action(*, configuration: Mapping[str, str], schema: str) -> dict[str, Any]:
    """The minimal protocol of a new table. Each feature excludes some readers."""
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
        # Spark rejects a table with a NOT NULL column whose protocol lacks this feature.
        writers.append("invariants")
    if not both:
        return {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": writers}
    return {
        "minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": both, "writerFeatures": writers,
    }  # fmt: skip


def widened_protocol(protocol: Mapping[str, Any], needed: Mapping[str, Any]) -> dict[str, Any] | None:
    """A table's protocol plus the reader features that its new columns need; None if it has them."""
    there, writers = set(protocol.get("readerFeatures") or ()), set(protocol.get("writerFeatures") or ())
    missing = set(needed.get("readerFeatures") or ()) - there
    if not missing:
        return None
    if int(protocol["minWriterVersion"]) < 7:
        # Below version 7, features are implied by the version. Our tables have at most version 2 then, which
        # implies these.
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
    return {
        "id": table_id,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": schema,
        "partitionColumns": [],
        "configuration": dict(configuration),
        "createdTime": at_ms,
    }


def is_on(configuration: Mapping[str, str], name: str) -> bool:
    """Whether a property is `true`."""
    return str(configuration.get(name, "")).lower() == "true"


def check_features(table: str, protocol: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
    """`InvalidUsage` if the table has unsupported features, naming all of them; `InvariantViolation` if it
    has no protocol or no metadata."""
    if not protocol or not metadata:
        raise InvariantViolation(
            f"{table} has no {'protocol' if not protocol else 'metadata'}",
            hint="restore the table's log from a backup",
        )
    found = sorted(set(_refused(protocol, metadata)))
    if found:
        raise InvalidUsage(
            f"{table} uses features that a publish does not support: {', '.join(found)}",
            hint="drop these features from the table, or run `tidemark rebuild PIPELINE SHARD`",
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
    """Unsupported features that column metadata enables, at any depth."""
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
