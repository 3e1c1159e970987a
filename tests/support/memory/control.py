"""A pipeline's ledgers in memory: one warehouse, any number of processes' views of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar, cast

from tests.support.memory.ledger import Chaos, Crash, Fault, MemoryLedger, MemoryLedgerView
from tests.support.memory.versions import MemoryStates
from tidemark.core.binding import Binding, BindingRecord
from tidemark.core.checkpoint import Checkpoint
from tidemark.core.generation import Candidate
from tidemark.core.history import CHAPTERS, Chapter, HistoryRecord, Recovery, chapter_head
from tidemark.core.ids import ShardId, Txn
from tidemark.core.lease import LeaseRecord
from tidemark.core.ledger import CommitOutcome, Committed, Head, JournalEntry, Put
from tidemark.core.log import LogEntry, LogFile
from tidemark.core.maintenance import Replacement
from tidemark.core.publish import Cut, Published, StateCommit
from tidemark.core.seal import Evidence, Seal
from tidemark.core.shape import Shape, misfit

R = TypeVar("R")
MADE_AT = "memory"


class MemoryTruth(Generic[R]):
    """A chapter of the shared history, for who checks what came of it all."""

    def __init__(self, history: MemoryLedger[HistoryRecord], name: str) -> None:
        self._history, self._chapter = history, CHAPTERS[name]

    @property
    def version(self) -> int:
        return self._history.version

    def head(self, version: int) -> Head:
        return chapter_head(self._history.head(version), self._chapter["upper"])

    def records(self, version: int) -> Sequence[R]:
        kinds = self._chapter["kinds"]
        return [cast("R", one) for one in self._history.records(version) if isinstance(one, kinds)]


class MemoryWarehouse:
    """The durable truth that all processes share."""

    def __init__(self) -> None:
        self.history: MemoryLedger[HistoryRecord] = MemoryLedger()
        self.attempts: MemoryLedger[Evidence] = MemoryLedger()
        self.checkpoints: MemoryLedger[Checkpoint] = MemoryLedger()
        self.journal: MemoryLedger[JournalEntry] = MemoryLedger()
        self.leases: MemoryLedger[LeaseRecord] = MemoryLedger()
        self.cuts: MemoryLedger[Cut] = MemoryLedger()
        self.logs: dict[ShardId, MemoryLog] = {}
        self.shapes: dict[ShardId, Shape] = {}
        self.records: dict[ShardId, MemoryLedger[Published]] = {}
        self.states = MemoryStates()
        self.address = MADE_AT

    @property
    def bindings(self) -> MemoryTruth[Binding]:
        return MemoryTruth(self.history, "bindings")

    @property
    def seals(self) -> MemoryTruth[Seal]:
        return MemoryTruth(self.history, "seals")

    @property
    def recoveries(self) -> MemoryTruth[Recovery]:
        return MemoryTruth(self.history, "recoveries")

    def log(self, shard: ShardId) -> MemoryLog:
        if shard not in self.logs:
            self.logs[shard] = MemoryLog(self.shapes, shard)
        return self.logs[shard]

    def publishes(self, shard: ShardId) -> MemoryLedger[Published]:
        return self.records.setdefault(shard, MemoryLedger())

    def land_delayed(self) -> Iterator[object]:
        """Let every write that is still under way arrive now; one at a time, so a caller may stop."""
        ledgers: tuple[MemoryLedger[Any], ...] = (
            self.history,
            self.attempts,
            self.checkpoints,
            self.journal,
            self.leases,
            self.cuts,
            *self.logs.values(),
            *self.records.values(),
        )
        for ledger in ledgers:
            while ledger.delayed:
                yield ledger.delayed.pop(0)()


class MemoryChapter(Chapter[R]):
    """A chapter whose calls have its own name, for who scripts faults."""

    def __init__(self, history: MemoryLedgerView[HistoryRecord], name: str, *, called: str = "") -> None:
        super().__init__(history, **CHAPTERS[name])
        self._history, self._name = history, called or name

    def head(self) -> Head:
        with self._history.called(self._name):
            return super().head()

    def commit(self, head: Head, put: Put[R, Any]) -> CommitOutcome:
        with self._history.called(self._name):
            return super().commit(head, put)


def active_files(changes: Iterable[LogEntry | Replacement]) -> list[LogFile]:
    """The files that a log names after these changes. A merged file has its transactions in its name."""
    files: dict[str, LogFile] = {}
    for change in changes:
        if isinstance(change, LogEntry):
            files |= {part.path: LogFile(part, change.txn, change.txn) for part in change.parts}
            continue
        for old in change.removed:
            del files[old.part.path]
        for part in change.added:
            first, last = part.path.split("/")[1].split("-")[1:]
            files[part.path] = LogFile(part, Txn(int(first)), Txn(int(last)))
    return list(files.values())


class MemoryLog(MemoryLedger[LogEntry]):
    """A log's truth: its entries, and replacements of their files by maintenance. An entry that replaces it
    begins it anew under its own shape."""

    def __init__(self, shapes: dict[ShardId, Shape], shard: ShardId) -> None:
        super().__init__()
        self._shapes, self._shard = shapes, shard
        self._begins: list[tuple[int, int, Shape | None]] = []

    def commit(self, head: Head, put: Put[LogEntry, Any]) -> CommitOutcome:
        before = self._counts[-1]
        outcome = super().commit(head, put)
        for entry in put.records if isinstance(outcome, Committed) else ():
            if isinstance(entry, LogEntry) and entry.replaced is not None:
                self._begins.append((self.version, before, self._shapes.get(self._shard)))
                self._shapes[self._shard] = entry.replaced
        return outcome

    def restore(self, version: int) -> None:
        while self._begins and self._begins[-1][0] > version:
            _, _, shape = self._begins.pop()
            if shape is not None:
                self._shapes[self._shard] = shape
        super().restore(version)

    def _begin(self, version: int) -> int:
        return max((begin for at, begin, _ in self._begins if at <= version), default=0)

    def records(self, version: int) -> Sequence[LogEntry]:
        """The entries, also those whose files were replaced or removed since."""
        return [one for one in self.changes(version) if isinstance(one, LogEntry)]

    def changes(self, version: int) -> Sequence[LogEntry | Replacement]:
        return super().records(version)

    def files(self, version: int) -> list[LogFile]:
        return active_files(self.changes(version))


class MemoryLogView(MemoryLedgerView[LogEntry]):
    """One process's handle on a log."""

    def __init__(self, warehouse: MemoryWarehouse, chaos: Chaos | None, shard: ShardId) -> None:
        super().__init__(warehouse.log(shard), chaos, "log")
        self._log, self._shapes, self._shard = warehouse.log(shard), warehouse.shapes, shard

    def _of(self, kinds: tuple[type, ...]) -> Iterator[LogEntry]:
        """The entries whose files the log still names: there is no other record of them."""
        self._require_same()
        entries = self._log.records(self._version)
        if len(entries) == len(self._log.changes(self._version)):
            return iter(entries)
        named = {file.part.path for file in self._log.files(self._version)}
        return (one for one in entries if any(part.path in named for part in one.parts))

    def shape(self) -> Shape | None:
        return self._shapes.get(self._shard)

    def declare(self, shape: Shape) -> None:
        fault = self._chaos.meet("log.declare")
        if fault is Fault.CRASH_BEFORE:
            raise Crash
        there = self._shapes.get(self._shard)
        if misfit(self._shard, recorded=there, declared=shape) is None:
            self._shapes[self._shard] = there.widened(shape) if there is not None else shape
        if fault is Fault.CRASH_AFTER:
            raise Crash

    def files(self) -> Sequence[LogFile]:
        self._require_same()
        return self._log.files(self._version)


