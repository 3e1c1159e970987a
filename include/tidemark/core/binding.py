"""Bindings: which input belongs to which transaction, decided once and before it is read.

A *binding* maps a `txn` to the source frontier that it reads up to; it reads from where the
binding before it ended. It also names the run that asked for it and carries the pipeline's
effective configuration. What was bound is never bound anew; by which settings it is written is
decided with the seal, so that a pipeline file can be mended while a transaction can't be read
(`settings_of`). A replay years later reads the same input in the same way.

Bindings are minted by put-if-absent, in order. Of two minters one wins; the other adopts what is
there, asks the source again, and adds only what is still missing. A run's first mint settles for
good what the run owns, even when that is nothing: then a `Claim` says so in the same table, and
clearing that run mints nothing new. (Invariant 1.)
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tidemark.core.errors import InvalidUsage, InvariantViolation
from tidemark.core.frontier import Frontier, Position, checked_successor
from tidemark.core.ids import TXN_FIRST, Txn
from tidemark.core.journal import link
from tidemark.core.ledger import UPPER, Head, Put


@dataclass(frozen=True, slots=True)
class Owner:
    """The run that asked. A run with a logical date or a partition key is that date's or key's run,
    so that a backfill over the same date finds what the first run had; any other is its run id's.

    `begun` is when the scheduler says that the run began. Nothing is ordered by it: it only tells the tries
    of one run from a run that comes again, with the same date or even the same id, because the scheduler has
    forgotten the first."""

    run_id: str
    logical_date: str = ""
    partition_key: str = ""
    begun: str = ""

    @property
    def identity(self) -> str:
        if self.partition_key:
            return f"partition:{self.partition_key}"
        return f"date:{self.logical_date}" if self.logical_date else f"run:{self.run_id}"

    def is_run_of(self, other: Owner) -> bool:
        """Whether both are tries of one run, as far as the scheduler remembers."""
        return (self.run_id, self.begun) == (other.run_id, other.begun)


@dataclass(frozen=True, slots=True)
class Configuration:
    """The pipeline's effective configuration, canonical JSON, with what identifies it."""

    text: str
    fingerprint: str

    @classmethod
    def of(cls, text: str) -> Configuration:
        return cls(text, hashlib.sha256(text.encode()).hexdigest()[:16])

    @property
    def generation(self) -> int:
        return int(json.loads(self.text).get("generation", 0))

    @property
    def shards(self) -> Mapping[str, str]:
        """The shards by name, each with what is routed to it."""
        found = json.loads(self.text).get("shards", [])
        return {shard["name"]: json.dumps(shard.get("route"), sort_keys=True) for shard in found}


@dataclass(frozen=True, slots=True)
class Step:
    """What a source offers for one transaction: up to where, and its own notes on the exact input
    (a file list, a topic id), which only the source reads again."""

    upper: Frontier
    manifest: str = ""


@dataclass(frozen=True, slots=True)
class Binding:
    """The input of one transaction: everything in [lower, upper)."""

    txn: Txn
    lower: Frontier
    upper: Frontier
    owner: Owner
    configuration: Configuration
    manifest: str = ""
    link: int = 0
    """Says which input this is, and after which: bindings with the same link have the same past."""
    epoch: int = 0
    """How often the history had been recovered when it was bound."""
    lost: bool = False
    """Its number was named by something and its binding is lost: it reads nothing, what it had read is bound
    again (`core.recovery`)."""

    def __post_init__(self) -> None:
        if self.txn < TXN_FIRST:
            raise InvalidUsage(f"a binding needs a transaction from 1 on, not {self.txn}")
        checked_successor(self.lower, self.upper)

    @property
    def number(self) -> int:
        return self.txn

    @property
    def key(self) -> str:
        return self.owner.identity

    def linked(self, last: Binding | None) -> Binding:
        """The binding as it follows another one. Who asked for it doesn't count, what is read does, and in
        which epoch."""
        facts = [self.txn, self.upper.offsets, self.manifest, self.configuration.fingerprint]
        facts += [self.epoch, self.lost] if self.epoch else []
        return replace(self, link=link(last.link if last is not None else 0, json.dumps(facts)))

    def under(self, configuration: Configuration | None) -> Binding:
        """The same input, read with other settings; None leaves them as they were bound."""
        return self if configuration is None else replace(self, configuration=configuration)

    def holds(self, position: Position) -> bool:
        return self.upper.covers(position) and not self.lower.covers(position)


@dataclass(frozen=True, slots=True)
class Claim:
    """A run that found nothing to mint, and therefore owns nothing, for ever."""

    number: int
    owner: Owner

    @property
    def key(self) -> str:
        return self.owner.identity


@dataclass(frozen=True, slots=True)
class Owned:
    """What a run owns; `minted` tells whether this call decided it or found it decided, `owner` who did."""

    txns: tuple[Txn, ...]
    minted: bool
    owner: Owner


BindingRecord = Binding | Claim


def settings_of(binding: Binding, now: Configuration) -> Configuration | None:
    """The settings of now, for an open transaction; None where they are those that it was bound with, or
    are about other shards: then its records might go where nothing was read that they follow."""
    same = binding.configuration == now or binding.configuration.shards != now.shards
    return None if same else now


def owned_in(records: Sequence[BindingRecord]) -> Owned | None:
    """What the records found under a run's identity say that it owns; None when there are none."""
    if not records:
        return None
    txns = tuple(sorted(record.txn for record in records if isinstance(record, Binding)))
    return Owned(txns=txns, minted=False, owner=records[0].owner)


def decide_mint(
    *,
    head: Head,
    last: Binding | None,
    found: Sequence[BindingRecord],
    steps: Sequence[Step],
    owner: Owner,
    configuration: Configuration,
) -> Put[BindingRecord, Owned] | Owned:
    """Bind the offered steps to the next transactions, unless the run's share is decided already."""
    decided = owned_in(found)
    if decided is not None:
        return decided
    upper = head.upper
    if last is not None and last.txn + 1 != upper:
        raise InvariantViolation(f"the last binding is {last.txn}, but the next to mint is {upper}")
    lower = last.upper if last is not None else Frontier()
    minted: list[Binding] = []
    for step in steps:
        if checked_successor(lower, step.upper) <= lower:
            continue  # Nothing in it that isn't bound: an overtaken proposal is dropped quietly.
        txn = Txn(upper + len(minted))
        binding = Binding(txn, lower, step.upper, owner, configuration, step.manifest, epoch=head.epoch)
        minted.append(binding.linked(minted[-1] if minted else last))
        lower = step.upper
    txns = tuple(binding.txn for binding in minted)
    result = Owned(txns=txns, minted=True, owner=owner)
    if not minted:
        return Put(marks={}, records=(Claim(upper, owner),), result=result)
    return Put(marks={UPPER: upper + len(minted)}, records=tuple(minted), result=result)


def txn_of(bindings: Sequence[Binding], position: Position) -> Txn | None:
    """The one transaction a record belongs to; None when it is not bound yet.

    Frontiers only grow, so the first binding that covers a position is the one it belongs to.
    """
    index = bisect_right(bindings, 0, key=lambda binding: 1 if binding.upper.covers(position) else 0)
    return bindings[index].txn if index < len(bindings) else None
