"""Upkeep of a log: which of its files to merge, when a change of files may go in, what may be deleted.

A log's active files are its sealed parts and, in their place, files that compaction has written: each has
whole transactions, every row with its own `_txn`, so that a transaction's rows are always in the files whose
range covers it (`covering`). The file list of the log's table is the one record of that; a seal goes on
naming the parts that were sealed, for as long as they are the ones in the log.

Two things keep compaction safe by conditional commits alone:

- A compaction first raises the log's mark `compaction`; its files are named by that number, and go in only
  while the mark still stands there. So who comes second shuts out who came first, and a file of a lower
  number that is not in the log will never be: it may be deleted without asking a clock.
- It goes in only while every file that it replaces is still active. Whoever was outrun has changed nothing.

What a commit has taken out of the log is deleted later: when nobody who looked before that commit can still
be reading (`kept for`), and no live lease holds one of its transactions (Invariant 12).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final, Literal

from tidemark.core.ids import Txn, WriterToken
from tidemark.core.ledger import Head, Put
from tidemark.core.listing import LogFile
from tidemark.core.seal import Part

COMPACTION: Final = "compaction"
FILES_MIN: Final = 10
BYTES_FULL: Final = 128 * 1024 * 1024
_TIERS: Final = (1024 * 1024, 16 * 1024 * 1024, BYTES_FULL)


def covering(files: Iterable[LogFile], txn: Txn) -> tuple[LogFile, ...]:
    """The files that may have rows of a transaction."""
    return tuple(file for file in files if file.txn_first <= txn <= file.txn_last)


def merged_folder(first: Txn, last: Txn, *, number: int, token: WriterToken) -> str:
    """Where a compaction's files go, below the log: their transactions, its number and its writer."""
    return f"_txns-{first:020}-{last:020}/{number:010}-{token}"


@dataclass(frozen=True, slots=True)
class Run:
    """Neighbouring files to become one: all that there are of the transactions first to last."""

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
    """What to merge now: the smallest tier in which enough neighbours are due.

    Tiers grow by 16, and a merge takes ten files at the least, so a row is rewritten a few times in its
    life. Files of the full size are left alone."""
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
    """A change of a log's files that changes no row from `since` on: these out, those in."""

    removed: tuple[LogFile, ...]
    added: tuple[Part, ...] = ()


@dataclass(frozen=True, slots=True)
class Replaced:
    """The change is in the log."""

    replacement: Replacement


@dataclass(frozen=True, slots=True)
class Outrun:
    """Someone else has changed these files, or has begun a compaction, since ours was begun."""


def compaction_of(head: Head) -> int:
    """The number of the last compaction that was begun."""
    return head.marks.get(COMPACTION, 0)


def decide_begin(*, head: Head) -> Put[Replacement, int]:
    """Begin a compaction: from this commit on, files of one that was begun before can't go in."""
    number = compaction_of(head) + 1
    return Put(marks={COMPACTION: number}, records=(), result=number)


def decide_replace(
    *, head: Head, active: Sequence[LogFile], number: int, replacement: Replacement
) -> Put[Replacement, Replaced | Outrun] | Replaced | Outrun:
    """Put a compaction's files in the place of what they replace. Finding them there is success: that is
    how a lost reply is answered (Invariant 5)."""
    paths = {file.part.path for file in active}
    if replacement.added and all(part.path in paths for part in replacement.added):
        return Replaced(replacement)
    if compaction_of(head) != number or not all(file.part.path in paths for file in replacement.removed):
        return Outrun()
    return Put(marks={}, records=(replacement,), result=Replaced(replacement))


def decide_truncate(
    *, active: Sequence[LogFile], since: Txn
) -> Put[Replacement, tuple[LogFile, ...]] | tuple[LogFile, ...]:
    """Take out the files that have nothing from `since` on. `since` was announced before (`core.lease`)."""
    below = tuple(file for file in active if file.txn_last < since)
    if not below:
        return ()
    return Put(marks={}, records=(Replacement(below),), result=below)


@dataclass(frozen=True, slots=True)
class Leftover:
    """A file in a log's folder that its table does not name now. `number` is that of the compaction that
    wrote it, 0 for a part of one transaction; `removed_ms` is when a commit took it out, where one did
    that is not long ago."""

    path: str
    bytes: int
    first: Txn
    last: Txn
    token: str
    number: int = 0
    removed_ms: int | None = None


@dataclass(frozen=True, slots=True)
class HeldBack:
    """Why a leftover stays. One that is `in use` is no leftover at all, as it turns out; one of a `lost`
    attempt is swept by its seal; a `recent` one stays until a time, a `leased` one until its lease ends."""

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
    """Why the file must stay; None when it may go.

    `begun` is the log's compaction mark, `sealed_token` the token of the transaction's seal (None while it
    is open), `held_from` the lowest transaction that a live lease holds, `kept_ms` for how long files are
    kept that readers without a lease may have looked up. A file of which no removal is known never was in
    the log, or was taken out longer ago than that: the log remembers removals for as long."""
    if leftover.number:
        if leftover.number >= begun:
            return HeldBack("a compaction is writing it", "in use")
    else:
        if sealed_token is None:
            return HeldBack("its transaction is open", "in use")
        if sealed_token != leftover.token:
            return HeldBack("it is left to the sweep of lost attempts", "lost")
        if leftover.first >= log_upper:
            return HeldBack("its log has not taken it in yet", "in use")
    if leftover.removed_ms is not None and now_ms - leftover.removed_ms < kept_ms:
        return HeldBack("who looked before may still read it", "recent", leftover.removed_ms + kept_ms)
    if held_from is not None and leftover.last >= held_from:
        return HeldBack(held_by, "leased")
    return None
