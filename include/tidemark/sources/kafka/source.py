"""Kafka topics as a source, bound by topic id and by offsets up to the last stable offset.

Promise: a binding names exactly which offsets of which partitions it reads. All of them lie below the last
stable offset, so no producer's transaction among them is open; both the binding and the read are
read-committed. Only the last binding determines where a pipeline continues. The consumer group's offsets are
committed for lag monitoring, and never used to continue (scenario S1). They are a witness: a group that is
ahead of the bindings shows that the warehouse was restored from an older copy (W3).

- `start` determines where a pipeline begins. A partition that appears later begins at 0. A topic that is
  added later begins at its earliest record.
- Gaps in the offsets, from compaction and transactions, are no loss: a binding counts offsets, a read counts
  records (S3).
- Offsets that expire before they are bound become a transaction of their own, with exactly the lost range. It
  can't be read, so the run stops and names it. Skipping it needs a recorded reason, and skips only the lost
  offsets (S4).
- A topic that was deleted, or created again under the same name, is an error that no retry fixes (S5).

Known limitation: `max_records` counts offsets, so a transaction over a compacted range has fewer records.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Final

from tidemark.config.kafka import RECORDS_MAX, KafkaSource, split_partition
from tidemark.config.model import PipelineConfig
from tidemark.core.binding import Binding, BindingRecord, Claim, Step
from tidemark.core.errors import InvalidUsage, InvariantViolation, TidemarkError
from tidemark.core.ids import Frontier
from tidemark.core.ledger import EPOCH
from tidemark.core.replay import Replayable
from tidemark.ports.control import Ledger
from tidemark.ports.source import SourceReport, Waiting
from tidemark.sources.kafka.cluster import Cluster, Topic
from tidemark.sources.kafka.connection import Registry, registry_settings, settings_of
from tidemark.sources.kafka.manifest import KafkaManifest, Range, Retention, lifetimes, topics_of

Offsets = Mapping[str, int]


def steps_of(
    firsts: Offsets, lows: Offsets, ends: Offsets, *, kept: Offsets, notes: KafkaManifest, records_max: int
) -> Iterator[Step]:
    """The steps: first the lost offsets, if any, then the others, at most `records_max` per transaction.
    `kept` are the offsets of partitions that are no longer read; `notes` is the common part of all
    manifests."""
    reached = dict(firsts)
    lost = {name: (first, lows[name]) for name, first in firsts.items() if first < lows[name]}
    if lost:
        reached |= {name: low for name, (_, low) in lost.items()}
        manifest = notes.reading((name, first, low) for name, (first, low) in lost.items())
        yield Step(Frontier.of({**kept, **reached}), manifest.to_json())
    if all(reached[name] == ends[name] for name in reached) and not lost:
        # There is nothing to read, but a binding still records where the pipeline begins.
        yield Step(Frontier.of({**kept, **reached}), notes.to_json())
    while any(reached[name] < ends[name] for name in reached):
        shares = _shares({name: ends[name] - offset for name, offset in reached.items()}, records_max)
        ranges = [(name, reached[name], reached[name] + share) for name, share in shares.items()]
        reached |= {name: upper for name, _, upper in ranges}
        yield Step(Frontier.of({**kept, **reached}), notes.reading(ranges).to_json())


def _shares(left: Offsets, limit: int) -> dict[str, int]:
    """How many offsets of each partition go into one transaction: equal shares. Partitions with fewer offsets
    than their share leave the rest to the others."""
    shares: dict[str, int] = {}
    waiting = sorted((offsets, name) for name, offsets in left.items() if offsets)
    for index, (offsets, name) in enumerate(waiting):
        shares[name] = min(offsets, limit // (len(waiting) - index))
        limit -= shares[name]
    return shares


_NAMED_MAX: Final = 5
_UNIT: Final = "offsets"
_LOG: Final = logging.getLogger(__name__)


class TopicLost(InvalidUsage):
    """A bound topic was deleted, or created again under the same name."""

    def __init__(self, what: str) -> None:
        super().__init__(what, hint="read the new topic with a new pipeline, or restore the old one")


class GroupAhead(InvariantViolation):
    """The consumer group has offsets that no binding has: the history was set back."""

    def __init__(self, group: str, partition: str, *, committed: int, bound: int) -> None:
        super().__init__(
            f"consumer group {group!r} is at offset {committed} of {partition}, but only {bound} is"
            " bound: the warehouse was restored from a copy, or the group was moved by hand",
            hint="`tidemark recover PIPELINE --restored --yes`; if the group was moved by hand, reset it",
        )


class TopicSource:
    """The `Source` port over Kafka topics. Not safe for several threads at once."""

    def __init__(
        self,
        source: KafkaSource,
        cluster: Cluster,
        *,
        bindings: Ledger[Binding],
        owned: Ledger[BindingRecord],
        group: str,
        records_max: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._source = source
        self._cluster = cluster
        self._bindings = bindings
        self._owned = owned
        self._group = group
        self._records_max = records_max
        self._clock = clock

    @classmethod
    def of(
        cls,
        config: PipelineConfig,
        source: KafkaSource,
        *,
        bindings: Ledger[Binding],
        owned: Ledger[BindingRecord],
    ) -> TopicSource:
        """The source that a pipeline file describes."""
        return cls(
            source,
            Cluster(lambda: settings_of(source)),
            bindings=bindings,
            owned=owned,
            group=source.group_of(config.name),
            records_max=config.transaction.max_records or RECORDS_MAX,
        )

    def offer(self, last: Binding | None) -> Sequence[Step]:
        """All offsets up to the last stable ones, cut into transactions. Lost offsets come first."""
        last = _begun(last)
        known = _known(last)
        topics = self._topics(known)
        firsts, lows, ends = self._extent(last, topics)
        self._require_bound(last, ends)
        bound = last.upper.as_dict() if last is not None else {}
        # Partitions of topics that the pipeline file no longer lists keep their offsets in the frontier.
        kept = {name: offset for name, offset in bound.items() if split_partition(name)[0] not in topics}
        ids = {**known.topics, **{topic.name: topic.id for topic in topics.values()}}
        # Read after the ends: a producer registers its schema before it writes, so all of them are there.
        notes = KafkaManifest(dict(sorted(ids.items())), schemas=self._schemas(topics))
        if any(ends[name] < first for name, first in firsts.items()):
            return [Step(Frontier.of({**kept, **ends}), notes.to_json())]
        return list(steps_of(firsts, lows, ends, kept=kept, notes=notes, records_max=self._records_max))

    def nothing_after(self, last: Binding | None, *, lost: bool) -> Step:
        """No offsets, of the topics that are bound."""
        notes = KafkaManifest(_known(last).topics)
        return Step(last.upper if last is not None else Frontier(), notes.to_json())

    def _require_bound(self, last: Binding | None, ends: Offsets) -> None:
        """`GroupAhead` where the group has offsets that were never bound, unless a recovery came after the
        last binding. It is told only of what is durable, so a history that has less was set back; offsets
        that the topic does not have are somebody else's. A cluster that does not tell is not in the way."""
        if last is None or last.lost or last.epoch + 1 < self._bindings.mark(EPOCH):
            return
        ours = {n: o for n, o in last.upper.offsets if split_partition(n)[0] in self._source.topics}
        try:
            committed = self._cluster.committed(self._group, ours)
        except TidemarkError as error:
            _LOG.warning("the offsets of group %s could not be asked for: %s", self._group, error)
            return
        for name, offset in ours.items():
            if offset < committed.get(name, -1) <= ends.get(name, -1):
                raise GroupAhead(self._group, name, committed=committed[name], bound=offset)

    def waiting(self, last: Binding | None) -> Waiting:
        """The number of offsets above the last binding, and the time of the oldest record among them, for
        which one record of each partition is fetched. Times are those of the producers or the topic."""
        try:
            last = _begun(last)
            firsts, lows, ends = self._extent(last, self._topics(_known(last)))
            for name, first in firsts.items():
                if not lows[name] <= first <= ends[name]:
                    fact = f"{name} continues at offset {first}, but has {lows[name]} to {ends[name]}"
                    return Waiting(trouble=fact, unit=_UNIT)
            open_ = {name: first for name, first in firsts.items() if first < ends[name]}
            times = self._cluster.first_times(self._group, open_)
        except TidemarkError as error:
            return Waiting(trouble=str(error), unit=_UNIT)
        offsets = sum(ends[name] - firsts[name] for name in times)
        return Waiting(offsets, oldest_seconds=min(times.values(), default=None), unit=_UNIT)

    def inspect(self, binding: Binding) -> str:
        """Which of the bound offsets can no longer be read; empty if all can."""
        (gone,) = self._gone([KafkaManifest.from_json(binding.manifest)])
        return gone

    def replayable(self, bindings: Sequence[Binding]) -> Sequence[Replayable]:
        """Whether the offsets still exist, and until when the topics' retention keeps them. The number of
        requests does not depend on the number of transactions."""
        manifests = [KafkaManifest.from_json(binding.manifest) for binding in bindings]
        gone = self._gone(manifests)
        there = [() if text else made.ranges for made, text in zip(manifests, gone, strict=True)]
        retentions = {name: Retention.of(name, self._cluster.settings(name)) for name in topics_of(there)}
        kept = lifetimes(
            there, retentions, first_since=self._cluster.first_since, now_ms=int(self._clock() * 1000)
        )
        return [Replayable(text) if text else one for text, one in zip(gone, kept, strict=True)]

    def acknowledge(self, frontier: Frontier) -> None:
        """Commit the pipeline's progress as the offsets of its consumer group; never backwards. A failure is
        only a warning, because Tidemark doesn't use these offsets."""
        ours = {n: o for n, o in frontier.offsets if split_partition(n)[0] in self._source.topics}
        try:
            committed = self._cluster.committed(self._group, ours)
            ahead = {name: offset for name, offset in ours.items() if offset > committed.get(name, -1)}
            if ahead:
                self._cluster.commit(self._group, ahead)
        except TidemarkError as error:
            _LOG.warning("the offsets of group %s could not be committed: %s", self._group, error)

    def status(self) -> SourceReport:
        """The consumer group's offsets, and how many offsets are not bound yet."""
        upper = self._bindings.head().upper
        last = next(iter(self._bindings.read(upper - 1, upper)), None)
        bound = last.upper.as_dict() if last is not None else {}
        try:
            topics = self._topics(_known(last))
            partitions = [name for topic in topics.values() for name in topic.partitions]
            ends = self._cluster.stable(partitions)
            firsts = bound if last is not None else self._cluster.earliest(partitions)
        except TidemarkError as error:
            return SourceReport("", trouble=str(error))
        waiting = sum(max(0, end - firsts.get(name, 0)) for name, end in ends.items())
        return SourceReport(self._acknowledged(ends), cost=f"{waiting:,} offsets to be read")

    def _acknowledged(self, partitions: Iterable[str]) -> str:
        """The group's offsets, or why they are unknown; that is no trouble, as nothing depends on them."""
        try:
            committed = self._cluster.committed(self._group, partitions)
        except TidemarkError as error:
            return f"unknown ({error})"
        return self.shown(Frontier.of(committed))

    def shown(self, frontier: Frontier) -> str:
        """Partitions and offsets as text; if there are many, the first ones and the totals."""
        named = [f"{name}:{offset}" for name, offset in frontier.offsets]
        if len(named) > _NAMED_MAX:
            total = sum(offset for _, offset in frontier.offsets)
            named[_NAMED_MAX:] = [f"… ({len(named)} partitions, {total:,} offsets)"]
        return " ".join(named) or "nothing"

    def _gone(self, manifests: Sequence[KafkaManifest]) -> list[str]:
        """For each manifest, which offsets can no longer be read. All are checked with the same requests."""
        names = topics_of(made.ranges for made in manifests)
        topics = self._cluster.describe(names) if names else {}
        partitions = {one.name for made in manifests for one in made.ranges if _is_there(one, topics, made)}
        lows = self._cluster.earliest(partitions)
        ends = self._cluster.stable(partitions)
        return [
            _joined([text for one in made.ranges if (text := _gone(one, made, topics, lows, ends))])
            for made in manifests
        ]

    def _extent(self, last: Binding | None, topics: Mapping[str, Topic]) -> tuple[Offsets, Offsets, Offsets]:
        """For each partition: where the pipeline continues, its earliest and its last stable offset."""
        known = _known(last)
        partitions = [name for topic in topics.values() for name in topic.partitions]
        # Both only grow, so in this order no partition's earliest offset is above its end.
        lows = self._cluster.earliest(partitions)
        ends = self._cluster.stable(partitions)
        bound = last.upper.as_dict() if last is not None else {}
        began = self._source.start_time if last is None else None
        timed = self._since(partitions, began) if began is not None else {}
        start = partial(self._start, last=last, lows=lows, ends=ends, timed=timed)
        firsts = {
            name: bound.get(name, 0) if topic.name in known.topics else start(name)
            for topic in topics.values()
            for name in topic.partitions
        }
        return firsts, lows, ends

    def _topics(self, known: KafkaManifest) -> dict[str, Topic]:
        """The topics of the pipeline file. Raises `TopicLost` for a bound topic that is gone or has another
        id, and `InvalidUsage` for any other that doesn't exist."""
        found = self._cluster.describe(self._source.topics)
        for name in self._source.topics:
            if name not in found and name in known.topics:
                raise TopicLost(f"topic {name!r} is gone from kafka at {self._cluster.servers}")
            if name not in found:
                hint = "create it, or correct its name; the user also needs the right to describe it"
                raise InvalidUsage(
                    f"there is no topic {name!r} in kafka at {self._cluster.servers}", hint=hint
                )
            if name in known.topics and found[name].id != known.topics[name]:
                raise TopicLost(_recreated(name, bound=known.topics[name], found=found[name].id))
        return found

    def _start(self, name: str, last: Binding | None, *, lows: Offsets, ends: Offsets, timed: Offsets) -> int:
        """The first offset to read of a partition whose topic is not bound yet."""
        source = self._source
        if last is not None:
            return lows[name]
        if source.start_time is not None:
            # A record that arrived after the ends were read is left to the next transaction.
            return min(timed.get(name, ends[name]), ends[name])
        if name in source.start_offsets:
            if source.start_offsets[name] > ends[name]:
                fact = f"the start {source.start_offsets[name]} of {name} is above its end {ends[name]}"
                raise InvalidUsage(fact, hint="give an offset within that range, or latest")
            return source.start_offsets[name]
        # An earlier run claimed the first transaction and found the topics empty, so its latest offset was 0.
        return 0 if self._has_begun() else ends[name] if source.start == "latest" else lows[name]

    def _schemas(self, topics: Iterable[str]) -> dict[str, dict[int, str]]:
        """The registered schemas of these topics, for keys and values that the source reads with the
        registry."""
        given = (("value", self._source.value_schema), ("key", self._source.key_schema))
        asked = [part for part, schemas in given if schemas is not None and schemas.is_registered]
        if not asked:
            return {}
        registry = Registry(registry_settings(self._source))
        found: dict[str, dict[int, str]] = {}
        for part in asked:
            subjects = [registry.schemas(f"{name}-{part}", records=part == "value") for name in topics]
            found[part] = {number: text for one in subjects for number, text in sorted(one.items())}
        return found

    def _since(self, partitions: Sequence[str], moment: datetime) -> dict[str, int]:
        """The first offset of each partition at or after a time. Partitions without one are left out."""
        asked = dict.fromkeys(partitions, int(moment.timestamp() * 1000))
        return {name: offset for name, (offset, _) in self._cluster.first_since(asked).items()}

    def _has_begun(self) -> bool:
        return self._source.start == "latest" and any(
            isinstance(record, Claim) for record in self._owned.read(1, 2)
        )