class MemoryControl:
    """One process's view of a warehouse."""

    def __init__(self, warehouse: MemoryWarehouse, chaos: Chaos | None = None) -> None:
        self._warehouse = warehouse
        self._chaos = chaos
        self.history = MemoryLedgerView(warehouse.history, chaos, "history")
        self.bindings: MemoryChapter[Binding] = MemoryChapter(self.history, "bindings")
        self.owned: MemoryChapter[BindingRecord] = MemoryChapter(self.history, "owned", called="bindings")
        self.seals: MemoryChapter[Seal] = MemoryChapter(self.history, "seals")
        self.recoveries: MemoryChapter[Recovery] = MemoryChapter(self.history, "recoveries")
        self.candidates: MemoryChapter[Candidate] = MemoryChapter(self.history, "candidates")
        self.attempts = MemoryLedgerView(warehouse.attempts, chaos, "attempts")
        self.checkpoints = MemoryLedgerView(warehouse.checkpoints, chaos, "checkpoints")
        self.journal = MemoryLedgerView(warehouse.journal, chaos, "journal")
        self.leases = MemoryLedgerView(warehouse.leases, chaos, "leases")
        self.cuts = MemoryLedgerView(warehouse.cuts, chaos, "cuts")
        self.address = warehouse.address
        self.made_at = MADE_AT
        self._logs: dict[ShardId, MemoryLogView] = {}
        self._publishes: dict[ShardId, MemoryLedgerView[Published]] = {}

    def shards(self) -> Sequence[ShardId]:
        return sorted(self._warehouse.logs)

    def log(self, shard: ShardId) -> MemoryLogView:
        if shard not in self._logs:
            self._logs[shard] = MemoryLogView(self._warehouse, self._chaos, shard)
        return self._logs[shard]

    def publishes(self, shard: ShardId) -> MemoryLedgerView[Published]:
        if shard not in self._publishes:
            truth = self._warehouse.publishes(shard)
            self._publishes[shard] = MemoryLedgerView(truth, self._chaos, "publishes")
        return self._publishes[shard]

    def state_commit(self, shard: ShardId, *, after: int) -> StateCommit | None:
        return self._warehouse.states.newest_commit(shard, after)
