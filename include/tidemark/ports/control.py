"""The control plane's port: ledgers with one conditional commit.

Promise of a `Ledger`, for every implementation (`tests/contract` checks it against each):

- `commit` changes the ledger only if it still stands at the given head; records and marks go in
  together or not at all. Of any number of commits on one head, exactly one is `Committed`.
- `Conflict` and `Determinate` mean that nothing was written. `Indeterminate` means that nobody
  knows: read back, never guess (Invariant 5).
- `read` and `find` answer from the snapshot that this object's last `head` loaded, so that a
  decision sees one moment. An old snapshot is allowed at any time; a commit on it conflicts.

The reader's port: which files a shard's log has, and whether a file is what it was sealed as.

Promise: `listed` is one snapshot of a log, whole. `fault` looks at one file and changes nothing; it may be
called by several threads at once. Where the store doesn't answer, both raise `Determinate`: a file that
can't be asked for is not a file that is gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol, TypeVar, runtime_checkable

from tidemark.core.binding import BindingRecord
from tidemark.core.checkpoint import Checkpoint
from tidemark.core.history import Recovery
from tidemark.core.ids import ShardId, Txn
from tidemark.core.journal import JournalEntry
from tidemark.core.lease import Lease
from tidemark.core.ledger import CommitOutcome, Head, Put
from tidemark.core.listing import LogFile
from tidemark.core.maintenance import Leftover, Replacement
from tidemark.core.publish import Published
from tidemark.core.seal import Evidence, Part, Seal
from tidemark.core.shape import Shape
from tidemark.core.shard import LogEntry

R = TypeVar("R")


class Ledger(Protocol[R]):
    """Numbered records with integer marks, changed by compare-and-append."""

    def head(self) -> Head:
        """Load the newest snapshot that can be had, and tell its version and marks."""
        ...

    def mark(self, name: str) -> int:
        """A mark by its name, at the snapshot of the last `head`; 0 where there is none."""
        ...

    def read(self, lower: int, upper: int) -> Sequence[R]:
        """The records numbered in [lower, upper), in order."""
        ...

    def find(self, key: str) -> Sequence[R]:
        """The records with this key, in order of their numbers."""
        ...

    def commit(self, head: Head, put: Put[R, Any]) -> CommitOutcome:
        """Add the records and move the marks, if and only if the ledger still stands at `head`."""
        ...


@runtime_checkable
class ReportsCommitTime(Protocol):
    """A ledger that keeps when its records were committed, by their writers' clocks. For alarms and
    retention: no decision about what happened depends on it."""

    def written_at(self, number: int) -> datetime | None:
        """When the last record of a number was committed; None where that is not known. A binding comes after
        the claims of runs that found nothing, which have its number."""
        ...


class Log(Ledger[LogEntry], Protocol):
    """A shard's log: a ledger whose records are the sealed parts."""

    def files(self) -> Sequence[LogFile]:
        """The active files, which have the rows that readers see, at the snapshot of the last `head`."""
        ...

    def shape(self) -> Shape | None:
        """The shape that is on record now; None where none is."""
        ...

    def declare(self, shape: Shape) -> None:
        """Put a shape on record, or the columns that the recorded one lacks; what is recorded never changes
        otherwise. One that doesn't fit leaves the record as it is."""
        ...


class MaintainedLog(Log, Protocol):
    """A log as its maintenance sees it."""

    def replace(self, head: Head, put: Put[Replacement, Any]) -> CommitOutcome:
        """Change files and marks, if and only if the log still stands at `head`."""
        ...

    def leftovers(self) -> Sequence[Leftover]:
        """The files in the log's folder that its newest version does not name."""
        ...

    def delete(self, leftovers: Sequence[Leftover]) -> None:
        """Delete files that may go; who comes second finds nothing to do."""
        ...


class Control(Protocol):
    """All ledgers of one pipeline."""

    @property
    def bindings(self) -> Ledger[BindingRecord]:
        """A chapter of the history, as the seals are: a commit to one moves the head of both."""
        ...

    @property
    def seals(self) -> Ledger[Seal]: ...

    @property
    def recoveries(self) -> Ledger[Recovery]: ...

    @property
    def attempts(self) -> Ledger[Evidence]: ...

    @property
    def checkpoints(self) -> Ledger[Checkpoint]: ...

    @property
    def journal(self) -> Ledger[JournalEntry]: ...

    @property
    def leases(self) -> Ledger[Lease]: ...

    def shards(self) -> Sequence[ShardId]:
        """The names that may be shards with a log, whatever a pipeline file says."""
        ...

    def log(self, shard: ShardId) -> Log:
        """The shard's log: the parts that its readers see. Made when it is first asked for."""
        ...

    def publishes(self, shard: ShardId) -> Ledger[Published]:
        """The record of the shard's publishes. Made when it is first committed to."""
        ...


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
