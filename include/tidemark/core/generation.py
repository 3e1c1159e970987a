"""Generations: replace a pipeline's configuration without downtime.

A *generation* is a configuration in charge; its number is a mark of the history. A *candidate* is the next
one. It builds its own logs and states in a shadow folder, from the recorded bindings of the pipeline: it
binds no input, acknowledges nothing, and follows the pipeline's transactions as they are sealed.

A promotion is a transaction. It is bound without input, above everything that is bound. When everything
below it is sealed, and the candidate has followed up to there, its seal (`Decision.CORRECTED`) carries, for
each shard, the difference between the old rows and the candidate's, and raises the generation: all in one
commit. So the logs get the difference as ordinary changes, the states stay the fold of their logs at their
addresses, and every reader sees the whole promotion at one transaction, or nothing of it.

A shard that gets another key, type or order is *replaced*: its parts in the seal are the whole new state, its
log begins anew with them, under the new shape, and its state is made of them alone. Both keep their
addresses. Its consumers stop there until they agree to a snapshot (`core.reading.ShardReplaced`).

Nothing is bound above an open promotion, so every later binding is made by the generation in charge. Runs
wait for it for a short time, and then skip it: then nothing has happened, and it can be tried again.

The configuration in charge is the one in the history, not the one in the pipeline file: a file of another
generation is a proposal, or is out of date (`in_charge`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from tidemark.core.binding import Binding, Configuration, Owner, Step
from tidemark.core.checksum import Digest
from tidemark.core.errors import Determinate, InvalidUsage
from tidemark.core.ids import ShardId, Txn, WriterToken
from tidemark.core.ledger import UPPER, Head, Put
from tidemark.core.seal import Decision, Seal, ShardParts
from tidemark.core.shape import Shapes

GRACE_SECONDS: Final = 120.0


class CandidateState(StrEnum):
    """Whether a candidate is still there."""

    STARTED = "started"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True)
class Candidate:
    """The record of a candidate: started or, with the same facts, aborted.

    `number` is the record's own; `start` is that of the start and names the shadow folder, so a later start
    never finds the files of an aborted one. Transactions from `since` to `until` (0: without an end) are read
    with `configuration`, all others with the settings that they were sealed with."""

    number: int
    start: int
    token: WriterToken
    configuration: Configuration
    since: Txn
    until: Txn
    reason: str
    state: CandidateState = CandidateState.STARTED
    from_now: bool = False
    """Whether nothing is read again: the tables stay as they are, and later input gets the settings."""
    replaces: tuple[ShardId, ...] = ()
    """The shards that a person has agreed to replace: their logs begin anew at the promotion."""
    undoes: int = 0
    """The generation whose promotion it takes back; 0 for a candidate that was made from the pipeline file.
    Its settings are those on record, so no file ever speaks for its generation."""

    @property
    def key(self) -> str:
        return self.token

    @property
    def generation(self) -> int:
        return self.configuration.generation

    @property
    def identity(self) -> str:
        """Names this start and its settings, so that an answer about one candidate is about no other."""
        return f"{self.folder}-{self.configuration.fingerprint}"

    @property
    def folder(self) -> str:
        """The name of the shadow folder."""
        return f"{self.generation}-{self.start}"

    def reads(self, txn: Txn) -> bool:
        """Whether a transaction is read with the candidate's configuration."""
        return not self.from_now and self.since <= txn and (not self.until or txn <= self.until)


@dataclass(frozen=True, slots=True)
class Correction:
    """The difference between two generations of one shard, staged for a promotion: None where there is none.
    `refused` is why the shard can't be corrected."""

    parts: ShardParts | None = None
    upserts: int = 0
    deletes: int = 0
    refused: str = ""


class PromotionOpen(Determinate):
    """A promotion is bound and not decided; nothing is bound above it."""

    def __init__(self, binding: Binding) -> None:
        super().__init__(
            f"transaction {binding.txn} promotes generation {binding.promotes} and is not decided yet",
            hint=f"retry: it takes seconds, and after {binding.grace_seconds:g} seconds a run skips it",
        )
        self.binding = binding


class Superseded(Determinate):
    """Another generation is in charge than the one that this process opened the pipeline with."""

    def __init__(self, *, generation: int, newest: int) -> None:
        super().__init__(
            f"generation {newest} is in charge, and this process was opened with generation {generation}",
            hint="retry: the pipeline is opened again",
        )


def current(records: Sequence[Candidate], *, generation: int) -> Candidate | None:
    """The candidate that is there, given the newest records and the generation in charge."""
    if not records:
        return None
    last = records[-1]
    if last.state is CandidateState.ABORTED or last.generation <= generation:
        return None
    return last


def decide_start(
    *, head: Head, last: Candidate | None, found: Candidate | None, new: Candidate, generation: int
) -> Put[Candidate, Candidate] | Candidate:
    """Record the start of a candidate. `found` is the candidate that is there, `last` the newest record,
    `generation` the one in charge. Our own start is found after a lost reply."""
    if last is not None and last.token == new.token:
        return last
    if found is not None:
        raise InvalidUsage(
            f"generation {found.generation} has been started already, by {found.token}",
            hint="promote it, or abort it first",
        )
    if new.generation <= generation:
        raise InvalidUsage(
            f"the file has generation {new.generation}, and generation {generation} is in charge",
            hint=f"set `generation: {generation + 1}` in the pipeline file",
        )
    number = int(head.upper)
    started = replace(new, number=number, start=number)
    return Put(marks={UPPER: number + 1}, records=(started,), result=started)


