"""The seal: the commit decision of a transaction; and evidence, which carries results between steps.

A seal is one put-if-absent record. It lists the parts of every shard that the transaction touches, the
digests of the rows read and written, how it was decided, and the writer's token and generation. The first
seal of a `txn` wins, and seals are put in order without gaps (Invariant 2). After it, any process may finish
the transaction, with these parts and no others. So a writer that dies right after its seal has lost nothing,
and a second writer has nothing to add.

The seal is also the fence (Invariant 13): a writer of an older generation than the newest one seen is
rejected here, and nowhere else. And it is the condition for a sweep: an attempt whose transaction is sealed
under another token can never be committed, so its parts may be deleted; an attempt of an open transaction may
still be sealed, so they may not.

Evidence is what an attempt has staged and measured, stored for the later steps of the run. The validate step
judges the parts that the ingest step staged, and the upsert step seals them; each may be a process of its
own. The steps are joined by records, not by messages: any process can pick a record up, and none depends on a
scheduler's memory. Everything that needs rows is measured when the evidence is made, so the later steps need
no data plane. Evidence decides nothing and can be made again at any time: the seal alone decides.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from tidemark.core.binding import Configuration, Owner
from tidemark.core.checksum import SOURCE, Digest, Digests, shard_endpoint
from tidemark.core.errors import Determinate, InvalidUsage, InvariantViolation
from tidemark.core.ids import TXN_FIRST, TXN_NONE, ShardId, Txn, WriterToken
from tidemark.core.ledger import GENERATION, UPPER, Head, Put, link
from tidemark.core.shape import Shape, Shapes, check_on_record


@dataclass(frozen=True, slots=True)
class Part:
    """One Parquet file of one transaction of one shard. `stats` are its Delta statistics. They describe the
    same file and a log may return them in another form, so they are not compared."""

    path: str
    rows: int
    bytes: int
    stats: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class ShardParts:
    """The parts that a transaction adds to one shard. With `held` set, the shard's log waits at this
    transaction for the given reason, while the parts are sealed and durable. `deletes` is how many of the
    rows delete a key, for people; None if not counted. `before` is the last transaction that touched the
    shard, 0 if none did: an append checks that the log has it."""

    parts: tuple[Part, ...]
    digest: Digest
    held: str = ""
    deletes: int | None = field(default=None, compare=False)
    before: Txn = field(default=TXN_NONE, compare=False)

    def __post_init__(self) -> None:
        rows = sum(part.rows for part in self.parts)
        if rows != self.digest.count:
            raise InvariantViolation(f"parts have {rows} rows, but their digest counts {self.digest.count}")
        if not 0 <= (self.deletes or 0) <= rows:
            raise InvariantViolation(f"{self.deletes} of {rows} rows are counted as deletes")


def digests_of(source: Digest, shards: Mapping[ShardId, ShardParts]) -> dict[str, Digest]:
    """One digest per endpoint that has rows; a shard that got none is not an endpoint."""
    written = {shard_endpoint(shard): added.digest for shard, added in shards.items() if added.parts}
    return {SOURCE: source, **written}


@dataclass(frozen=True, slots=True)
class Staged:
    """One attempt's result: written, counted, invisible. `base` is the watermark that it started from,
    `watermark` the one that it ends with."""

    txn: Txn
    token: WriterToken
    source: Digest
    shards: Mapping[ShardId, ShardParts]
    engine: str
    watermark: int | None = None
    base: int | None = None
    configuration: Configuration | None = None
    """The settings that it was made with; None where they are those it was bound with."""
    binding: int = 0
    """The link of the binding that it was made for."""

    @property
    def digests(self) -> Digests:
        return digests_of(self.source, self.shards)


class Decision(StrEnum):
    """How a transaction was decided."""

    COMMITTED = "committed"
    ACCEPTED = "accepted"
    SKIPPED = "skipped"
    LOST = "lost"
    CORRECTED = "corrected"
    """The promotion of a generation: its rows are the difference between two generations' tables
    (`core.generation`)."""


@dataclass(frozen=True, slots=True)
class Seal:
    """The decided transaction. `watermark` is the highest `sequence_by` value up to and with it, and `base`
    the watermark that its records were judged by: that of the seal before it, or what a person set it to."""

    txn: Txn
    token: WriterToken
    generation: int
    decision: Decision
    source: Digest
    shards: Mapping[ShardId, ShardParts] = field(default_factory=dict)
    engine: str = ""
    reason: str = ""
    watermark: int | None = None
    configuration: Configuration | None = None
    base: int | None = None
    binding: int = 0
    link: int = 0
    """Identifies this decision and all decisions before it: seals with the same link have the same past."""
    replaced: Mapping[ShardId, Shape] = field(default_factory=dict)
    """The shards that a promotion replaces, with their new shapes: the parts there are the whole new state,
    and the log begins with them."""

    def __post_init__(self) -> None:
        if self.txn < TXN_FIRST:
            raise InvalidUsage(f"a seal needs a transaction from 1 on, not {self.txn}")
        if self.decision is Decision.SKIPPED and self.shards:
            raise InvalidUsage(f"transaction {self.txn} is skipped, so its seal can't have parts")
        if self.decision is not Decision.COMMITTED and not self.reason:
            raise InvalidUsage(f"transaction {self.txn} is {self.decision}", hint="give a reason")
        if not self.replaced.keys() <= self.shards.keys() or (
            self.replaced and self.decision is not Decision.CORRECTED
        ):
            raise InvalidUsage(f"transaction {self.txn} is {self.decision}, and can't replace a shard")

    @property
    def number(self) -> int:
        return self.txn

    @property
    def key(self) -> str:
        return self.token

    @property
    def digests(self) -> Digests:
        """The digests that a replay must find again; a skipped or lost transaction has nothing to compare. A
        correction has no input, so only its rows are compared."""
        if self.decision in (Decision.SKIPPED, Decision.LOST):
            return {}
        return digests_of(self.source, self.shards)

    def touches(self, shard: ShardId) -> bool:
        return shard in self.shards

    def linked(self, past: Past) -> Seal:
        """The seal with its link after `past`. Its token is unique, so it represents the parts in the
        link."""
        shards = {
            shard: replace(added, before=past.touched.get(shard, TXN_NONE))
            for shard, added in self.shards.items()
        }
        held = sorted(shard for shard, added in self.shards.items() if added.held)
        facts = json.dumps([self.txn, self.binding, self.token, self.decision, held])
        return replace(self, shards=shards, link=past.proven or link(past.link, facts))


@dataclass(frozen=True, slots=True)
class Past:
    """What a seal follows, at the head that it is decided on: the link of its transaction's binding, the link
    of the seal before it, and for each of its shards the transaction that touched it last."""

    binding: int = 0
    link: int = 0
    touched: Mapping[ShardId, Txn] = field(default_factory=dict)
    recovered: bool = False
    """The transaction was decided before, and a recovery decides it again."""
    lost: bool = False
    """Its binding was lost with the decision."""
    proven: int = 0
    """The link of the lost decision, where a table names it: the seal uses it."""
    promotes: int = 0
    """The generation that its binding promotes; 0 for every transaction with input."""


def seal_of(staged: Staged, *, generation: int, held: Mapping[ShardId, str], reason: str = "") -> Seal:
    """The seal that commits an attempt, or that accepts it for a reason. Empty shards stay out."""
    shards = {
        shard: replace(parts, held=held.get(shard, ""))
        for shard, parts in sorted(staged.shards.items())
        if parts.parts
    }
    return Seal(
        txn=staged.txn,
        token=staged.token,
        generation=generation,
        decision=Decision.ACCEPTED if reason else Decision.COMMITTED,
        source=staged.source,
        shards=shards,
        engine=staged.engine,
        reason=reason,
        watermark=staged.watermark,
        configuration=staged.configuration,
        binding=staged.binding,
        base=staged.base,
    )


def skip_of(
    txn: Txn, *, token: WriterToken, generation: int, reason: str, binding: int, watermark: int | None = None
) -> Seal:
    """The empty seal that skips a transaction, for a reason that stays on record.

    It passes on the previous watermark: a lower one would accept late records whose tombstones are gone."""
    source = Digest()
    return Seal(
        txn,
        token,
        generation,
        Decision.SKIPPED,
        source,
        reason=reason,
        watermark=watermark,
        binding=binding,
        base=watermark,
    )


@dataclass(frozen=True, slots=True)
class Sealed:
    """Our seal decides the transaction; `already` when it was found in place."""

    seal: Seal
    already: bool = False


@dataclass(frozen=True, slots=True)
class Lost:
    """Another seal decides the transaction. A value, not an error (Invariant 4)."""

    winner: Seal


@dataclass(frozen=True, slots=True)
class TooEarly:
    """Lower transactions are still open, and come first."""

    upper: Txn


def is_fenced(generation: int, *, newest: int, sealed_upper: int) -> bool:
    """Whether a generation may neither bind nor seal, because `newest` is in charge. The first seal decides
    which generation a pipeline begins with; after that, only a promotion changes it."""
    return generation < newest or (generation > newest and sealed_upper > TXN_FIRST)


class Fenced(InvalidUsage):
    """A writer of another generation than the one in charge asked for a seal."""

    def __init__(self, txn: Txn, *, generation: int, newest: int) -> None:
        super().__init__(
            f"generation {generation} may not seal transaction {txn}: generation {newest} is in charge",
            hint="retry: the pipeline is opened again; a file with a higher generation takes over by"
            " `tidemark generation start` and `promote`",
        )
        self.generation = generation
        self.newest = newest


class Rebound(Determinate):
    """The attempt was made for a binding that is not the one on record: it was lost, and bound again."""

    def __init__(self, txn: Txn) -> None:
        super().__init__(
            f"transaction {txn} was staged for another binding than the recorded one; nothing was sealed",
            hint="run the pipeline again, which stages it again",
        )


class BeingRecovered(Determinate):
    """The decision of this transaction was lost, and only a recovery decides it again."""

    def __init__(self, txn: Txn) -> None:
        super().__init__(
            f"the decision of transaction {txn} is lost; nothing was sealed",
            hint="run `tidemark recover PIPELINE`: it reads the transaction again, or records it as lost",
        )


SealOutcome = Sealed | Lost | TooEarly


CORRECTION: Final = "correction"
"""The mark of the last transaction that promoted a generation."""


TOUCHED: Final = "shard."


def touch_mark(shard: ShardId) -> str:
    """The mark of the last transaction that touches a shard."""
    return f"{TOUCHED}{shard}"


def replaced_mark(shard: ShardId) -> str:
    """The mark of the last transaction that replaced a shard."""
    return f"replaced.{shard}"


def is_refused(seal: Seal, head: Head) -> bool:
    """Whether a seal is of a generation that may not seal; only a promotion's may be of a newer one."""
    if seal.decision is Decision.CORRECTED:
        return seal.generation < head.generation
    return is_fenced(seal.generation, newest=head.generation, sealed_upper=head.upper)


