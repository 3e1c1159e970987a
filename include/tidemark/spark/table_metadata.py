"""What a table of ours says of itself in its log: columns, properties and protocol, as actions."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping
from typing import Any

from pyspark.sql.types import StructType

from tidemark.core.publish import VERSION_NONE
from tidemark.delta.head import TableHead
from tidemark.delta.protocol import FEED, VECTORS, metadata_action, protocol_action, widened_protocol
from tidemark.delta.state_vacuum import retention_properties
from tidemark.spark.spec import StateSpec


def state_properties(spec: StateSpec) -> dict[str, str]:
    """A new state's properties. Nothing here lets application transactions expire."""
    return {
        VECTORS: str(spec.deletion_vectors).lower(),
        FEED: str(spec.change_data_feed).lower(),
        **retention_of(spec),
    }


def retention_of(spec: StateSpec) -> dict[str, str]:
    """For how long a shard's tables keep what their newest version doesn't need."""
    return retention_properties(spec.history_days)


def description(head: TableHead, columns: StructType, properties: Mapping[str, str]) -> dict[str, Any]:
    """The protocol and metadata that a commit on a head has to bring along: those of a new table, or with
    columns that it lacks; nothing where it has them all. A table that is there keeps its properties."""
    declared: list[dict[str, Any]] = json.loads(columns.json())["fields"]
    if head.version == VERSION_NONE:
        schema = _schema(declared)
        return {
            "protocol": protocol_action(configuration=properties, schema=schema),
            "metadata": metadata_action(
                table_id=str(uuid.uuid4()),
                schema=schema,
                configuration=properties,
                at_ms=time.time_ns() // 1_000_000,
            ),
        }
    there: list[dict[str, Any]] = json.loads(head.metadata["schemaString"])["fields"]
    names = {field["name"] for field in there}
    lacking = [field for field in declared if field["name"] not in names]
    if not lacking:
        return {}
    schema = json.dumps({"type": "struct", "fields": [*there, *map(_nullable, lacking)]})
    needed = protocol_action(configuration=head.configuration, schema=schema)
    return {
        "protocol": widened_protocol(head.protocol, needed),
        "metadata": {**head.metadata, "schemaString": schema},
    }


def _schema(fields: list[dict[str, Any]]) -> str:
    return json.dumps({"type": "struct", "fields": [_nullable(field) for field in fields]})


def _nullable(kind: Any) -> Any:
    """A type in which every value may be NULL, as Delta's own writer makes tables."""
    if not isinstance(kind, dict):
        return kind
    free = {"nullable": True, "containsNull": True, "valueContainsNull": True}
    return {
        name: free.get(name, [_nullable(one) for one in value] if name == "fields" else _nullable(value))
        for name, value in kind.items()
    }
