"""A model of the fold, the rule that decides which record of a key is the last one.

The in-memory planes use it, and the folds of Spark and of arrays are compared with it.

For each key it is the greatest by (`sequence_by`, txn, position); without `sequence_by`, by (txn, position).
`tidemark.spark.fold` states the rule in full.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from tidemark.core.ids import TXN_NONE, Txn

Key = tuple[object, ...]
Sequence = int | str | None


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """The position of one record. Its order is the fold's tie-break: partition, offset, ordinal."""

    partition: str
    offset: int
    ordinal: int = 0


@dataclass(frozen=True, slots=True)
class Change:
    """A decoded record: the new value of a key, or its deletion (`value` is None). `since` is the last
    correction of its key, which may be the record itself: earlier records are void."""

    key: Key
    value: object
    txn: Txn
    position: Position
    sequence: Sequence = None
    since: Txn = TXN_NONE

    @property
    def deletes(self) -> bool:
        return self.value is None

    @property
    def order(self) -> tuple[bool, int | str, Txn, Position]:
        """The sort key that defines `last`. A NULL sequence is older than any other, and is never compared
        with one."""
        if self.sequence is None:
            return (False, 0, self.txn, self.position)
        return (True, self.sequence, self.txn, self.position)


def fold(changes: Iterable[Change]) -> dict[Key, Change]:
    """The last change of each key, deletes included."""
    last: dict[Key, Change] = {}
    since: dict[Key, Txn] = {}
    known = list(changes)
    for change in known:
        since[change.key] = max(change.since, since.get(change.key, TXN_NONE))
    for change in known:
        current = last.get(change.key)
        if change.txn >= since[change.key] and (current is None or current.order < change.order):
            last[change.key] = change
    return {key: replace(change, since=since[key]) for key, change in last.items()}


def visible(folded: dict[Key, Change]) -> dict[Key, object]:
    """The keys that a reader sees: the folded keys that are not deleted."""
    return {key: change.value for key, change in folded.items() if not change.deletes}


def too_late(sequence: int | None, *, watermark: int | None, lateness: int | None) -> bool:
    """Whether a record is too late to take part. Without a lateness no record is.

    A NULL sequence is older than any other, so it is too late as soon as there is a watermark: otherwise it
    would restore a deleted key after its tombstone was removed."""
    if lateness is None or watermark is None:
        return False
    return sequence is None or sequence < watermark - lateness