def decide_seal(
    *,
    head: Head,
    found: Seal | None,
    seal: Seal,
    past: Past,
    recorded: Shapes | None = None,
    declared: Shapes | None = None,
) -> Put[Seal, SealOutcome] | SealOutcome:
    """Seal at the upper; below it, return the winner; above it, wait for the lower transactions.

    `found` is the seal of the transaction, if the upper has passed it. If it is our own, that is success: a
    reply was lost (Invariant 5). `declared` are the shapes that the parts were made with, `recorded` those of
    their logs: the seal is rejected unless they fit (Invariant 17), or if it was made for another binding
    than that of `past` (Invariant 16)."""
    if seal.txn < head.upper:
        if found is None:
            raise InvariantViolation(f"transaction {seal.txn} is below {head.upper} and has no seal")
        return Sealed(found, already=True) if found.token == seal.token else Lost(found)
    if is_refused(seal, head):
        raise Fenced(seal.txn, generation=seal.generation, newest=head.generation)
    if seal.txn > head.upper:
        return TooEarly(head.upper)
    if seal.binding != past.binding:
        raise Rebound(seal.txn)
    is_lost = seal.decision is Decision.LOST
    if is_lost and not past.recovered:
        raise InvalidUsage(
            f"transaction {seal.txn} is open, not lost", hint="run the pipeline, which decides it"
        )
    if past.lost and not is_lost:
        raise BeingRecovered(seal.txn)
    corrects = seal.decision is Decision.CORRECTED
    if corrects and past.promotes != seal.generation:
        raise InvalidUsage(f"transaction {seal.txn} does not promote generation {seal.generation}")
    if past.promotes and seal.decision in (Decision.COMMITTED, Decision.ACCEPTED):
        raise InvalidUsage(f"transaction {seal.txn} promotes generation {past.promotes} and has no input")
    check_on_record(tuple(seal.shards), recorded=recorded or {}, declared=declared or {})
    linked = seal.linked(past)
    touched = {touch_mark(shard): int(seal.txn) for shard in seal.shards}
    replaced = {replaced_mark(shard): int(seal.txn) for shard in seal.replaced}
    marks = {UPPER: seal.txn + 1, GENERATION: seal.generation, **touched, **replaced}
    if corrects:
        marks[CORRECTION] = int(seal.txn)
    return Put(marks=marks, records=(linked,), result=Sealed(linked))


