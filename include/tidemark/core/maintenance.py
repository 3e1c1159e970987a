"""Maintenance of a log: which files to merge, when a replacement may be committed, which files to delete.

A log's active files are its sealed parts, or files that compaction has written in their place. The latter
hold whole transactions, every row with its own `_txn`, so that a transaction's rows are always in the files
whose range covers it (`covering`). The file list of the log's table is the only record of that; a seal keeps
naming the parts that were sealed.

Two rules make compaction safe by conditional commits alone:

- A compaction first raises the log's mark `compaction`. Its files are named by that number, and are committed
  only while the mark still has that value. So a later compaction shuts out an earlier one, and a file of a
  lower number that is not in the log never will be: it may be deleted without using a clock.
- It is committed only while every file that it replaces is still active. A compaction that was outrun has
  changed nothing.

Files that a commit has removed from the log are deleted later: when no reader that listed them before that
commit can still be reading (`kept_ms`), and no live lease holds one of their transactions (Invariant 12).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final, Literal

from tidemark.core.ids import Txn, WriterToken
from tidemark.core.ledger import Head, Put
from tidemark.core.log import LogFile
from tidemark.core.seal import Part

COMPACTION: Final = "compaction"
FILES_MIN: Final = 10
BYTES_FULL: Final = 128 * 1024 * 1024
_TIERS: Final = (1024 * 1024, 16 * 1024 * 1024, BYTES_FULL)


def covering(files: Iterable[LogFile], txn: Txn) -> tuple[LogFile, ...]:
    """The files that may have rows of a transaction."""
    return tuple(file for file in files if file.txn_first <= txn <= file.txn_last)


def merged_folder(first: Txn, last: Txn, *, number: int, token: WriterToken) -> str:
    """The folder of a compaction's files, relative to the log: their transactions, its number and its
    writer."""
    return f"_txns-{first:020}-{last:020}/{number:010}-{token}"


@dataclass(frozen=True, slots=True)
class Run:
    """Neighbouring files to merge: all files of the transactions first to last."""

    files: tuple[LogFile, ...]

    @property
    def first(self) -> Txn:
        return min(file.txn_first for file in self.files)

    @property
    def last(self) -> Txn:
        return max(file.txn_last for file in self.files)

    @property
    def bytes(self) -> int:
        return sum(file.part.bytes for file in self.files)


def choose_runs(files: Sequence[LogFile]) -> tuple[Run, ...]:
    """The files to merge now: runs in the smallest tier in which enough neighbours are due.

    Tiers grow by 16, and a merge takes at least ten files, so a row is rewritten only a few times. Files of
    full size are not merged."""
    ordered = sorted(files, key=lambda file: (file.txn_first, file.txn_last, file.part.path))
    spans = [tuple(span) for _, span in groupby(ordered, key=lambda file: (file.txn_first, file.txn_last))]
    for limit in _TIERS:
        runs: list[list[LogFile]] = [[]]
        for span in spans:
            size = sum(file.part.bytes for file in span)
            if size >= limit * len(span):
                runs.append([])
                continue
            if sum(file.part.bytes for file in runs[-1]) + size > BYTES_FULL:
                runs.append([])
            runs[-1].extend(span)
        due = tuple(Run(tuple(run)) for run in runs if len(run) >= FILES_MIN)
        if due:
            return due
    return ()


@dataclass(frozen=True, slots=True)
class Replacement:
    """A replacement of a log's files that changes no row from `since` on."""

    removed: tuple[LogFile, ...]
    added: tuple[Part, ...] = ()


@dataclass(frozen=True, slots=True)
class Replaced:
    """The replacement is in the log."""

    replacement: Replacement


@dataclass(frozen=True, slots=True)
class Outrun:
    """Another process has changed these files, or has begun a compaction, since ours began."""


def compaction_of(head: Head) -> int:
    """The number of the compaction that began last."""
    return head.marks.get(COMPACTION, 0)


def decide_begin(*, head: Head) -> Put[Replacement, int]:
    """Begin a compaction: from this commit on, files of an earlier one can't be committed."""
    number = compaction_of(head) + 1
    return Put(marks={COMPACTION: number}, records=(), result=number)


def decide_replace(
    *, head: Head, active: Sequence[LogFile], number: int, replacement: Replacement
) -> Put[Replacement, Replaced | Outrun] | Replaced | Outrun:
    """Commit a compaction's files in place of the replaced ones. If they are in the log already, that is
    success: a reply was lost (Invariant 5)."""
    paths = {file.part.path for file in active}
    if replacement.added and all(part.path in paths for part in replacement.added):
        return Replaced(replacement)
    if compaction_of(head) != number or not all(file.part.path in paths for file in replacement.removed):
        return Outrun()
    return Put(marks={}, records=(replacement,), result=Replaced(replacement))


def decide_truncate(
    *, active: Sequence[LogFile], since: Txn
) -> Put[Replacement, tuple[LogFile, ...]] | tuple[LogFile, ...]:
    """Remove the files without rows from `since` on. `since` was announced before (`core.lease`)."""
    below = tuple(file for file in active if file.txn_last < since)
    if not below:
        return ()
    return Put(marks={}, records=(Replacement(below),), result=below)


@dataclass(frozen=True, slots=True)
class Leftover:
    """A file in a log's folder that its table does not name now. `number` is that of the compaction that
    wrote it, 0 for a part of one transaction. `removed_ms` is when a commit removed it; None if none did
    recently."""

    path: str
    bytes: int
    first: Txn
    last: Txn
    token: str
    number: int = 0
    removed_ms: int | None = None


@dataclass(frozen=True, slots=True)
class HeldBack:
    """Why a leftover stays. `in use`: it may still be committed. `lost`: it belongs to a lost attempt, which
    the sweep deletes. `recent`: it stays until a time. `leased`: it stays until its lease ends."""

    why: str
    kind: Literal["in use", "lost", "recent", "leased"]
    until_ms: int | None = None


def held_back(
    leftover: Leftover,
    *,
    begun: int,
    sealed_token: str | None,
    log_upper: Txn,
    held_from: Txn | None,
    held_by: str = "",
    now_ms: int,
    kept_ms: int,
) -> HeldBack | None:
    """Why the file must stay; None if it may be deleted.

    `begun` is the log's compaction mark, `sealed_token` the token of the transaction's seal (None while it is
    open), `held_from` the lowest transaction that a live lease holds, `kept_ms` the time that removed files
    are kept for readers without a lease. A file without a known removal never was in the log, or was removed
    before that: the log keeps removals for as long."""
    if leftover.number:
        if leftover.number >= begun:
            return HeldBack("a compaction is writing it", "in use")
    else:
        if sealed_token is None:
            return HeldBack("its transaction is open", "in use")
        if sealed_token != leftover.token:
            return HeldBack("the sweep of lost attempts deletes it", "lost")
        if leftover.first >= log_upper:
            return HeldBack("its log does not have it yet", "in use")
    if leftover.removed_ms is not None and now_ms - leftover.removed_ms < kept_ms:
        return HeldBack("an earlier reader may still read it", "recent", leftover.removed_ms + kept_ms)
    if held_from is not None and leftover.last >= held_from:
        return HeldBack(held_by, "leased")
    return None
