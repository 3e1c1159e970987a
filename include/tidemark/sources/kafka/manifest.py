"""The manifest of a Kafka source in a binding: which topics, by id, and which offsets; and their retention.

The text is JSON, `{"kind": "kafka", "topics": {name: id}, "ranges": {"orders-0": [lower, upper]}}`. The
cluster never gives a topic's id twice: a topic that is deleted and created again under its name has another
id. `topics` has every topic that was ever bound, `ranges` only the offsets of this transaction. With a schema
registry there is also `"schemas": {"value": {id: schema}, "key": {…}}`, as registered at the time of binding.

`lifetimes` derives from the topics' retention settings how long a transaction's records stay. A broker
removes whole segments, the oldest first, each once its newest record is older than `retention.ms`. So if a
record of time T is at or before an offset, that offset is kept at least until T plus `retention.ms`. A broker
can look up the first offset at or after a time. A few such lookups cover all transactions at once, and no
record is read.

Known limitation: a reported time is a lower bound. The broker may keep the offsets longer, by a step of
`LEFT_HOURS` and by the rest of a segment. `retention.bytes` and compaction remove records independently of
their times; they are reported as a caveat.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tidemark.config.kafka import partition_name, split_partition
from tidemark.core.errors import InvalidUsage, InvariantViolation
from tidemark.core.replay import Replayable

_KIND: Final = "kafka"


@dataclass(frozen=True, slots=True, order=True)
class Range:
    """The offsets in [lower, upper) of one partition. Some of them may have no record: compaction removes
    records, and transactions leave markers."""

    topic: str
    partition: int
    lower: int
    upper: int

    def __post_init__(self) -> None:
        if not 0 <= self.lower < self.upper:
            raise InvariantViolation(f"[{self.lower}, {self.upper}) of {self.name} is not a range of offsets")

    @property
    def name(self) -> str:
        return partition_name(self.topic, self.partition)

    @property
    def size(self) -> int:
        return self.upper - self.lower

    def __str__(self) -> str:
        last = self.upper - 1
        return (
            f"offset {last} of {self.name}"
            if self.size == 1
            else f"offsets {self.lower} to {last} of {self.name}"
        )


@dataclass(frozen=True, slots=True)
class KafkaManifest:
    """The exact input of one transaction."""

    topics: Mapping[str, str] = field(default_factory=dict)
    ranges: tuple[Range, ...] = ()
    schemas: Mapping[str, Mapping[int, str]] = field(default_factory=dict)

    @classmethod
    def of(cls, topics: Mapping[str, str], ranges: Iterable[tuple[str, int, int]]) -> KafkaManifest:
        """The manifest of these ranges, each (partition name, lower, upper). Empty ranges are left out."""
        made = [Range(*split_partition(name), lower, upper) for name, lower, upper in ranges if lower < upper]
        return cls(dict(sorted(topics.items())), tuple(sorted(made)))

    def reading(self, ranges: Iterable[tuple[str, int, int]]) -> KafkaManifest:
        """The same manifest with these ranges."""
        return replace(self, ranges=KafkaManifest.of(self.topics, ranges).ranges)

    def to_json(self) -> str:
        ranges = {one.name: [one.lower, one.upper] for one in self.ranges}
        found: dict[str, Any] = {"kind": _KIND, "topics": dict(self.topics), "ranges": ranges}
        if self.schemas:
            found["schemas"] = {part: dict(by_id) for part, by_id in self.schemas.items()}
        return json.dumps(found, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> KafkaManifest:
        """The manifest of a binding. Raises `InvariantViolation` if it can't be read, or a range's topic has
        no id."""
        try:
            found = json.loads(text)
            if found["kind"] != _KIND:
                raise InvariantViolation(f"the manifest is of kind {found['kind']!r}, not {_KIND!r}")
            made = cls.of(found["topics"], [(name, *ends) for name, ends in found["ranges"].items()])
            schemas = {
                part: {int(number): str(text) for number, text in by_id.items()}
                for part, by_id in found.get("schemas", {}).items()
            }
            made = replace(made, schemas=schemas)
        except (ValueError, KeyError, TypeError, AttributeError, InvalidUsage) as error:
            fact = f"a binding's manifest can't be read: {type(error).__name__}"
            raise InvariantViolation(fact, hint="the history was changed by hand") from None
        unknown = sorted({one.topic for one in made.ranges} - made.topics.keys())
        if unknown:
            raise InvariantViolation(f"a binding's manifest has no id for topic {unknown[0]!r}")
        return made


# Retention.

LEFT_HOURS: Final = (0, 1, 3, 6, 12, 24, 48, 96, 168, 336, 720, 2160)
"""The steps, in hours, in which a transaction's remaining retention is measured."""
_HOUR_MS: Final = 3_600_000
_UNLIMITED: Final = "-1"

