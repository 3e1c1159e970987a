"""The state plane's port: folding a log's tail into a state by one commit, and reading both.

Promise: `publish` makes exactly one commit of the state's table, on the state that it was worked out against;
none when that has moved on meanwhile (`Conflict`: decide again) or when it raises `Determinate`; after an
error that leaves this open, `standing` tells. The commit carries its `StateCommit`. All inputs are pinned (a
range of transactions at a version of the log, the state at its record), so that doing it again gives the same
rows.

What maintenance needs of the engines: merging a log's files, and keeping a state's table in shape.

Promise: neither changes a row. The `merge` of a log writes to a folder of its own that nobody sees; whoever
calls puts it into the log. What a `StateKeeper` commits, publishers and readers recognise as no publish.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tidemark.core.checksum import Digest
from tidemark.core.ids import ShardId, Txn, WriterToken
from tidemark.core.ledger import Conflict
from tidemark.core.publish import Published, StateCommit, StateStatus
from tidemark.core.seal import Part


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


class StateStatusReader(Protocol):
    """Tells where states stand; needs no engine."""

    def standing(self, shard: ShardId, since: Published | None) -> StateStatus:
        """What the table says of itself, and of what happened to it since the given record."""
        ...


class StatePlane(StateStatusReader, Protocol):
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


class Merger(Protocol):
    """Rewrites the files of a log. `Determinate` when it can't, because files are damaged or gone."""

    def merge(self, shard: ShardId, files: Sequence[Part], *, folder: str) -> tuple[Part, ...]:
        """Write the rows of these files to few in a folder below the log."""
        ...

    def digests_by_txn(self, shard: ShardId, parts: Sequence[Part]) -> Mapping[Txn, Digest]:
        """The digest of each transaction's rows in these files, as they are on disk."""
        ...


class StateKeeper(StateStatusReader, Protocol):
    """Rewrites and cleans the tables of a state, without changing a row. `tombstones` is the version of those
    that belongs to the state: where they have moved on, by a publish that is not through, they are left.
    `BeingPublished` when publishes have left it no chance; nothing is half done then."""

    def merge(self, shard: ShardId, *, tombstones: int) -> None:
        """Merge small files."""
        ...

    def purge(self, shard: ShardId) -> None:
        """Write the files anew that deletion vectors have taken rows out of."""
        ...

    def vacuum(self, shard: ShardId, *, tombstones: int) -> None:
        """Delete the files that no version within the table's retention needs."""
        ...
