"""Ports of the data plane and the gate: stage bound input, and check staged rows.

Promise of a `DataPlane`: `stage` and `replay` of one binding give the same digests, whatever the parallelism.
The files that `stage` writes belong to the attempt's token alone and are invisible to readers. `discard`
removes the files of that one attempt, and is a no-op if there are none.

Promise of a `Gate`: an opinion depends only on the staged rows and the user's expectations, and contains no
row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from tidemark.core.binding import Binding
from tidemark.core.checksum import Digests
from tidemark.core.ids import ShardId, Txn, WriterToken
from tidemark.core.seal import Opinion, Part, Staged
from tidemark.ports.state import Merger


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