def _begun(last: Binding | None) -> Binding | None:
    """The last binding; None where all before it are lost, too: then the source begins as it did at first."""
    return None if last is not None and last.lost and not last.upper.offsets else last


def _known(last: Binding | None) -> KafkaManifest:
    return KafkaManifest.from_json(last.manifest) if last and last.manifest else KafkaManifest()


def _joined(gone: Sequence[str]) -> str:
    more = [f"and {len(gone) - _NAMED_MAX} more"] if len(gone) > _NAMED_MAX else []
    return "; ".join([*gone[:_NAMED_MAX], *more])


def _recreated(name: str, *, bound: str, found: str) -> str:
    return f"topic {name!r} was created again: it has id {found}, but {bound} is bound"


def _is_there(one: Range, topics: Mapping[str, Topic], manifest: KafkaManifest) -> bool:
    topic = topics.get(one.topic)
    return topic is not None and topic.id == manifest.topics[one.topic] and one.name in topic.partitions


def _gone(
    one: Range, manifest: KafkaManifest, topics: Mapping[str, Topic], lows: Offsets, ends: Offsets
) -> str:
    """Which offsets of a range can't be read, and why; empty if all can."""
    topic = topics.get(one.topic)
    if topic is None:
        return f"{one}: topic {one.topic!r} is gone"
    if topic.id != manifest.topics[one.topic]:
        return f"{one}: {_recreated(one.topic, bound=manifest.topics[one.topic], found=topic.id)}"
    if one.name not in topic.partitions:
        return f"{one}: topic {one.topic!r} has {len(topic.partitions)} partitions"
    if lows[one.name] > one.lower:
        lost = Range(one.topic, one.partition, one.lower, min(one.upper, lows[one.name]))
        verb = "has" if lost.size == 1 else "have"
        return f"{lost} {verb} expired: the partition begins at {lows[one.name]}"
    if ends[one.name] < one.upper:
        return f"{one}: the partition ends at {ends[one.name]}"
    return ""
