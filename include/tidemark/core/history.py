"""The history: the ledger of a pipeline's decisions, and the check that everything else agrees with it.

Bindings, claims, seals and the generation are records and marks of one ledger. So they can't be rolled back
independently, and a decision that needs two of them is made on one head. A `Chapter` is one kind of record
with its own upper.

A history alone can't show that its newest commits are lost. So everything that depends on a transaction keeps
its number *and* its link, and `check_known` compares them: checkpoints, which follow every transaction, when
a run begins; a shard's log when it is opened; publishes before they continue. (Invariant 16.)
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final, Generic, Protocol, TypedDict, TypeVar, cast

from tidemark.core.binding import Binding, Claim
from tidemark.core.errors import InvalidUsage, InvariantViolation
from tidemark.core.generation import Candidate
from tidemark.core.ids import TXN_FIRST, TXN_NONE, ShardId, Txn, WriterToken
from tidemark.core.ledger import EPOCH, GENERATION, UPPER, CommitOutcome, Head, Put
from tidemark.core.seal import CORRECTION, Seal

BOUND: Final = "bound"
SEALED: Final = "sealed"
CANDIDATES: Final = "candidates"
HISTORY_MARKS: Final = (BOUND, SEALED, GENERATION, EPOCH, CANDIDATES, CORRECTION)


@dataclass(frozen=True, slots=True)
class Recovery:
    """The record that a history which had lost commits was brought forward, and an epoch began
    (`core.recovery`).

    `number` is the epoch, `first` its first transaction: everything below had its number before. Transactions
    up to `decided` had been decided. `proven` has the links that other tables name for transactions whose
    seals are lost, `lost` are the transactions whose bindings are lost, `witnesses` name the tables, for
    people. `adopted` is the address at which a copied warehouse goes on; empty where there was no copy."""

    number: int
    token: WriterToken
    first: Txn
    decided: Txn = TXN_NONE
    proven: Mapping[Txn, int] = field(default_factory=dict)
    lost: tuple[Txn, ...] = ()
    witnesses: tuple[str, ...] = ()
    adopted: str = ""

    @property
    def key(self) -> str:
        return self.token

    @property
    def ends(self) -> Txn:
        """The last transaction that is to be decided again; 0 where there is none."""
        return max([self.decided, *self.lost])

    def was_decided(self, txn: Txn) -> bool:
        """Whether a transaction had been decided before the loss, or may have been."""
        return txn in self.lost or txn <= self.decided

    def proves(self, txn: Txn, link: int) -> bool:
        """Whether a transaction is known to have been decided with this link."""
        return self.proven.get(txn) == link


HistoryRecord = Binding | Claim | Seal | Recovery | Candidate


class _Chapter(TypedDict):
    kinds: tuple[type, ...]
    upper: str


CHAPTERS: Final[Mapping[str, _Chapter]] = {
    "bindings": {"kinds": (Binding,), "upper": BOUND},
    "owned": {"kinds": (Binding, Claim), "upper": BOUND},
    "seals": {"kinds": (Seal,), "upper": SEALED},
    "recoveries": {"kinds": (Recovery,), "upper": EPOCH},
    "candidates": {"kinds": (Candidate,), "upper": CANDIDATES},
}

R = TypeVar("R")


class Whole(Protocol):
    """The ledger that chapters are part of."""

    def head(self) -> Head: ...

    def mark(self, name: str) -> int: ...

    def read(self, lower: int, upper: int, kinds: tuple[type, ...] = ()) -> Sequence[Any]: ...

    def find(self, key: str, kinds: tuple[type, ...] = ()) -> Sequence[Any]: ...

    def commit(self, head: Head, put: Put[Any, Any]) -> CommitOutcome: ...


class TimedWhole(Whole, Protocol):
    """A ledger that stores when its records were committed."""

    def written_at(self, number: int, kinds: tuple[type, ...] = ()) -> datetime | None: ...


def chapter_head(head: Head, upper: str) -> Head:
    """A chapter's head of the history: its own upper, and the marks that all chapters share."""
    marks = {name: value for name, value in head.marks.items() if name not in (BOUND, SEALED)}
    return Head(head.version, {**marks, UPPER: head.marks.get(upper, TXN_FIRST)})


