"""Recovery: decides how a history that has lost commits goes forward, to what other tables prove.

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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tidemark.core.binding import Binding, Configuration, Owner, Step
from tidemark.core.checksum import Digest
from tidemark.core.errors import InvariantViolation
from tidemark.core.history import BOUND, Recovery
from tidemark.core.ids import TXN_NONE, ShardId, Txn, WriterToken, next_txn
from tidemark.core.ledger import UPPER, Head, Put
from tidemark.core.seal import Decision, Seal, ShardParts


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
