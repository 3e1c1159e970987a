"""Quarantined records as a command may show them: without a value of a masked column.

A bad record is kept as it came, so it has to be masked when it is shown. What can be taken apart, a JSON
object, loses the values of fields with a masked column's name, wherever they are in it; of anything else
nobody can say where the masked value is, so all of it goes. A record that no shard took, or whose shard is
not there any more, loses what any shard masks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tidemark.config import PipelineConfig, ShardConfig
from tidemark.config.tables import ShardSettings

Settings = ShardConfig | ShardSettings
MASK: Final = "***"
_FOUND: Final = re.compile(r"column '(?P<name>.*?)' is .*?, found (?P<value>.*)\Z", re.DOTALL)
_OUT_OF_REACH: Final = ("too late: ", "too far ahead: ")
_ROWS: Final = ("before", "after")


def masks(record: Mapping[str, Any], config: PipelineConfig) -> bool:
    """Whether a quarantined record may have values of masked columns."""
    return bool(_masked_names(_shards_of(record, config)))


def masked_record(record: Mapping[str, Any], config: PipelineConfig) -> dict[str, Any]:
    """A quarantined record, as its log has it, without what its shard masks."""
    shards = _shards_of(record, config)
    names = _masked_names(shards)
    if not names:
        return dict(record)
    # A line of CSV may look like JSON, and then names nothing.
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
    """A record as it came. One of a topic is an object of texts: its key, its value and its headers."""
    if config.source.type != "kafka" or raw is None:
        return _text(raw, names, config.envelope)
    try:
        record = json.loads(raw)
        if not isinstance(record, dict):
            return MASK
    except (ValueError, RecursionError):
        return MASK  # It came from another source, when the pipeline had one.
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
    """Reasons are masked when they are written, but a column may be masked later than that."""
    if reason is None:
        return None
    found = _FOUND.match(reason)
    if found is not None and found["name"].lower() in names:
        return reason[: found.start("value")] + MASK
    if any((shard.sequence_by or "").lower() in names for shard in shards):
        return next((kind + MASK for kind in _OUT_OF_REACH if reason.startswith(kind)), reason)
    return reason