@dataclass(frozen=True, slots=True)
class Opinion:
    """The result of the user's expectations: those that failed and stop the transaction, the shards to hold
    with the reasons, and warnings."""

    failed: tuple[str, ...] = ()
    held: Mapping[ShardId, str] = field(default_factory=dict)
    warned: tuple[str, ...] = ()
    checked: int = field(default=0, compare=False)
    """How many expectations were checked, for people."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """The findings of one attempt of one run: the parts it staged, the digests of a replay, or why the input
    can't be read.

    `round` counts how often the run was cleared. A replay's `staged` has no files. `found` has the digests of
    a read-back after the parts were written: of the staged parts or, for a replay, of the sealed ones.
    `opinion` is the result of the expectations on the staged rows; `settings` is the fingerprint of the
    configuration that declares them."""

    number: int
    txn: Txn
    owner: Owner
    round: int
    token: WriterToken
    staged: Staged | None = None
    replayed: bool = False
    gone: str = ""
    found: Digests = field(default_factory=dict)
    opinion: Opinion = field(default_factory=Opinion)
    settings: str = ""

    def __post_init__(self) -> None:
        if (self.staged is None) is not bool(self.gone):
            raise InvalidUsage(
                f"evidence on transaction {self.txn} needs either staged parts or a reason why there are none"
            )

    @property
    def key(self) -> str:
        return self.owner.identity


def decide_evidence(*, head: Head, found: Sequence[Evidence], new: Evidence) -> Put[Evidence, None] | None:
    """Keep the evidence under the next number. `found` is the evidence on record since the first try: after a
    lost reply, it contains the new one."""
    known = {(entry.txn, entry.token, entry.replayed) for entry in found}
    if (new.txn, new.token, new.replayed) in known:
        return None
    return Put(marks={UPPER: head.upper + 1}, records=(replace(new, number=head.upper),), result=None)


def newest_of(
    found: Sequence[Evidence], txn: Txn, *, replayed: bool = False, round_min: int = 0
) -> Evidence | None:
    """A run's newest evidence on a transaction, from a round on; None if there is none."""
    on_it = [
        entry
        for entry in found
        if entry.txn == txn and entry.replayed is replayed and entry.round >= round_min
    ]
    return on_it[-1] if on_it else None