Mark = tuple[int, int]
"""An offset, and the time of its record in milliseconds."""
FirstSince = Callable[[Mapping[str, int]], Mapping[str, Mark]]
"""Takes a time in milliseconds for each partition; returns the first record at or after it, if any."""


@dataclass(frozen=True, slots=True)
class Retention:
    """How long a topic keeps a record; None without a time limit. `caveat` is why it may go sooner."""

    milliseconds: int | None = None
    caveat: str = ""

    @classmethod
    def of(cls, topic: str, settings: Mapping[str, str] | None) -> Retention:
        """The retention by a topic's settings; they are None if this user may not read them."""
        if settings is None:
            return cls(caveat=f"the retention of topic {topic!r} is unknown")
        policies = settings.get("cleanup.policy", "delete").split(",")
        caveats = []
        if "compact" in policies:
            caveats.append("is compacted: a record with a newer one of its key is deleted at any time")
        if "delete" not in policies:
            return cls(caveat=_retention_text(topic, caveats))
        if settings.get("retention.bytes", _UNLIMITED) != _UNLIMITED:
            caveats.append(f"keeps {settings['retention.bytes']} bytes of a partition, whatever their age")
        text = settings.get("retention.ms", _UNLIMITED)
        return cls(None if text == _UNLIMITED else int(text), _retention_text(topic, caveats))


def _retention_text(topic: str, caveats: Sequence[str]) -> str:
    return f"topic {topic!r} {', and '.join(caveats)}" if caveats else ""


def lifetimes(
    transactions: Sequence[Sequence[Range]],
    retentions: Mapping[str, Retention],
    *,
    first_since: FirstSince,
    now_ms: int,
) -> list[Replayable]:
    """How long each transaction stays replayable. Precondition: all its offsets still exist."""
    names = {one.name for ranges in transactions for one in ranges}
    kept = {name: retentions[split_partition(name)[0]].milliseconds for name in names}
    limited = {name: milliseconds for name, milliseconds in kept.items() if milliseconds is not None}
    marks = _marks(limited, first_since, now_ms=now_ms)

    def until_ms(one: Range) -> int:
        """The newest record at or before the first offset determines the time."""
        times = [time for offset, time in marks[one.name] if offset <= one.lower]
        # Without such a record the retention has passed, and the broker may remove the offset any time.
        return max(times) + limited[one.name] if times else now_ms

    def lifetime(ranges: Sequence[Range]) -> Replayable:
        ends = [until_ms(one) for one in ranges if one.name in limited]
        caveats = dict.fromkeys(retentions[one.topic].caveat for one in ranges)
        return Replayable(
            until_seconds=min(ends) / 1000 if ends else None,
            caveat="; ".join(caveat for caveat in caveats if caveat),
        )

    return [lifetime(ranges) for ranges in transactions]


def _marks(limited: Mapping[str, int], first_since: FirstSince, *, now_ms: int) -> dict[str, list[Mark]]:
    marks: dict[str, list[Mark]] = {name: [] for name in limited}
    for hours in LEFT_HOURS:
        left_ms = hours * _HOUR_MS
        asked = {
            name: max(0, now_ms + left_ms - milliseconds)
            for name, milliseconds in limited.items()
            if left_ms < milliseconds
        }
        for name, mark in first_since(asked).items():
            marks[name].append(mark)
    return marks


def topics_of(transactions: Iterable[Iterable[Range]]) -> list[str]:
    """The topics of these transactions, sorted."""
    return sorted({one.topic for ranges in transactions for one in ranges})
