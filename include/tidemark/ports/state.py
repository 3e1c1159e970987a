"""The state plane's port: folding a log's tail into a state by one commit, and reading both.

Promise: `publish` makes exactly one commit of the state's table, on the state that it was worked out against;
none when that has moved on meanwhile (`Conflict`: decide again) or when it raises `Determinate`; after an
error that leaves this open, `standing` tells. The commit carries its `StateCommit`. All inputs are pinned (a
range of transactions at a version of the log, the state at its record), so that doing it again gives the same
rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tidemark.core.checksum import Digest
from tidemark.core.ids import ShardId, Txn, WriterToken
from tidemark.core.ledger import Conflict
from tidemark.core.publish import Published, StateCommit, StateStanding


@dataclass(frozen=True, slots=True)
class Tail:
    """The log's rows with lower <= txn < upper, at a version of its table that shows them all.

    `watermark` is the highest sequence below `lower`: tombstones that are too late for it may go. `link` is
    that of its last transaction."""

    lower: Txn
    upper: Txn
    log_version: int
    watermark: int | None = None
    link: int = 0

    @property
    def txn(self) -> Txn:
        return Txn(self.upper - 1)


class StateStandings(Protocol):
    """Tells where states stand; needs no engine."""

    def standing(self, shard: ShardId, since: Published | None) -> StateStanding:
        """What the table says of itself, and of what happened to it since the given record."""
        ...


class StatePlane(StateStandings, Protocol):
    """Folds and commits; never decides."""

    def publish(
        self, shard: ShardId, tail: Tail, *, base: Published | None, token: WriterToken
    ) -> tuple[int, StateCommit] | Conflict:
        """Bring the state from `base` to the tail's end; the version and the commit that did it."""
        ...

    def tidy(self, shard: ShardId) -> None:
        """What a publish has left to do for the next ones and for readers, once it is on record. It changes
        no row, takes about as long as a publish, and raises nothing: what fails is left for the next time."""
        ...

    def rebuild(
        self, shard: ShardId, tail: Tail, *, base: Published | None, token: WriterToken
    ) -> tuple[int, StateCommit] | Conflict:
        """Replace the whole state, by one commit, with what the tail makes of `base` (or of nothing)."""
        ...

    def digest(self, shard: ShardId, version: int) -> Digest:
        """The digest of the rows that the state has at a version."""
        ...

    def repeated(self, shard: ShardId, version: int) -> int:
        """How many keys have more than one row at a version. A digest doesn't tell: a row that a publish
        forgot to take out is in the digest that it carried forward, too."""
        ...
