"""Quarantined records, each with its place and without the values of masked columns.

The quarantine stores a record as it arrived, so it is masked when it is shown. In a JSON object, every field
with the name of a masked column is masked, at any depth. Any other text is masked whole, because the masked
value can't be located in it. A record without a shard, or of a shard that no longer exists, is masked by the
masked columns of all shards.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from tidemark.app.views import open_errors
from tidemark.config import PipelineConfig, ShardConfig
from tidemark.config.shard import ShardSettings
from tidemark.core.binding import Binding
from tidemark.core.ids import QUARANTINE, Txn
from tidemark.pipeline.context import binding_at
from tidemark.sources.files.bound_files import PARTITION, Manifest
from tidemark.sources.files.content import record_place

if TYPE_CHECKING:
    from tidemark.app.deployment import Deployment

Settings = ShardConfig | ShardSettings
MASK: Final = "***"
_FOUND: Final = re.compile(r"column '(?P<name>.*?)' is .*?, found (?P<value>.*)\Z", re.DOTALL)
_OUT_OF_REACH: Final = ("too late: ", "too far ahead: ")
_ROWS: Final = ("before", "after")


def quarantined_records(
    deployment: Deployment, *, txn: int | None, only_open: bool, limit: int
) -> list[dict[str, Any]]:
    """The records, the newest first, with their places and without the values of masked columns."""
    found = newest(deployment, txn=txn, only_open=only_open, limit=limit)
    return with_places(deployment, (masked_record(record, deployment.config) for record in found))


def newest(deployment: Deployment, *, txn: int | None, only_open: bool, limit: int) -> list[dict[str, Any]]:
    """The newest records, unmasked."""
    if only_open:
        return still_open(deployment, txn=txn, limit=limit)
    return quarantined(f"{deployment.root}/{QUARANTINE}/log", txn=txn, limit=limit)


def still_open(deployment: Deployment, *, txn: int | None, limit: int) -> list[dict[str, Any]]:
    """The open errors of all shards, in the same order and with the same columns as `quarantined`."""
    frames = [open_errors(deployment, shard) for shard in deployment.shards]
    found = reduce(lambda all_, one: all_.unionAll(one), frames)
    chosen = found if txn is None else found.where(f"_txn = {int(txn)}")
    newest = chosen.orderBy("_txn", "_partition", "_offset", "_ordinal", ascending=[False, True, True, True])
    return [row.asDict() for row in newest.limit(limit).collect()]


def quarantined(uri: str, *, txn: int | None, limit: int) -> list[dict[str, Any]]:
    """The rows of the quarantine's log. delta-rs reads them, so no Spark is started."""
    from deltalake import DeltaTable, QueryBuilder

    if not DeltaTable.is_deltatable(uri):
        return []
    where = f"WHERE _txn = {int(txn)}" if txn is not None else ""
    query = f"SELECT * FROM q {where} ORDER BY _txn DESC, _partition, _offset, _ordinal LIMIT {int(limit)}"
    found = QueryBuilder().register("q", DeltaTable(uri)).execute(query).read_all()
    return list(found.to_struct_array().to_pylist())


def with_places(deployment: Deployment, records: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Add `place` to each record: file and line for a file source, else partition and offset."""
    manifests: dict[int, Manifest | None] = {}
    placed: list[dict[str, Any]] = []
    for record in records:
        txn, partition, offset = record["_txn"], record["_partition"], record["_offset"]
        if txn not in manifests:
            manifests[txn] = manifest_of(binding_at(deployment.pipeline, Txn(txn)))
        manifest = manifests[txn]
        place = f"{partition}, offset {offset}"
        if manifest is not None:
            place = record_place(manifest, offset, record["_ordinal"])
        placed.append({**record, "place": place})
    return placed


def manifest_of(binding: Binding) -> Manifest | None:
    """The files of a binding; None if the source is not a file source. None also for a promotion: what it has
    quarantined was bound before."""
    if binding.promotes or not binding.manifest or json.loads(binding.manifest).get("kind") != PARTITION:
        return None
    return Manifest.from_json(binding.manifest)


def masks(record: Mapping[str, Any], config: PipelineConfig) -> bool:
    """Whether a quarantined record may contain values of masked columns."""
    return bool(_masked_names(_shards_of(record, config)))


def masked_record(record: Mapping[str, Any], config: PipelineConfig) -> dict[str, Any]:
    """A row of the quarantine's log without the values of its shard's masked columns."""
    shards = _shards_of(record, config)
    names = _masked_names(shards)
    if not names:
        return dict(record)
    # A line of CSV may parse as JSON, but its fields have no names to mask by.
    raw = record["_raw"] if config.source.format != "csv" or record["_raw"] is None else ""
    shown = {"_raw": _raw(raw, names, config), "_key": _text(record["_key"], names, "")}
    return {**record, **shown, "_reason": _reason(record["_reason"], names, shards)}


def _shards_of(record: Mapping[str, Any], config: PipelineConfig) -> Sequence[Settings]:
    named = [shard for shard in config.shards if shard.name == record["_shard"]]
    others = config.tables.overrides if config.tables is not None else ()
    return named or [*config.shards, *others]


def _masked_names(shards: Sequence[Settings]) -> frozenset[str]:
    return frozenset(name.lower() for shard in shards for name in shard.masked or ())


def _raw(raw: str | None, names: frozenset[str], config: PipelineConfig) -> str | None:
    """A masked raw record. A Kafka record is a JSON object with its key, value and headers as text."""
    if config.source.type != "kafka" or raw is None:
        return _text(raw, names, config.envelope)
    try:
        record = json.loads(raw)
        if not isinstance(record, dict):
            return MASK
    except (ValueError, RecursionError):
        return MASK  # The record is from an earlier source of the pipeline.
    shown: dict[str, Any] = {"key": _text(record.get("key"), names, "")}
    shown["value"] = _text(record.get("value"), names, config.envelope)
    shown["headers"] = [
        {**one, "value": MASK} if str(one.get("key")).lower() in names else one
        for one in record.get("headers") or ()
    ]
    given = {part: value for part, value in shown.items() if part in record}
    return json.dumps(given, ensure_ascii=False, separators=(",", ":"))


def _text(text: str | None, names: frozenset[str], envelope: str) -> str | None:
    if text is None:
        return None
    try:
        parsed = json.loads(text)
        if isinstance(parsed, dict):
            return json.dumps(_value(parsed, names, envelope), ensure_ascii=False, separators=(",", ":"))
    except (ValueError, RecursionError):
        pass
    return MASK


def _value(value: Any, names: frozenset[str], envelope: str) -> Any:
    if isinstance(value, list):
        return [_value(item, names, envelope) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        name: MASK
        if name.lower() in names or (envelope == "debezium" and name in _ROWS and isinstance(item, str))
        else _value(item, names, envelope)
        for name, item in value.items()
    }


def _reason(reason: str | None, names: frozenset[str], shards: Sequence[Settings]) -> str | None:
    """A masked reason. Reasons are masked when they are written, but a column may become masked later."""
    if reason is None:
        return None
    found = _FOUND.match(reason)
    if found is not None and found["name"].lower() in names:
        return reason[: found.start("value")] + MASK
    if any((shard.sequence_by or "").lower() in names for shard in shards):
        return next((kind + MASK for kind in _OUT_OF_REACH if reason.startswith(kind)), reason)
    return reason
