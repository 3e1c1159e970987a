"""Until when topics keep the records of a transaction, as far as their own settings say.

A broker removes whole segments, the oldest first, each once its newest record is older than `retention.ms`.
So if a record of time T stands at an offset or before it, that offset is kept until T plus `retention.ms` at
the least. A broker knows the first offset from any time on; asked for a few times, it has told enough for all
transactions at once, and no record is read.

Known limitation: a time that is told is a sure one, and the broker may keep the offsets for longer: by the
steps of `LEFT_HOURS`, and by what is left of a segment. `retention.bytes` and compaction keep no time, and
are told as a caveat.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tidemark.config.kafka import split_partition
from tidemark.core.replay import Replayable
from tidemark.sources.kafka_manifest import Range

LEFT_HOURS: Final = (0, 1, 3, 6, 12, 24, 48, 96, 168, 336, 720, 2160)
"""For how long a transaction is left, in the steps that are told apart."""
_HOUR_MS: Final = 3_600_000
_UNLIMITED: Final = "-1"

Mark = tuple[int, int]
"""An offset, and the time of its record in milliseconds."""
FirstSince = Callable[[Mapping[str, int]], Mapping[str, Mark]]
"""For each partition a time in milliseconds; for each that has one, its first record from then on."""


@dataclass(frozen=True, slots=True)
class Retention:
    """How long a topic keeps a record: None where no time ends it. `caveat` is what may end it sooner."""

    milliseconds: int | None = None
    caveat: str = ""

    @classmethod
    def of(cls, topic: str, settings: Mapping[str, str] | None) -> Retention:
        """By a topic's settings; None are settings that may not be seen."""
        if settings is None:
            return cls(caveat=f"topic {topic!r} does not show its retention")
        policies = settings.get("cleanup.policy", "delete").split(",")
        caveats = []
        if "compact" in policies:
            caveats.append("is compacted: a record that a newer one replaces goes at any time")
        if "delete" not in policies:
            return cls(caveat=_told(topic, caveats))
        if settings.get("retention.bytes", _UNLIMITED) != _UNLIMITED:
            caveats.append(f"keeps {settings['retention.bytes']} bytes of a partition, however new they are")
        text = settings.get("retention.ms", _UNLIMITED)
        return cls(None if text == _UNLIMITED else int(text), _told(topic, caveats))


def _told(topic: str, caveats: Sequence[str]) -> str:
    return f"topic {topic!r} {', and '.join(caveats)}" if caveats else ""


def lifetimes(
    transactions: Sequence[Sequence[Range]],
    retentions: Mapping[str, Retention],
    *,
    first_since: FirstSince,
    now_ms: int,
) -> list[Replayable]:
    """Until when each transaction's offsets, all of which are there now, are kept."""
    names = {one.name for ranges in transactions for one in ranges}
    kept = {name: retentions[split_partition(name)[0]].milliseconds for name in names}
    limited = {name: milliseconds for name, milliseconds in kept.items() if milliseconds is not None}
    marks = _marks(limited, first_since, now_ms=now_ms)

    def until_ms(one: Range) -> int:
        """Of all records at or before the first offset the newest is the one that counts."""
        times = [time for offset, time in marks[one.name] if offset <= one.lower]
        # Its time is over when there is none: the broker takes it when it comes by.
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
    """The topics that are read, in order."""
    return sorted({one.topic for ranges in transactions for one in ranges})
