"""What can go wrong at a port call, and who decides it.

A `Chaos` is asked before every call of an unreliable store. It may let other actors run first (the
simulation's scheduler does), and it says which fault the call meets.

Ledgers in memory: the shared truth, and each process's own, possibly unreliable, view of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import Any, Generic, Protocol, TypeVar

from tidemark.core.errors import Determinate, Indeterminate, InvariantViolation
from tidemark.core.ledger import CommitOutcome, Committed, Conflict, Head, Put, Record


class Fault(Enum):
    """One call's fate."""

    NONE = "works"
    FAIL = "fails, and says so"
    CRASH_BEFORE = "the process dies before the effect"
    CRASH_AFTER = "the process dies after the effect"
    LOSE_REPLY = "the effect happens, the reply is lost"
    LOSE_REQUEST = "nothing happens, and nobody says so"
    DELAY = "the effect happens later, the reply is lost"
    DUPLICATE = "the effect is asked for twice"
    STALE = "an older snapshot is read"


class Chaos(Protocol):
    """Decides each call's fate."""

    def meet(self, call: str) -> Fault: ...


class Calm:
    """No faults at all."""

    def meet(self, call: str) -> Fault:
        return Fault.NONE


class Crash(BaseException):
    """The process died here. Not an `Exception`, so that no handler takes it for an error."""


R = TypeVar("R", bound=Record)


class MemoryLedger(Generic[R]):
    """The truth: every version's marks, and the records in order of their commits."""

    def __init__(self) -> None:
        self._marks: list[Mapping[str, int]] = [{}]
        self._counts: list[int] = [0]
        self._records: list[R] = []
        self.delayed: list[Callable[[], object]] = []
        self.restored: list[int] = []

    @property
    def version(self) -> int:
        return len(self._marks) - 1

    def head(self, version: int) -> Head:
        return Head(version, self._marks[version])

    def records(self, version: int) -> Sequence[R]:
        return self._records[self._begin(version) : self._counts[version]]

    def _begin(self, version: int) -> int:
        """The first record that a version still has."""
        return 0

    def commit(self, head: Head, put: Put[R, Any]) -> CommitOutcome:
        if head.version != self.version:
            return Conflict()
        marks = self.head(head.version).moved(put.marks)
        self._records.extend(put.records)
        self._marks.append(marks)
        self._counts.append(len(self._records))
        return Committed(self.version)

    def restore(self, version: int) -> None:
        """Go back to a version, as a table does whose newest commits are lost, or that a copy took the place
        of. What was under way is lost with the machine."""
        self.restored.append(version)
        self.delayed.clear()
        del self._marks[version + 1 :]
        del self._counts[version + 1 :]
        del self._records[self._counts[version] :]


class MemoryLedgerView(Generic[R]):
    """One process's handle on a ledger. Reads answer from the snapshot that `head` loaded last."""

    def __init__(self, truth: MemoryLedger[R], chaos: Chaos | None = None, name: str = "ledger") -> None:
        self._truth = truth
        self._chaos = chaos or Calm()
        self._name = name
        self._version = 0
        self._lagged = False
        self._restores = len(truth.restored)

    @contextmanager
    def called(self, name: str) -> Iterator[None]:
        """Calls within have another name."""
        own, self._name = self._name, name
        try:
            yield
        finally:
            self._name = own

    def _require_same(self) -> None:
        """A table that was set back below what this process has seen is not the one that it knows."""
        if any(version < self._version for version in self._truth.restored[self._restores :]):
            raise InvariantViolation(f"{self._name} was set back under a living process")
        self._restores = len(self._truth.restored)

    def head(self) -> Head:
        fault = self._chaos.meet(f"{self._name}.head")
        if fault in (Fault.CRASH_BEFORE, Fault.CRASH_AFTER):
            raise Crash
        self._require_same()
        newest = self._truth.version
        # A stale read never goes back behind what this process has seen itself, and a second look is fresh.
        self._lagged = fault is Fault.STALE and not self._lagged
        self._version = max(self._version, newest - 1) if self._lagged else newest
        return self._truth.head(self._version)

    def mark(self, name: str) -> int:
        self._require_same()
        return self._truth.head(self._version).marks.get(name, 0)

    def marked(self, prefix: str) -> Mapping[str, int]:
        self._require_same()
        marks = self._truth.head(self._version).marks
        return {name.removeprefix(prefix): at for name, at in marks.items() if name.startswith(prefix)}

    def read(self, lower: int, upper: int, kinds: tuple[type, ...] = ()) -> Sequence[R]:
        found = (r for r in self._of(kinds) if lower <= r.number < upper)
        return sorted(found, key=lambda r: r.number)

    def find(self, key: str, kinds: tuple[type, ...] = ()) -> Sequence[R]:
        return sorted((r for r in self._of(kinds) if r.key == key), key=lambda r: r.number)

    def _of(self, kinds: tuple[type, ...]) -> Iterator[R]:
        self._require_same()
        return (r for r in self._truth.records(self._version) if not kinds or isinstance(r, kinds))

    def commit(self, head: Head, put: Put[R, Any]) -> CommitOutcome:
        fault = self._chaos.meet(f"{self._name}.commit")
        self._require_same()
        match fault:
            case Fault.FAIL:
                raise Determinate(f"{self._name} did not take the commit")
            case Fault.CRASH_BEFORE:
                raise Crash
            case Fault.LOSE_REQUEST:
                raise Indeterminate(f"{self._name} did not answer")
            case Fault.DELAY:
                self._truth.delayed.append(lambda: self._truth.commit(head, put))
                raise Indeterminate(f"{self._name} did not answer")
        outcome = self._truth.commit(head, put)
        match fault:
            case Fault.CRASH_AFTER:
                raise Crash
            case Fault.LOSE_REPLY:
                raise Indeterminate(f"{self._name} did not answer")
            case Fault.DUPLICATE:
                self._truth.commit(head, put)
        return outcome
