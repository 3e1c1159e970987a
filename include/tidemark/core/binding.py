"""Bindings: which input belongs to which transaction, decided once, before it is read.

A *binding* maps a `txn` to the source frontier that it reads up to; it reads from the end of the previous
binding. It also names the run that requested it and the pipeline's effective configuration. Input is
never bound again. The settings that it is written with are decided by the seal, so that a pipeline file can
be corrected while a transaction can't be read (`settings_of`). A replay years later reads the same input in
the same way.

Bindings are minted by put-if-absent, in order. Of two minters one wins; the other adopts the result, asks the
source again, and adds only what is still missing. A run's first mint decides for good what the run owns, even
if that is nothing: then a `Claim` in the same table records it, and clearing that run mints nothing new.
(Invariant 1.)
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tidemark.core.errors import InvalidUsage, InvariantViolation
from tidemark.core.ids import TXN_FIRST, Frontier, Txn, checked_successor
from tidemark.core.ledger import UPPER, Head, Put, link


@dataclass(frozen=True, slots=True)
class Owner:
    """The run that requested a binding. A run with a logical date or a partition key is identified by it, so
    that a backfill over the same date finds what the first run had; any other run is identified by its run
    id.

    `begun` is the start of the run by the scheduler's clock. It orders nothing: it only distinguishes tries
    of one run from a new run with the same date or even the same id, after the scheduler has deleted the
    first."""

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
        """Whether both are tries of one run, by its id and start."""
        return (self.run_id, self.begun) == (other.run_id, other.begun)


def fingerprint_of(text: str) -> str:
    """The name of a configuration: a hash of its text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Configuration:
    """The pipeline's effective configuration, named by its fingerprint.

    Its text, canonical JSON, may have megabytes. Records have only its name; the text lies once beside the
    history, and `texts` reads it from there when it is asked for."""

    fingerprint: str
    generation: int = 0
    texts: Mapping[str, str] | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, text: str, *, generation: int | None = None) -> Configuration:
        """The configuration with this text; the generation is in it, too."""
        if generation is None:
            generation = int(json.loads(text).get("generation", 0))
        name = fingerprint_of(text)
        return cls(name, generation, {name: text})

    @property
    def text(self) -> str:
        if self.texts is None:
            raise InvariantViolation(f"configuration {self.fingerprint} has no text to read")
        return self.texts[self.fingerprint]

    @property
    def shards(self) -> Mapping[str, str]:
        """The routes of the shards, by shard name."""
        found = json.loads(self.text).get("shards", [])
        return {shard["name"]: json.dumps(shard.get("route"), sort_keys=True) for shard in found}


@dataclass(frozen=True, slots=True)
class Step:
    """A source's offer for one transaction: its upper, and a manifest of the exact input (a file list, a
    topic id) that only the source interprets."""

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
    """Identifies this input and all input before it: bindings with the same link have the same past."""
    epoch: int = 0
    """The number of recoveries of the history when it was bound."""
    lost: bool = False
    """Whether its binding was lost: its number is named elsewhere, so it can't be used again. It reads
    nothing; its input is bound again under another number (`core.history`)."""
    promotes: int = 0
    """The generation that this transaction promotes; it has no input (`core.generation`). 0 for any other."""
    grace_seconds: float = 0.0
    """How long runs wait for a promotion before they skip it."""

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
        """The binding with its link after `last`. The link covers the input and the epoch, not the owner."""
        facts = [self.txn, self.upper.offsets, self.manifest, self.configuration.fingerprint]
        facts += [self.epoch, self.lost] if self.epoch else []
        facts += [self.promotes] if self.promotes else []
        return replace(self, link=link(last.link if last is not None else 0, json.dumps(facts)))

    def under(self, configuration: Configuration | None) -> Binding:
        """The same input with other settings; None keeps the bound ones."""
        return self if configuration is None else replace(self, configuration=configuration)


@dataclass(frozen=True, slots=True)
class Claim:
    """A run that found nothing to mint and therefore owns nothing, for good."""

    number: int
    owner: Owner

    @property
    def key(self) -> str:
        return self.owner.identity


@dataclass(frozen=True, slots=True)
class Owned:
    """The transactions that a run owns; `minted` is whether this call decided it, `owner` the run that
    did."""

    txns: tuple[Txn, ...]
    minted: bool
    owner: Owner


BindingRecord = Binding | Claim


def settings_of(binding: Binding, now: Configuration) -> Configuration | None:
    """The current settings, for an open transaction; None if they are the bound ones, or if the shards
    differ: then records might go to a shard that lacks the records before them. Settings of another
    generation than the bound ones always hold: they differ only before the first seal, so no shard has
    records."""
    bound = binding.configuration
    if bound == now:
        return None
    return now if bound.generation != now.generation or bound.shards == now.shards else None


def owned_in(records: Sequence[BindingRecord]) -> Owned | None:
    """What a run owns by the records under its identity; None if there are none."""
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
    """Bind the offered steps to the next transactions, unless the run's ownership is already decided."""
    decided = owned_in(found)
    if decided is not None:
        return decided
    upper = head.upper
    if last is not None and last.txn + 1 != upper:
        raise InvariantViolation(
            f"the last binding is {last.txn}, but the next transaction number is {upper}"
        )
    lower = last.upper if last is not None else Frontier()
    minted: list[Binding] = []
    for step in steps:
        if checked_successor(lower, step.upper) <= lower:
            continue  # All of it is bound already: drop an overtaken proposal.
        txn = Txn(upper + len(minted))
        binding = Binding(txn, lower, step.upper, owner, configuration, step.manifest, epoch=head.epoch)
        minted.append(binding.linked(minted[-1] if minted else last))
        lower = step.upper
    txns = tuple(binding.txn for binding in minted)
    result = Owned(txns=txns, minted=True, owner=owner)
    if not minted:
        return Put(marks={}, records=(Claim(upper, owner),), result=result)
    return Put(marks={UPPER: upper + len(minted)}, records=tuple(minted), result=result)
