"""Ports of a source: what can be bound, whether it is still readable, and what may be discarded.

Promise: steps end at boundaries of the source's own transactions, each one above the previous, and none
larger than a transaction may be. An offer that is lower than the bound input is returned as it is; the core
rejects it.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from tidemark.core.binding import Binding, Step
from tidemark.core.ids import Frontier, ShardId, Txn
from tidemark.core.replay import Replayable


class Source(Protocol):
    """A source of change records."""

    def offer(self, last: Binding | None) -> Sequence[Step]:
        """The input that can be bound next, above the last binding, divided into transactions."""
        ...

    def inspect(self, binding: Binding) -> str:
        """Why the bound input can't be read any more as it was; empty if it can."""
        ...

    def replayable(self, bindings: Sequence[Binding]) -> Sequence[Replayable]:
        """For each binding, whether and until when its input can still be read as it was."""
        ...

    def acknowledge(self, frontier: Frontier) -> None:
        """Acknowledge that everything below the frontier is durable for every shard; the source may discard
        it. The frontier never goes back."""
        ...


@dataclass(frozen=True, slots=True)
class SourceReport:
    """A source's report of its position. `cost` describes what it keeps for this pipeline, `retained_bytes`
    is its size, None if not counted. `trouble` is the problem and its remedy; empty if there is none."""

    acknowledged: str
    cost: str = ""
    trouble: str = ""
    retained_bytes: int | None = None


class SkippedInput(Protocol):
    """A piece of input that is not bound now, and why."""

    @property
    def name(self) -> str: ...

    @property
    def reason(self) -> str: ...


@runtime_checkable
class ReportsSkipped(Protocol):
    """A source that may leave input for later, and reports it."""

    @property
    def skipped(self) -> Sequence[SkippedInput]:
        """The input that the last offer left out."""
        ...


@runtime_checkable
class BindsNothing(Protocol):
    """A source whose bindings carry notes from one to the next."""

    def nothing_after(self, last: Binding | None, *, lost: bool) -> Step:
        """The step that reads nothing: what follows it is offered as after the given binding. `lost` means
        that the step stands for input that is lost."""
        ...


@runtime_checkable
class ReportsPosition(Protocol):
    """A source that keeps input for this pipeline, and reports how much."""

    def status(self) -> SourceReport:
        """The current report; if the source can't be reached, `trouble` is why."""
        ...

    def shown(self, frontier: Frontier) -> str:
        """A frontier in the source's own notation."""
        ...


@dataclass(frozen=True, slots=True)
class Waiting:
    """Input that is not bound yet: the number of pieces, their bytes (0 if not counted), and the age of the
    oldest. `unit` names the pieces; `trouble` is why this is unknown, and is empty otherwise."""

    pieces: int = 0
    bytes: int = 0
    oldest_seconds: float | None = None
    trouble: str = ""
    unit: str = "files"


@runtime_checkable
class ReportsWaiting(Protocol):
    """A source that reports its waiting input."""

    def waiting(self, last: Binding | None) -> Waiting:
        """The input above the last binding; binds and reads nothing."""
        ...


@dataclass(frozen=True, slots=True)
class Unneeded:
    """Files that a source kept for replays and that are no longer needed; `waiting` are those that must still
    stay, and `held_by` is the reason."""

    files: int = 0
    bytes: int = 0
    waiting: int = 0
    waiting_bytes: int = 0
    held_by: str = ""


@runtime_checkable
class RetainsInput(Protocol):
    """A source that keeps bound input for replays until maintenance deletes it."""

    def unneeded(self, since: Txn) -> Unneeded:
        """The files that no transaction from `since` on reads, and that the source itself will not need
        again."""
        ...

    def let_go(self, since: Txn) -> Unneeded:
        """Delete these files; return what was deleted."""
        ...


class ShardKeysPort(Protocol):
    """Queries of a source about the shards: for a source that reports only "all rows are deleted"."""

    def untouched(self, shards: Sequence[ShardId]) -> Set[ShardId]:
        """The shards that nothing was ever bound to."""
        ...

    def is_settled(self, shard: ShardId) -> bool:
        """Whether everything that is bound to the shard is in its log."""
        ...

    def is_paused(self, shard: ShardId) -> bool:
        """Whether the shard's log waits for a release; until then the shard is not settled."""
        ...

    def files(self, shard: ShardId) -> Sequence[Path]:
        """The files with at least the keys of all rows that the shard has; once it is settled, of all rows
        that are bound. Nobody writes them again; maintenance may remove them."""
        ...
