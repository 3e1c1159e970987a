"""The reader's port: which files a shard's log has, and whether a file is what it was sealed as.

Promise: `listed` is one snapshot of a log, whole. `fault` looks at one file and changes nothing; it may be
called by several threads at once. Where the store doesn't answer, both raise `Determinate`: a file that
can't be asked for is not a file that is gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tidemark.core.ids import ShardId, Txn
from tidemark.core.listing import LogFile
from tidemark.core.seal import Part


@dataclass(frozen=True, slots=True)
class LogListing:
    """A log at one version of its table: the first transaction it has not passed, and its files."""

    version: int
    upper: Txn
    files: tuple[LogFile, ...]


class PartFiles(Protocol):
    """The files behind a pipeline's logs."""

    def listed(
        self, shard: ShardId, *, lower: Txn, upper: Txn | None = None, columns: Sequence[str] = ()
    ) -> LogListing:
        """The log as it stands, with the files that may have rows of [lower, upper); bounds are given for
        these columns, where there are any."""
        ...

    def fault(self, shard: ShardId, part: Part, *, whole: bool) -> str:
        """Why the file can't be read as what was sealed; empty when it can. `whole` reads all its pages
        and checks their checksums, else size and footer are looked at."""
        ...