class Chapter(Generic[R]):
    """The records of some kinds in a history, as a ledger with its own upper. All chapters of one history
    share its loaded version."""

    def __init__(self, whole: Whole, *, kinds: tuple[type, ...], upper: str) -> None:
        self._whole = whole
        self._kinds = kinds
        self._upper = upper

    def head(self) -> Head:
        return chapter_head(self._whole.head(), self._upper)

    def mark(self, name: str) -> int:
        return self._whole.mark(name)

    def read(self, lower: int, upper: int) -> Sequence[R]:
        return cast("Sequence[R]", self._whole.read(lower, upper, self._kinds))

    def find(self, key: str) -> Sequence[R]:
        return cast("Sequence[R]", self._whole.find(key, self._kinds))

    def commit(self, head: Head, put: Put[R, Any]) -> CommitOutcome:
        marks = {self._upper if name == UPPER else name: value for name, value in put.marks.items()}
        return self._whole.commit(head, replace(put, marks=marks))


class TimedChapter(Chapter[R]):
    """A chapter of a history that stores times."""

    def __init__(self, whole: TimedWhole, *, kinds: tuple[type, ...], upper: str) -> None:
        super().__init__(whole, kinds=kinds, upper=upper)
        self._timed = whole

    def written_at(self, number: int) -> datetime | None:
        """When the last record of a number was committed, by its writer's clock."""
        return self._timed.written_at(number, self._kinds)

    def first_since(self, moment: datetime) -> int:
        """The lowest number whose record was committed at a moment or later; the upper when none was. The
        records must be numbered densely from 1 on."""
        upper = int(self.head().upper)

        def is_since(number: int) -> bool:
            at = self.written_at(number)
            return at is None or at >= moment

        return 1 + bisect_left(range(1, upper), True, key=is_since)


class HistoryLost(InvariantViolation):
    """Something depends on a transaction that the history lacks or has with another link."""


class LogLost(InvariantViolation):
    """A shard's log lacks a transaction that was in it, or must have been."""

    def __init__(self, shard: ShardId, *, ends: Txn, wanted: Txn) -> None:
        super().__init__(
            f"the log of shard {shard} ends with transaction {ends}, and had {wanted}:"
            " its newest commits are lost",
            hint="nothing was written; `tidemark recover PIPELINE` appends what is sealed and still there",
        )


class CopiedWarehouse(InvalidUsage):
    """The warehouse is opened at an address that its history does not have: it was copied or moved."""

    def __init__(self, *, made_at: str, opened: str) -> None:
        super().__init__(
            f"this warehouse was made at {made_at} and is opened at {opened}: it is a copy, or was moved",
            hint="a copy can be read; if the pipeline is to go on here, and nowhere else:"
            " `tidemark recover PIPELINE --adopt`",
        )


def check_known(what: str, *, txn: Txn, link: int, upper: Txn, seal: Seal | None) -> None:
    """Raise `HistoryLost` if the history, sealed below `upper`, is not the one that `what` depends on. `txn`
    and `link` are those that `what` has on record, `seal` is the history's own seal of the transaction."""
    if txn == TXN_NONE:
        return
    if txn >= upper:
        raise HistoryLost(
            f"{what} has transaction {txn}, and the history ends with {upper - 1}:"
            " its newest commits are lost",
            hint="nothing was written; restore `_control/history` from a newer copy, or bring it forward:"
            " `tidemark recover PIPELINE`",
        )
    if seal is None or seal.link != link:
        raise HistoryLost(
            f"{what} has another transaction {txn} than the history: one of both was restored from a copy",
            hint="nothing was written; restore both from the same moment",
        )
