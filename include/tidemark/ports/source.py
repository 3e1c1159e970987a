"""The source's port: what there is to bind, whether it is still there, and how far it may forget.

Promise: steps end at boundaries of the source's own transactions, each one above the one before
and none larger than a transaction may be. An offer that is lower than what is bound is reported
as it is; the core refuses it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from tidemark.core.binding import Binding, Step
from tidemark.core.frontier import Frontier
from tidemark.core.ids import ShardId, Txn
from tidemark.core.replay import Replayable


class Source(Protocol):
    """Where change records come from."""

    def offer(self, last: Binding | None) -> Sequence[Step]:
        """What could be bound next, above the last binding, cut into transactions."""
        ...

    def inspect(self, binding: Binding) -> str:
        """Why the bound input can't be read any more as it was; empty when it can."""
        ...

    def replayable(self, bindings: Sequence[Binding]) -> Sequence[Replayable]:
        """For each binding, whether its input can still be read as it was, and until when that is so."""
        ...

    def acknowledge(self, frontier: Frontier) -> None:
        """Everything below is durable for every shard; the source may forget it. Never goes back."""
        ...


@dataclass(frozen=True, slots=True)
class SourceReport:
    """Where a source stands by its own account. `cost` is what it keeps for us meanwhile, `kept_bytes` how
    much that is, None where it isn't counted; `trouble` says what is wrong and what to do, and is empty when
    nothing is."""

    acknowledged: str
    cost: str = ""
    trouble: str = ""
    kept_bytes: int | None = None


class SkippedInput(Protocol):
    """A piece of input that is not bound now, and why."""

    @property
    def name(self) -> str: ...

    @property
    def reason(self) -> str: ...


@runtime_checkable
class ReportsSkipped(Protocol):
    """A source that leaves some of what it sees for later, and can say what."""

    @property
    def skipped(self) -> Sequence[SkippedInput]:
        """What the last offer did not take."""
        ...


@runtime_checkable
class BindsNothing(Protocol):
    """A source whose bindings carry notes from one to the next."""

    def nothing_after(self, last: Binding | None) -> Step:
        """The step that reads nothing: what follows it is offered as after the given binding."""
        ...


@runtime_checkable
class ReportsPosition(Protocol):
    """A source that remembers for us, and can say how much."""

    def standing(self) -> SourceReport:
        """Where it stands now; one that can't be asked says so in `trouble`."""
        ...

    def shown(self, frontier: Frontier) -> str:
        """A frontier as the source's own people write it."""
        ...


@dataclass(frozen=True, slots=True)
class Waiting:
    """Input that is there and belongs to no transaction yet: how many pieces of it, how many bytes (0 where
    nobody counts them), and when the oldest came. `unit` is what the pieces are; `trouble` says why that
    can't be known, and is empty when it is."""

    pieces: int = 0
    bytes: int = 0
    oldest_seconds: float | None = None
    trouble: str = ""
    unit: str = "files"


@runtime_checkable
class ReportsWaiting(Protocol):
    """A source that can say what waits in it, and since when."""

    def waiting(self, last: Binding | None) -> Waiting:
        """What is there above the last binding; binds and reads nothing."""
        ...


@dataclass(frozen=True, slots=True)
class Unneeded:
    """Files that a source kept for replays and that nobody reads any more; `waiting` are those that still
    have to stay, and `held_by` says for what."""

    files: int = 0
    bytes: int = 0
    waiting: int = 0
    waiting_bytes: int = 0
    held_by: str = ""


@runtime_checkable
class RetainsInput(Protocol):
    """A source that keeps what was bound, so that replays can read it, until maintenance lets it go."""

    def unneeded(self, since: Txn) -> Unneeded:
        """What no transaction from `since` on reads, and the source itself will not ask for again."""
        ...

    def let_go(self, since: Txn) -> Unneeded:
        """Remove it; returns what went."""
        ...


class ShardKeysPort(Protocol):
    """What a source may ask of the shards: for a source that says "all rows are gone", and no more."""

    def untouched(self, shards: Sequence[ShardId]) -> Set[ShardId]:
        """Those of the shards that nothing was ever bound to."""
        ...

    def is_settled(self, shard: ShardId) -> bool:
        """Whether everything that is bound to the shard is in its log."""
        ...

    def is_paused(self, shard: ShardId) -> bool:
        """Whether the shard's log waits until someone releases it: it is not settled before that."""
        ...

    def keys(self, shard: ShardId, columns: Sequence[str]) -> Iterator[Mapping[str, Any]]:
        """At least the keys of all rows that the shard has; once it is settled, of all that are bound."""
        ...
