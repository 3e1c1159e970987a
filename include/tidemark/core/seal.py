"""The seal: the commit decision of a transaction.

A seal is one put-if-absent record. It lists the parts of every shard that the transaction
touches, the digests of what was read and written, how it was decided, and the writer's token and
generation. The first seal of a `txn` wins, and seals are put in order without gaps (Invariant 2).
After it, anyone may finish the transaction, with these parts and no others; so a writer that dies
right after its seal has lost nothing, and one that comes second has nothing to add.

The seal is also the fence (Invariant 13): a writer of an older generation than the newest one
seen is refused here, and nowhere else. And it is the mark that a sweep needs: an attempt whose
transaction is sealed under another token can never be committed, so its parts may go; an attempt
of an open transaction may still be sealed, so they may not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from tidemark.core.binding import Configuration
from tidemark.core.checksum import SOURCE, Digest, Digests, shard_endpoint
from tidemark.core.errors import InvalidUsage, InvariantViolation
from tidemark.core.ids import TXN_FIRST, ShardId, Txn, WriterToken
from tidemark.core.ledger import GENERATION, UPPER, Head, Put
from tidemark.core.shape import Shapes, check_on_record


@dataclass(frozen=True, slots=True)
class Part:
    """One Parquet file of one transaction of one shard. `stats` is what a Delta log says of it: a
    description of the same file, which a log may give back in other words, so it doesn't count."""

    path: str
    rows: int
    bytes: int
    stats: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class ShardParts:
    """What a transaction adds to one shard. With `held` set, the shard's log waits at this
    transaction for the named reason, while the parts are sealed and durable. `deletes` is how many of the
    rows delete a key, for people; None where that was not counted."""

    parts: tuple[Part, ...]
    digest: Digest
    held: str = ""
    deletes: int | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        rows = sum(part.rows for part in self.parts)
        if rows != self.digest.count:
            raise InvariantViolation(f"parts have {rows} rows, but their digest counts {self.digest.count}")
        if not 0 <= (self.deletes or 0) <= rows:
            raise InvariantViolation(f"{self.deletes} of {rows} rows are said to be deletes")


def digests_of(source: Digest, shards: Mapping[ShardId, ShardParts]) -> dict[str, Digest]:
    """One digest per endpoint that has rows; a shard that got none is not an endpoint."""
    written = {shard_endpoint(shard): added.digest for shard, added in shards.items() if added.parts}
    return {SOURCE: source, **written}


@dataclass(frozen=True, slots=True)
class Staged:
    """One attempt's work: written, counted, invisible. `base` is the watermark that it started from, and
    `watermark` the one that it ends with."""

    txn: Txn
    token: WriterToken
    source: Digest
    shards: Mapping[ShardId, ShardParts]
    engine: str
    watermark: int | None = None
    base: int | None = None
    configuration: Configuration | None = None
    """The settings that it was made with, where they are others than those it was bound with."""

    @property
    def digests(self) -> Digests:
        return digests_of(self.source, self.shards)


class Decision(StrEnum):
    """How a transaction was decided."""

    COMMITTED = "committed"
    ACCEPTED = "accepted"
    SKIPPED = "skipped"


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

    def __post_init__(self) -> None:
        if self.txn < TXN_FIRST:
            raise InvalidUsage(f"a seal needs a transaction from 1 on, not {self.txn}")
        if self.decision is Decision.SKIPPED and self.shards:
            raise InvalidUsage(f"transaction {self.txn} is skipped, so its seal can't have parts")
        if self.decision is not Decision.COMMITTED and not self.reason:
            raise InvalidUsage(f"transaction {self.txn} is {self.decision}", hint="give a reason to keep")

    @property
    def number(self) -> int:
        return self.txn

    @property
    def key(self) -> str:
        return self.token

    @property
    def digests(self) -> Digests:
        """What a replay must find again; a skipped transaction has nothing to compare."""
        if self.decision is Decision.SKIPPED:
            return {}
        return digests_of(self.source, self.shards)

    def touches(self, shard: ShardId) -> bool:
        return shard in self.shards


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
        base=staged.base,
    )


def skip_of(
    txn: Txn, *, token: WriterToken, generation: int, reason: str, watermark: int | None = None
) -> Seal:
    """The empty seal that passes over a transaction, for a reason that stays on record.

    It hands the watermark below it on: one that went back would take late records in again whose
    tombstones are gone."""
    source = Digest()
    return Seal(
        txn, token, generation, Decision.SKIPPED, source, reason=reason, watermark=watermark, base=watermark
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


class Fenced(InvalidUsage):
    """A writer of an older generation asked for a seal."""

    def __init__(self, txn: Txn, *, generation: int, newest: int) -> None:
        super().__init__(
            f"generation {generation} may not seal transaction {txn}: generation {newest} is in charge",
            hint="stop this deployment, or raise its generation",
        )
        self.generation = generation
        self.newest = newest


SealOutcome = Sealed | Lost | TooEarly


def decide_seal(
    *,
    head: Head,
    found: Seal | None,
    seal: Seal,
    recorded: Shapes | None = None,
    declared: Shapes | None = None,
) -> Put[Seal, SealOutcome] | SealOutcome:
    """Seal at the upper; below it, tell who won; above it, wait for the lower ones.

    `found` is the record at the seal's transaction, when the upper has passed it. A seal of our own
    that is found there is success: that is how a lost reply is answered (Invariant 5). `declared` is what
    the parts were made with, `recorded` what their logs can take: nothing else is sealed (Invariant 17).
    """
    if seal.txn < head.upper:
        if found is None:
            raise InvariantViolation(f"transaction {seal.txn} is below {head.upper} and has no seal")
        return Sealed(found, already=True) if found.token == seal.token else Lost(found)
    if seal.generation < head.generation:
        raise Fenced(seal.txn, generation=seal.generation, newest=head.generation)
    if seal.txn > head.upper:
        return TooEarly(head.upper)
    check_on_record(tuple(seal.shards), recorded=recorded or {}, declared=declared or {})
    marks = {UPPER: seal.txn + 1, GENERATION: seal.generation}
    return Put(marks=marks, records=(seal,), result=Sealed(seal))


def decide_generation(*, head: Head, generation: int) -> Put[Seal, int] | int:
    """Announce a generation: from this commit on, older ones are refused. Returns the one in charge."""
    if generation <= head.generation:
        return head.generation
    return Put(marks={GENERATION: generation}, records=(), result=generation)
