"""The data plane's port: turning bound input into staged parts.

Promise: `stage` and `replay` of one binding give the same digests, whatever the parallelism.
What `stage` writes belongs to the attempt's token alone and is invisible to readers. `discard`
removes the files of that one attempt, and is a no-op when there are none.

The gate's port: what the user's own expectations say of rows that are only staged.

Promise: an opinion depends on the staged rows and the expectations alone, and holds no row of them.
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
        """Write the transaction's parts under the token, and count what was read and written."""
        ...

    def read_back(self, staged: Staged, *, moved: Mapping[ShardId, Sequence[Part]] | None = None) -> Digests:
        """The digests that the transaction's rows give when they are read again: from the staged parts or,
        for a shard in `moved`, from these files of its log, which may have other transactions' rows too."""
        ...

    def replay(self, binding: Binding) -> Staged:
        """What staging would give now, computed without writing anything."""
        ...

    def discard(self, txn: Txn, token: WriterToken) -> None:
        """Remove one attempt's parts."""
        ...

    def damaged(self, shard: ShardId, parts: Sequence[Part]) -> Sequence[Part]:
        """Those of the parts whose file is gone, cut, or can't be opened."""
        ...

    def restore(self, shard: ShardId, *, lost: Part, copy: Part) -> None:
        """Put the file of a staged part in the place of a lost one, whole or not at all."""
        ...

    def attempts(self) -> Sequence[tuple[Txn, WriterToken]]:
        """The attempts whose parts are still on disk and in no log."""
        ...


class MaintainedPlane(DataPlane, Protocol):
    """A data plane as maintenance sees it."""

    @property
    def kept(self) -> Merger:
        """What rewrites the files of its logs."""
        ...


__all__ = ["Gate", "NoExpectations", "Opinion"]


class Gate(Protocol):
    """Looks at staged rows; never decides."""

    def opinion(self, staged: Staged) -> Opinion:
        """What the expectations of every shard say of these rows."""
        ...


class NoExpectations:
    """The gate of a pipeline that declares none."""

    def opinion(self, staged: Staged) -> Opinion:
        return Opinion()
