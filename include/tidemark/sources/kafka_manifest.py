"""A Kafka source's notes in a binding: which topics by their ids, and which offsets of which partitions.

The text is JSON, `{"kind": "kafka", "topics": {name: id}, "ranges": {"orders-0": [lower, upper]}}`. A topic's
id is given by the cluster and never again: a topic that was deleted and made anew under its old name has
another one. `topics` has every topic that was ever bound, `ranges` only what this transaction reads. With a
schema registry there is also `"schemas": {"value": {id: schema}, "key": {…}}`, as it was then.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tidemark.config.kafka import partition_name, split_partition
from tidemark.core.errors import InvalidUsage, InvariantViolation

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
        """The manifest of these partitions' offsets, each (name, lower, upper); empty ranges are left out."""
        made = [Range(*split_partition(name), lower, upper) for name, lower, upper in ranges if lower < upper]
        return cls(dict(sorted(topics.items())), tuple(sorted(made)))

    def reading(self, ranges: Iterable[tuple[str, int, int]]) -> KafkaManifest:
        """The same notes on these ranges."""
        return replace(self, ranges=KafkaManifest.of(self.topics, ranges).ranges)

    def to_json(self) -> str:
        ranges = {one.name: [one.lower, one.upper] for one in self.ranges}
        found: dict[str, Any] = {"kind": _KIND, "topics": dict(self.topics), "ranges": ranges}
        if self.schemas:
            found["schemas"] = {part: dict(by_id) for part, by_id in self.schemas.items()}
        return json.dumps(found, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> KafkaManifest:
        """The manifest of a binding, checked."""
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
