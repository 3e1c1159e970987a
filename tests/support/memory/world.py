"""A small world for tests: one warehouse and one source in memory, any number of processes.

A process is a `Pipeline` with its own views. What happens to its calls is written down beforehand
in a `Script`: the n-th call of a name meets a fault, or lets somebody else run first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from itertools import count
from typing import Any

from tests.support.memory.control import MemoryControl, MemoryWarehouse
from tests.support.memory.fold import Change, Key, fold, visible
from tests.support.memory.ledger import Chaos, Fault, MemoryLedger
from tests.support.memory.plane import Files, MemoryPlane
from tests.support.memory.source import MemorySource, MemorySourceView, SourceRecord
from tidemark.core.binding import Binding, Configuration, Owner
from tidemark.core.ids import Frontier, ShardId, Txn, WriterToken
from tidemark.core.ledger import Event, Head, JournalEntry
from tidemark.core.log import LogEntry
from tidemark.core.seal import Seal
from tidemark.pipeline.context import Attempt, Pipeline
from tidemark.pipeline.run import RunReport, run

A, B = ShardId("a"), ShardId("b")
CONFIGURATION = Configuration.of("{}")


def rec(
    key: object, value: object, *, table: str = "a", sequence: int | None = None, ends: bool = True
) -> SourceRecord:
    """`key→value`; a compound key is given as a tuple."""
    whole = key if isinstance(key, tuple) else (key,)
    return SourceRecord(ShardId(table), whole, value, sequence, ends)


class Script:
    """A chaos that does what was written down, and remembers every call."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self._faults: dict[tuple[str, int], Fault] = {}
        self._hooks: dict[tuple[str, int], Callable[[], object]] = {}

    def fault(self, call: str, fault: Fault, *, nth: int = 1) -> Script:
        self._faults[call, nth] = fault
        return self

    def before(self, call: str, action: Callable[[], object], *, nth: int = 1) -> Script:
        self._hooks[call, nth] = action
        return self

    def meet(self, call: str) -> Fault:
        self.calls.append(call)
        at = (call, self.calls.count(call))
        self._hooks.pop(at, lambda: None)()
        return self._faults.get(at, Fault.NONE)


class AtOnce(Executor):
    """A background without threads: what is submitted is done before anything else goes on."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except Exception as error:
            done.set_exception(error)
        return done


class World:
    """What is durable, and handles for the processes that work on it."""

    def __init__(self, *, records_max: int = 1_000_000) -> None:
        self.warehouse = MemoryWarehouse()
        self.source = MemorySource(records_max=records_max)
        self.files: Files = {}
        self._numbers = count(1)

    def process(
        self,
        chaos: Chaos | None = None,
        *,
        generation: int = 0,
        configuration: Configuration = CONFIGURATION,
        parts_max: int = 2,
    ) -> Pipeline:
        return Pipeline(
            MemoryControl(self.warehouse, chaos),
            MemorySourceView(self.source, chaos),
            MemoryPlane(self.source, self.files, chaos, parts_max=parts_max),
            configuration,
            generation,
        )

    def attempt(self, run_id: str = "", *, cleared: bool = False) -> Attempt:
        """A new try; without a run id, of a run of its own."""
        number = next(self._numbers)
        return Attempt(Owner(run_id or f"run{number}"), WriterToken(f"w{number}"), cleared)

    def run(self, chaos: Chaos | None = None) -> RunReport:
        """A whole run by a process of its own."""
        return run(self.process(chaos), self.attempt())

    def feed(self, *records: SourceRecord, partition: str = "p0") -> None:
        self.source.append(partition, *records)

    def commit(self, *records: SourceRecord, partition: str = "p0") -> RunReport:
        """One transaction with these records, through to its logs."""
        self.feed(*records, partition=partition)
        return self.run()

    # What is durable now, from the truth itself.

    @property
    def bindings(self) -> list[Binding]:
        return list(newest(self.warehouse.bindings))

    @property
    def seals(self) -> list[Seal]:
        return newest(self.warehouse.seals)

    @property
    def sealed_upper(self) -> Txn:
        return head_of(self.warehouse.seals).upper

    @property
    def checkpoint(self) -> Txn:
        return Txn(head_of(self.warehouse.checkpoints).upper - 1)

    @property
    def acknowledged(self) -> Frontier:
        return self.source.acknowledged

    def journal(self, event: Event | None = None) -> list[JournalEntry]:
        return [entry for entry in newest(self.warehouse.journal) if event in (None, entry.event)]

    def log(self, shard: ShardId = A) -> list[LogEntry]:
        return newest(self.warehouse.log(shard))

    def log_txns(self, shard: ShardId = A) -> list[int]:
        return [entry.txn for entry in self.log(shard)]

    def rows(self, shard: ShardId = A) -> list[Change]:
        """Every row of the shard's log."""
        return [row for entry in self.log(shard) for part in entry.parts for row in self.files[part.path]]

    def state(self, shard: ShardId = A) -> Mapping[Key, object]:
        return visible(fold(self.rows(shard)))

    def feed_of_changes(self, shard: ShardId = A) -> list[tuple[str, Key, object, int]]:
        """What a state that is published after every transaction changes: ('-' | '+', key, value, txn)."""
        changes: list[tuple[str, Key, object, int]] = []
        rows: list[Change] = []
        before: Mapping[Key, object] = {}
        for entry in self.log(shard):
            rows += [row for part in entry.parts for row in self.files[part.path]]
            after = visible(fold(rows))
            for key in sorted({*before, *after}, key=repr):
                if before.get(key) == after.get(key):
                    continue
                changes += [("-", key, before[key], int(entry.txn))] if key in before else []
                changes += [("+", key, after[key], int(entry.txn))] if key in after else []
            before = after
        return changes


def newest(ledger: MemoryLedger) -> list:  # type: ignore[type-arg]
    return list(ledger.records(ledger.version))


def head_of(ledger: MemoryLedger) -> Head:  # type: ignore[type-arg]
    return ledger.head(ledger.version)


def simple(state: Mapping[Key, object]) -> dict[object, object]:
    """{k: v} instead of {(k,): v}, for keys of one part."""
    return {key[0]: value for key, value in state.items()}