def decide_abort(
    *,
    head: Head,
    found: Candidate | None,
    last: Candidate | None,
    start: int,
    token: WriterToken,
    reason: str,
) -> Put[Candidate, Candidate] | Candidate:
    """Record the end of a candidate."""
    if last is not None and last.start == start and last.state is CandidateState.ABORTED:
        return last
    if found is None or found.start != start:
        raise InvalidUsage(
            "there is no such candidate any more", hint="`tidemark generation status` shows it"
        )
    ended = replace(found, number=int(head.upper), token=token, state=CandidateState.ABORTED, reason=reason)
    return Put(marks={UPPER: ended.number + 1}, records=(ended,), result=ended)


def decide_promotion(
    *,
    head: Head,
    last: Binding,
    undecided: Binding | None,
    candidate: Candidate,
    nothing: Step,
    owner: Owner,
    grace_seconds: float,
) -> Put[Binding, Binding] | Binding:
    """Bind the transaction that promotes the candidate, above everything that is bound. `undecided` is an
    open promotion: the owner's own, after a lost reply or a crash, or another's. `nothing` is the step that
    reads nothing after the `last` binding."""
    if undecided is not None:
        if undecided.owner.identity == owner.identity and undecided.promotes == candidate.generation:
            return undecided
        raise PromotionOpen(undecided)
    if candidate.generation <= head.generation:
        raise Superseded(generation=candidate.generation, newest=head.generation)
    bound = Binding(
        Txn(last.txn + 1),
        last.upper,
        nothing.upper,
        owner,
        candidate.configuration,
        nothing.manifest,
        epoch=head.epoch,
        promotes=candidate.generation,
        grace_seconds=grace_seconds,
    ).linked(last)
    return Put(marks={UPPER: bound.txn + 1}, records=(bound,), result=bound)


def correction_seal(
    binding: Binding,
    *,
    token: WriterToken,
    candidate: Candidate,
    shards: Mapping[ShardId, ShardParts],
    engine: str,
    watermark: int | None,
    base: int | None,
    replaced: Shapes | None = None,
) -> Seal:
    """The seal that promotes a candidate. `replaced` are the shards whose parts are the whole new state."""
    return Seal(
        binding.txn,
        token,
        candidate.generation,
        Decision.CORRECTED,
        Digest(),
        shards=shards,
        engine=engine,
        reason=f"generation {candidate.generation}: {candidate.reason}",
        watermark=watermark,
        base=base,
        configuration=candidate.configuration,
        binding=binding.link,
        replaced=replaced or {},
    )


def in_charge(
    bindings: Sequence[Binding], decided: Sequence[Seal], *, generation: int
) -> Configuration | None:
    """The configuration in charge, given the newest bindings, and the seals of those that are sealed: the
    newest one of the generation in charge that is not of a promotion that failed. None when they have
    none."""
    seals = {seal.txn: seal for seal in decided}
    for binding in reversed(bindings):
        seal = seals.get(binding.txn)
        promoted = seal is not None and seal.decision is Decision.CORRECTED
        settings = binding.under(seal.configuration if seal is not None else None).configuration
        if binding.lost or (binding.promotes and not promoted) or settings.generation != generation:
            continue
        return settings
    return None


def promoted(records: Sequence[Candidate], *, generation: int) -> tuple[Candidate, ...]:
    """The candidates that were promoted, the newest first, given all records and the generation in
    charge."""
    ended = {one.start for one in records if one.state is CandidateState.ABORTED}
    return tuple(
        one
        for one in reversed(records)
        if one.state is CandidateState.STARTED and one.start not in ended and one.generation <= generation
    )


def is_from_file(records: Sequence[Candidate], *, generation: int) -> bool:
    """Whether the generation in charge is the pipeline file's to speak for: a rollback's is not."""
    newest = next(iter(promoted(records, generation=generation)), None)
    return newest is None or newest.generation != generation or not newest.undoes


def settings_now(known: Sequence[Candidate], seal: Seal) -> Configuration | None:
    """The settings that the tables have a sealed transaction by, given the promoted candidates, the newest
    first; None for those that it was sealed with.

    A promoted candidate has read what older generations had sealed, and nothing that came after it. One that
    takes back a promotion reads what came after that one by its settings, and leaves the rest as it was
    before."""
    while known:
        newest, known = known[0], known[1:]
        if seal.generation >= newest.generation:
            continue
        if newest.undoes:
            if seal.generation >= newest.undoes:
                return newest.configuration
            known = [one for one in known if one.generation < newest.undoes]
        elif newest.reads(seal.txn):
            return newest.configuration
    return None


@dataclass(frozen=True, slots=True)
class Followed:
    """A transaction of both generations: whether the same records were read, and which shards differ."""

    txn: Txn
    source_equal: bool
    differs: tuple[ShardId, ...] = ()


PASSED: Final = (Decision.SKIPPED, Decision.LOST, Decision.CORRECTED)
"""Decisions without input: a candidate passes over such transactions."""


def followed(live: Seal, shadow: Seal) -> Followed:
    """Compare what two generations made of one transaction. Both must have read the same records, or passed
    over it: where a lost history gave a number out again, only one of them may have."""
    if live.decision in PASSED or shadow.decision in PASSED:
        return Followed(live.txn, live.decision in PASSED and shadow.decision in PASSED)
    return Followed(live.txn, live.source == shadow.source, tuple(sorted(differing(live, shadow))))


def differing(live: Seal, shadow: Seal) -> set[ShardId]:
    """The shards that a transaction adds other rows to in the one generation than in the other, by the sealed
    digests. An earlier promotion adds rows that a candidate does not have."""

    def digest(seal: Seal, shard: ShardId) -> Digest | None:
        return seal.shards[shard].digest if shard in seal.shards else None

    return {shard for shard in {*live.shards, *shadow.shards} if digest(live, shard) != digest(shadow, shard)}
