"""A change source in memory, with partitions and source transactions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.support.memory.fold import Position
from tests.support.memory.ledger import Calm, Chaos, Crash, Fault
from tidemark.core.binding import Binding, Step
from tidemark.core.ids import Frontier, ShardId
from tidemark.core.replay import Replayable


@dataclass(frozen=True, slots=True)
class SourceRecord:
    """One change: a new value for a key of a table, or its deletion (`value` is None).

    `ends` marks the last record of a source transaction: offers are cut there and nowhere else."""

    table: ShardId
    key: tuple[object, ...]
    value: object
    sequence: int | None = None
    ends: bool = True


class MemorySource:
    """Partitions of records that can grow, shrink and be tampered with."""

    def __init__(self, *, records_max: int = 1_000_000) -> None:
        self.partitions: dict[str, list[SourceRecord]] = {}
        self.acknowledged = Frontier()
        self._records_max = records_max

    def append(self, partition: str, *records: SourceRecord) -> None:
        self.partitions.setdefault(partition, []).extend(records)

    def _cut(self, partition: str, lower: int) -> int:
        """The end of the last whole source transaction, at most `records_max` records on (or one)."""
        records = self.partitions[partition]
        cut = lower
        for offset in range(lower, len(records)):
            if offset - lower >= self._records_max and cut > lower:
                break
            if records[offset].ends:
                cut = offset + 1
        return cut

    def offer(self, last: Binding | None) -> Sequence[Step]:
        lower = last.upper if last is not None else Frontier()
        steps: list[Step] = []
        while True:
            reached = {name: self._cut(name, min(lower[name], len(r))) for name, r in self.partitions.items()}
            upper = Frontier.of(reached)
            if upper <= lower <= upper:
                return steps
            steps.append(Step(upper))
            if not lower <= upper:
                return steps
            lower = upper

    def inspect(self, binding: Binding) -> str:
        for partition, upper in binding.upper.offsets:
            size = len(self.partitions.get(partition, ()))
            if size < upper:
                return f"partition {partition!r} ends at {size}, and [{size}, {upper}) is missing"
        return ""

    def replayable(self, bindings: Sequence[Binding]) -> Sequence[Replayable]:
        return [Replayable(gone=self.inspect(binding)) for binding in bindings]

    def acknowledge(self, frontier: Frontier) -> None:
        known = self.acknowledged.as_dict()
        ahead = {name: max(upper, known.get(name, 0)) for name, upper in frontier.offsets}
        self.acknowledged = Frontier.of({**known, **ahead})

    def records(self, binding: Binding) -> Iterator[tuple[Position, SourceRecord]]:
        """The records of one binding, partition by partition."""
        for partition, upper in binding.upper.offsets:
            for offset in range(binding.lower[partition], upper):
                yield Position(partition, offset), self.partitions[partition][offset]


class MemorySourceView:
    """One process's connection to a source; acknowledgements may get lost or come late."""

    def __init__(self, truth: MemorySource, chaos: Chaos | None = None) -> None:
        self._truth = truth
        self._chaos = chaos or Calm()

    def offer(self, last: Binding | None) -> Sequence[Step]:
        if self._chaos.meet("source.offer") in (Fault.CRASH_BEFORE, Fault.CRASH_AFTER):
            raise Crash
        return self._truth.offer(last)

    def inspect(self, binding: Binding) -> str:
        return self._truth.inspect(binding)

    def replayable(self, bindings: Sequence[Binding]) -> Sequence[Replayable]:
        return self._truth.replayable(bindings)

    def acknowledge(self, frontier: Frontier) -> None:
        fault = self._chaos.meet("source.acknowledge")
        if fault is Fault.CRASH_BEFORE:
            raise Crash
        if fault is not Fault.LOSE_REQUEST:
            self._truth.acknowledge(frontier)
        if fault is Fault.CRASH_AFTER:
            raise Crash
