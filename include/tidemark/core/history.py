"""The history: the ledger of a pipeline's decisions, the check that all agrees with it, and its recovery.

Bindings, claims, seals and the generation are records and marks of one ledger. So they can't be rolled back
independently, and a decision that needs two of them is made on one head. A `Chapter` is one kind of record
with its own upper.

A history alone can't show that its newest commits are lost. So everything that depends on a transaction keeps
its number *and* its link, and `check_known` compares them: checkpoints, which follow every transaction, when
a run begins; a shard's log when it is opened; publishes before they continue. (Invariant 16.)

Recovery: decides how a history that has lost commits goes forward, to what other tables prove.

Everything that depends on a transaction keeps its number and link, so the remaining tables show which
transactions there were: the newest checkpoint, the logs, the publishes and the states' own commits,
consumers' frontiers. Parts on disk, attempts and the journal show them by number alone. From these
`plan_recovery` computes

- which transactions are bound and have lost their seal: they are read *again* and sealed with the link that
  is proven for them, so everything that names them agrees;
- which transactions have lost their binding: they become `lost` ones, which read nothing. Their input comes
  after the last remaining binding, so the next run binds it again, under new numbers.

One put makes this durable: an epoch, and the bindings of the lost transactions. The epoch is part of every
later binding's link, and of the key of a consumer's effects. So a number that is assigned again, because no
table here names it, is not mistaken for the earlier transaction.

Nothing is truncated, and no number that any table names is assigned again. Two tables that name the same
number with different links are a fork; a recovery can't decide which of them is right.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final, Generic, Protocol, TypedDict, TypeVar, cast

from tidemark.core.binding import Binding, Claim, Configuration, Owner, Step
from tidemark.core.checksum import Digest
from tidemark.core.errors import InvalidUsage, InvariantViolation
from tidemark.core.generation import Candidate
from tidemark.core.ids import TXN_FIRST, TXN_NONE, ShardId, Txn, WriterToken, next_txn
from tidemark.core.ledger import EPOCH, GENERATION, UPPER, CommitOutcome, Head, Put
from tidemark.core.seal import CORRECTION, Decision, Seal, ShardParts

BOUND: Final = "bound"
SEALED: Final = "sealed"
CANDIDATES: Final = "candidates"
HISTORY_MARKS: Final = (BOUND, SEALED, GENERATION, EPOCH, CANDIDATES, CORRECTION)


@dataclass(frozen=True, slots=True)
class Recovery:
    """The record that a history which had lost commits was brought forward, and an epoch began
    (`core.history`).

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

    def marked(self, prefix: str) -> Mapping[str, int]: ...

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

    def marked(self, prefix: str) -> Mapping[str, int]:
        return self._whole.marked(prefix)

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


@dataclass(frozen=True, slots=True)
class Witness:
    """A table or file that names a transaction: with its link, or by its number alone. With `decided`, it
    names only decided transactions; a link implies that too."""

    what: str
    txn: Txn
    link: int | None = None
    decided: bool = False

    def __str__(self) -> str:
        return f"{self.what} has transaction {self.txn}"


@dataclass(frozen=True, slots=True)
class Plan:
    """How a history goes forward. `again` are bound transactions that were decided, `lost` those that are no
    longer bound, `open` those that were bound and not decided. `first` is the first new number, `decided` the
    last that is known to have been decided. `adopted` is the address at which a copied warehouse goes on."""

    first: Txn
    decided: Txn = TXN_NONE
    again: tuple[Txn, ...] = ()
    lost: tuple[Txn, ...] = ()
    open: tuple[Txn, ...] = ()
    proven: Mapping[Txn, int] = field(default_factory=dict)
    witnesses: tuple[Witness, ...] = ()
    adopted: str = ""

    @property
    def is_needed(self) -> bool:
        """Whether the history is behind anything."""
        return bool(self.again or self.lost)


