"""What maintenance needs of the engines: merging a log's files, and keeping a state's table in shape.

Promise: neither changes a row. The `merge` of a log writes to a folder of its own that nobody sees; whoever
calls puts it into the log. What a `StateKeeper` commits, publishers and readers recognise as no publish.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from tidemark.core.checksum import Digest
from tidemark.core.ids import ShardId, Txn
from tidemark.core.seal import Part
from tidemark.ports.state import StateStandings


class Merger(Protocol):
    """Rewrites the files of a log. `Determinate` when it can't, because files are damaged or gone."""

    def merge(self, shard: ShardId, files: Sequence[Part], *, folder: str) -> tuple[Part, ...]:
        """Write the rows of these files to few in a folder below the log."""
        ...

    def digests_by_txn(self, shard: ShardId, parts: Sequence[Part]) -> Mapping[Txn, Digest]:
        """The digest of each transaction's rows in these files, as they are on disk."""
        ...


class StateKeeper(StateStandings, Protocol):
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
