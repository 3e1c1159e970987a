"""Ports of the control plane: ledgers with one conditional commit, and the files behind the logs.

Promise of a `Ledger`, for every implementation (`tests/contract` checks it against each):

- `commit` changes the ledger only if it is still at the given head; records and marks are committed together
  or not at all. Of any number of commits on one head, exactly one is `Committed`.
- `Conflict` and `Determinate` mean that nothing was written. `Indeterminate` means that the outcome is
  unknown: read back, never guess (Invariant 5).
- `read` and `find` answer from the version that this object's last `head` loaded, so that a decision sees one
  moment. An old version is allowed at any time; a commit on it conflicts.

Promise of `PartFiles`: `listed` is one complete version of a log. `fault` checks one file and changes
nothing; several threads may call it at once. If the store doesn't answer, both raise `Determinate`: an
unreachable file is not a missing file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol, TypeVar, runtime_checkable

from tidemark.core.binding import Binding, BindingRecord
from tidemark.core.checkpoint import Checkpoint
from tidemark.core.generation import Candidate
from tidemark.core.history import Recovery
from tidemark.core.ids import TXN_NONE, ShardId, Txn
from tidemark.core.lease import LeaseRecord
from tidemark.core.ledger import CommitOutcome, Head, JournalEntry, Put
from tidemark.core.log import LogEntry, LogFile
from tidemark.core.maintenance import Leftover, Replacement
from tidemark.core.publish import Cut, Published, StateCommit
from tidemark.core.seal import Evidence, Part, Seal
from tidemark.core.shape import Shape

R = TypeVar("R")


class Ledger(Protocol[R]):
    """Numbered records with integer marks, changed by compare-and-append."""

    def head(self) -> Head:
        """Load the newest available version; return its number and marks."""
        ...

    def mark(self, name: str) -> int:
        """A mark by name, in the version of the last `head`; 0 if it is not set."""
        ...

    def marked(self, prefix: str) -> Mapping[str, int]:
        """The marks that begin with a prefix, by the rest of their names, in that version."""
        ...

    def read(self, lower: int, upper: int) -> Sequence[R]:
        """The records numbered in [lower, upper), in order."""
        ...

    def find(self, key: str) -> Sequence[R]:
        """The records with this key, sorted by number."""
        ...

    def commit(self, head: Head, put: Put[R, Any]) -> CommitOutcome:
        """Add the records and move the marks, if and only if the ledger is still at `head`."""
        ...


@runtime_checkable
class ReportsCommitTime(Protocol):
    """A ledger that keeps the commit times of its records, by their writers' clocks. For alarms and retention
    only: no decision about what happened depends on it."""

    def written_at(self, number: int) -> datetime | None:
        """When the last record of a number was committed; None if unknown. A binding has the same number as
        the claims of runs that found nothing before it."""
        ...


class Log(Ledger[LogEntry], Protocol):
    """A shard's log: a ledger whose records are the sealed parts.

    An entry that replaces the log removes all earlier parts and takes over the entry's shape, in one
    commit."""

    def files(self) -> Sequence[LogFile]:
        """The active files, which have the rows that readers see, in the version of the last `head`."""
        ...

    def shape(self) -> Shape | None:
        """The shape on record; None if there is none."""
        ...

    def declare(self, shape: Shape) -> None:
        """Record a shape, or the columns that the recorded one lacks. What is recorded never changes
        otherwise; a shape that doesn't fit changes nothing."""
        ...


class MaintainedLog(Log, Protocol):
    """A log with the operations of maintenance."""

    def replace(self, head: Head, put: Put[Replacement, Any]) -> CommitOutcome:
        """Replace files and move marks, if and only if the log is still at `head`."""
        ...

    def leftovers(self) -> Sequence[Leftover]:
        """The files in the log's folder that its newest version does not name."""
        ...

    def delete(self, leftovers: Sequence[Leftover]) -> None:
        """Delete these files. Files that another process has already deleted are ignored."""
        ...


class Control(Protocol):
    """All ledgers of one pipeline."""

    @property
    def address(self) -> str:
        """The address at which they are opened."""
        ...

    @property
    def made_at(self) -> str:
        """The address at which the history's first commit was made; empty before that. As of the history's
        loaded version."""
        ...

    @property
    def bindings(self) -> Ledger[Binding]:
        """A chapter of the history, like the seals: a commit to one moves the head of both."""
        ...

    @property
    def owned(self) -> Ledger[BindingRecord]:
        """What runs own: the bindings, and the claims of runs that found nothing. For who asks by run: there
        may be very many claims before one binding."""
        ...

    @property
    def seals(self) -> Ledger[Seal]: ...

    @property
    def recoveries(self) -> Ledger[Recovery]: ...

    @property
    def candidates(self) -> Ledger[Candidate]: ...

    @property
    def attempts(self) -> Ledger[Evidence]: ...

    @property
    def checkpoints(self) -> Ledger[Checkpoint]: ...

    @property
    def journal(self) -> Ledger[JournalEntry]: ...

    @property
    def leases(self) -> Ledger[LeaseRecord]: ...

    @property
    def cuts(self) -> Ledger[Cut]: ...

    def shards(self) -> Sequence[ShardId]:
        """The names that may be shards with a log, whether or not a pipeline file declares them."""
        ...

    def log(self, shard: ShardId) -> Log:
        """The shard's log: the parts that its readers see. It is created on first use."""
        ...

    def publishes(self, shard: ShardId) -> Ledger[Published]:
        """The record of the shard's publishes. Its first commit creates it."""
        ...

    def state_commit(self, shard: ShardId, *, after: int) -> StateCommit | None:
        """The newest publish that the table of the shard's state has after a version; None if there is
        none."""
        ...


@dataclass(frozen=True, slots=True)
class LogListing:
    """A log at one version of its table: its upper, its files, and the transaction that it was begun anew
    with; 0 if it was not."""

    version: int
    upper: Txn
    files: tuple[LogFile, ...]
    begins: Txn = TXN_NONE


class PartFiles(Protocol):
    """The files behind a pipeline's logs."""

    def listed(
        self, shard: ShardId, *, lower: Txn, upper: Txn | None = None, columns: Sequence[str] = ()
    ) -> LogListing:
        """The current log, with the files that may have rows of [lower, upper), and the bounds of these
        columns, if known."""
        ...

    def fault(self, shard: ShardId, part: Part, *, whole: bool) -> str:
        """Why the file differs from the sealed one; empty if it doesn't. `whole` reads all pages and verifies
        their checksums; otherwise only size and footer are checked."""
        ...