class Forked(InvariantViolation):
    """Two histories have been written: the same number names two transactions."""

    def __init__(self, one: str, other: str, txn: Txn) -> None:
        super().__init__(
            f"{one} and {other} have different transactions {txn}: both were written to after a copy was"
            " put back",
            hint="nothing was changed; restore both from the same moment",
        )


def plan_recovery(
    *, sealed_upper: Txn, bound_upper: Txn, witnesses: Sequence[Witness], links: Mapping[Txn, int]
) -> Plan:
    """The plan for a history that is sealed and bound below these uppers. `links` are its own links of the
    transactions that witnesses name. `Forked` where links differ."""
    proven: dict[Txn, Witness] = {}
    for one in witnesses:
        if one.link is None or one.txn == TXN_NONE:
            continue
        if one.txn < sealed_upper:
            if links.get(one.txn) != one.link:
                raise Forked(one.what, "the history", one.txn)
        elif proven.setdefault(one.txn, one).link != one.link:
            raise Forked(proven[one.txn].what, one.what, one.txn)
    last = max([Txn(bound_upper - 1), *(one.txn for one in witnesses)])
    sealed = [one.txn for one in witnesses if one.decided and one.txn >= sealed_upper]
    decided = max([*proven, *sealed], default=TXN_NONE)
    bound = [Txn(txn) for txn in range(sealed_upper, bound_upper)]
    lost = tuple(Txn(txn) for txn in range(bound_upper, last + 1))
    return Plan(
        first=next_txn(last),
        decided=decided,
        again=tuple(txn for txn in bound if txn <= decided),
        lost=lost,
        open=tuple(txn for txn in bound if txn > decided),
        proven={txn: one.link for txn, one in sorted(proven.items()) if one.link is not None},
        witnesses=tuple(
            one for one in witnesses if one.txn in proven or one.txn in sealed or one.txn >= bound_upper
        ),
    )


@dataclass(frozen=True, slots=True)
class Overtaken:
    """Another recovery was first."""

    epoch: int


def decide_recovery(
    *,
    head: Head,
    epoch: int,
    before: Recovery | None,
    plan: Plan,
    token: WriterToken,
    last: Binding | None,
    nothing: Step,
    configuration: Configuration,
) -> Put[Recovery | Binding, Recovery] | Overtaken:
    """Begin the epoch after `epoch`, and bind the lost transactions, by one commit. `before` is the previous
    recovery, `nothing` the step that reads nothing after the `last` binding."""
    if head.epoch != epoch:
        return Overtaken(head.epoch)
    begun = epoch + 1
    owner = Owner(f"recover-{begun}-{token}")
    lower = last.upper if last is not None else nothing.upper
    bound: list[Binding] = []
    for txn in plan.lost:
        read = (lower, nothing.upper, owner, configuration, nothing.manifest)
        binding = Binding(txn, *read, epoch=begun, lost=True)
        bound.append(binding.linked(bound[-1] if bound else last))
        lower = nothing.upper
    recovery = Recovery(
        begun,
        token,
        plan.first,
        max(plan.decided, before.ends if before is not None else TXN_NONE),
        plan.proven,
        plan.lost,
        tuple(str(one) for one in plan.witnesses),
        plan.adopted,
    )
    marks = {UPPER: begun + 1, **({BOUND: int(plan.first)} if bound else {})}
    return Put(marks=marks, records=(recovery, *bound), result=recovery)


def lost_of(
    binding: Binding,
    *,
    token: WriterToken,
    generation: int,
    reason: str,
    shards: Mapping[ShardId, ShardParts],
    watermark: int | None,
) -> Seal:
    """The seal of a transaction whose decision is lost. `shards` are the rows that logs still have of it,
    which may not be all. It passes on the watermark, as a skip does."""
    return Seal(
        binding.txn,
        token,
        generation,
        Decision.LOST,
        Digest(),
        shards=shards,
        reason=reason,
        watermark=watermark,
        base=watermark,
        binding=binding.link,
    )
