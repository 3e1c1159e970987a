"""Ports of the data plane, the gate and the state plane: stage input, check rows, publish, maintain.

Promise of a `DataPlane`: `stage` and `replay` of one binding give the same digests, whatever the parallelism.
The files that `stage` writes belong to the attempt's token alone and are invisible to readers. `discard`
removes the files of that one attempt, and is a no-op if there are none.

Promise of a `Gate`: an opinion depends only on the staged rows and the user's expectations, and contains no
row.

Promise of `publish`: it makes exactly one commit of the state's table, on the state that it was computed
from. It makes none if that has changed in the meantime (`Conflict`: decide again) or if it raises
`Determinate`; after an error that leaves this open, `state_status` shows the outcome. The commit carries its
`StateCommit`. All inputs are pinned (a range of transactions at a version of the log, the state at its
record), so that repeating it gives the same rows.

Promise of maintenance: it changes no row. The `merge` of a log writes to a separate, invisible folder; the
caller commits it to the log. Publishers and readers recognize that a `StateKeeper`'s commits are not
publishes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from tidemark.core.binding import Binding
from tidemark.core.checksum import Digest, Digests
from tidemark.core.ids import ShardId, Txn, WriterToken
from tidemark.core.ledger import Conflict
from tidemark.core.publish import Published, StateCommit, StateStatus
from tidemark.core.seal import Opinion, Part, Staged


class DataPlane(Protocol):
    """Reads, decodes, folds, counts and writes; never decides."""

    def stage(self, binding: Binding, token: WriterToken) -> Staged:
        """Write the transaction's parts under the token, and compute digests of the rows read and written."""
        ...

    def read_back(self, staged: Staged, *, moved: Mapping[ShardId, Sequence[Part]] | None = None) -> Digests:
        """The digests of the transaction's rows, read again: from the staged parts or, for a shard in
        `moved`, from these files of its log, which may have rows of other transactions too."""
        ...

    def replay(self, binding: Binding) -> Staged:
        """The result that staging would give now, computed without writing anything."""
        ...

    def discard(self, txn: Txn, token: WriterToken) -> None:
        """Remove one attempt's parts."""
        ...

    def damaged(self, shard: ShardId, parts: Sequence[Part]) -> Sequence[Part]:
        """The parts whose file is missing, truncated, or can't be opened."""
        ...

    def restore(self, shard: ShardId, *, lost: Part, copy: Part) -> None:
        """Replace the file of a lost part by that of a staged one, atomically."""
        ...

    def attempts(self) -> Sequence[tuple[Txn, WriterToken]]:
        """The attempts whose parts are still on disk and in no log."""
        ...


class MaintainedPlane(DataPlane, Protocol):
    """A data plane with the operations of maintenance."""

    @property
    def log_rows(self) -> Merger:
        """The merger of its logs' files."""
        ...


class Gate(Protocol):
    """Checks staged rows; never decides."""

    def opinion(self, staged: Staged) -> Opinion:
        """The result of every shard's expectations for these rows."""
        ...


class NoExpectations:
    """The gate of a pipeline without expectations."""

    def opinion(self, staged: Staged) -> Opinion:
        return Opinion()


@dataclass(frozen=True, slots=True)
class Tail:
    """The log's rows with lower <= txn < upper, at a version of its table that has them all.

    `link` is that of its last transaction. `afresh` is whether the log was begun anew at `lower`, after the
    state's last publish: what the state has, its columns too, counts for nothing."""

    lower: Txn
    upper: Txn
    log_version: int
    link: int = 0
    afresh: bool = False

    @property
    def txn(self) -> Txn:
        return Txn(self.upper - 1)


class Freed(NamedTuple):
    """Files that something removes, or could remove, and their size."""

    files: int
    bytes: int


class StateStatusReader(Protocol):
    """Reads the status of states; needs no Spark."""

    def state_status(self, shard: ShardId, since: Published | None) -> StateStatus:
        """The status of the state's table, including changes since the given record."""
        ...


class StatePlane(StateStatusReader, Protocol):
    """Folds and commits; never decides."""

    def publish(
        self, shard: ShardId, tail: Tail, *, base: Published | None, token: WriterToken
    ) -> tuple[int, StateCommit] | Conflict:
        """Bring the state from `base` to the tail's end; return the new version and its commit."""
        ...

    def tidy(self, shard: ShardId) -> None:
        """Tidy the state after a publish is on record, for later publishes and readers. It changes no row,
        takes about as long as a publish, and raises nothing: work that fails is left for the next time."""
        ...

    def rebuild(
        self, shard: ShardId, tail: Tail, *, base: Published | None, token: WriterToken
    ) -> tuple[int, StateCommit] | Conflict:
        """Replace the whole state, by one commit, with the fold of the tail onto `base` (or onto nothing)."""
        ...

    def digest(self, shard: ShardId, version: int) -> Digest:
        """The digest of the state's rows at a version."""
        ...

    def repeated(self, shard: ShardId, version: int) -> int:
        """The number of keys with more than one row at a version. A digest doesn't show this: if a publish
        fails to remove a row, the digest that it carries forward includes the row too."""
        ...


class Merger(Protocol):
    """Rewrites the files of a log. `Determinate` if files are damaged or missing."""

    def merge(self, shard: ShardId, files: Sequence[Part], *, folder: str) -> tuple[Part, ...]:
        """Write the rows of these files to fewer files in a folder below the log."""
        ...

    def digests_by_txn(self, shard: ShardId, parts: Sequence[Part]) -> Mapping[Txn, Digest]:
        """The digest of each transaction's rows in these files, as they are on disk."""
        ...


class StateKeeper(StateStatusReader, Protocol):
    """Rewrites and cleans the tables of a state without changing a row. `tombstones` is the version of the
    tombstones that belongs to the state; if something else has moved them on, they are left alone.
    `BeingPublished` if publishes prevent the work; nothing is left half done."""

    def merge(self, shard: ShardId, *, tombstones: int) -> None:
        """Merge small files."""
        ...

    def purge(self, shard: ShardId) -> None:
        """Rewrite the files whose rows deletion vectors hide."""
        ...

    def vacuum(self, shard: ShardId, *, tombstones: int) -> None:
        """Delete the files that no version within the table's retention needs."""
        ...

    def too_late(self, shard: ShardId, *, watermark: int) -> Freed:
        """The files of tombstones that no record which is judged by this watermark, or a higher one, can lose
        to."""
        ...

    def expire(self, shard: ShardId, *, last: Published, watermark: int) -> Freed:
        """Remove those files from the tombstones. `watermark` is the lowest that judges a record after the
        `last` publish."""
        ...
