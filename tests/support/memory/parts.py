"""The files behind logs in memory, for the real reader."""

from __future__ import annotations

from collections.abc import Sequence

from tests.support.memory.control import MemoryControl
from tests.support.memory.plane import Files
from tidemark.core.ids import ShardId, Txn
from tidemark.core.log import begins_at
from tidemark.core.seal import Part
from tidemark.ports.control import LogListing


class MemoryParts:
    """The `PartFiles` of a warehouse in memory."""

    def __init__(self, control: MemoryControl, files: Files) -> None:
        self._control, self._files = control, files

    def listed(
        self, shard: ShardId, *, lower: Txn, upper: Txn | None = None, columns: Sequence[str] = ()
    ) -> LogListing:
        log = self._control.log(shard)
        head = log.head()
        files = tuple(file for file in log.files() if file.txn_last >= lower)
        return LogListing(head.version, head.upper, files, begins_at(head))

    def fault(self, shard: ShardId, part: Part, *, whole: bool) -> str:
        return "" if part.path in self._files else "there is no such file"
