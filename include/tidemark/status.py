"""Where a pipeline stands: how far it is, what is open, what is blocked, what waits. For the command and the
pages in Airflow. It changes nothing and starts no Spark."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from tidemark.assemble import Deployment
from tidemark.core.frontier import Frontier
from tidemark.core.ids import QUARANTINE, ShardId, Txn
from tidemark.core.lease import since_of
from tidemark.core.publish import published_txn
from tidemark.core.replay import Replayable
from tidemark.core.shard import Paused, next_append
from tidemark.core.text import moment
from tidemark.pipeline.context import Pipeline, binding_at, last_binding
from tidemark.pipeline.fit import fit_of
from tidemark.pipeline.flushing import holding_back, stalls
from tidemark.pipeline.history import losses
from tidemark.pipeline.proof import ASKED_AT_ONCE_MAX, replayable
from tidemark.pipeline.publish import last_published
from tidemark.pipeline.timeline import (
    Blocked,
    LastRun,
    LastVerdict,
    Times,
    last_run,
    last_verdict,
    refused_since,
    times_of,
    written_at,
)
from tidemark.ports.source import TellsStanding, TellsWaiting


@dataclass(frozen=True, slots=True)
class ShardStatus:
    """Where a shard stands: its log's upper, what its state has, and why it waits, if it does."""

    shard: ShardId
    log_upper: int
    log_version: int
    published: int
    paused: str
    left_out: bool = False
    """Whether it has rows and the pipeline file doesn't name it: its table stays as it is."""


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """How far a source that remembers for us was received, is durable, and was told so; and what holds the
    rest back, at what cost."""

    received: str
    flushed: str
    acknowledged: str
    held_back_by: tuple[str, ...]
    cost: str
    trouble: str


@dataclass(frozen=True, slots=True)
class Proof:
    """Neighbouring transactions that can be proven again, or why they can't; `until` is how long their source
    keeps the input, empty when no such time is known, and `caveat` what may take it sooner."""

    first: int
    last: int
    gone: str = ""
    until: str = ""
    caveat: str = ""


@dataclass(frozen=True, slots=True)
class Input:
    """Input that belongs to no transaction yet, and when the oldest of it came. `known` is false for a source
    that can't say; `trouble` is why one that can has not."""

    known: bool = False
    pieces: int = 0
    bytes: int = 0
    oldest: datetime | None = None
    trouble: str = ""
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Quarantined:
    """How many records are quarantined in the kept transactions, and when the last of them was."""

    records: int = 0
    last: datetime | None = None


@dataclass(frozen=True, slots=True)
class Status:
    """Where a pipeline stands."""

    pipeline: str
    bound: int
    sealed: int
    checkpoint: int
    generation: int
    open: tuple[int, ...]
    stalled: tuple[str, ...]
    shards: tuple[ShardStatus, ...]
    since: int = 1
    replayable: tuple[Proof, ...] = ()
    source: SourceStatus | None = None
    at: datetime | None = None
    last_run: LastRun | None = None
    last_bound: Times = field(default_factory=lambda: Times(None, None))
    last_sealed: Times = field(default_factory=lambda: Times(None, None))
    open_since: datetime | None = None
    """When the first open transaction was bound."""
    blocked: tuple[Blocked, ...] = ()
    waiting: Input = field(default_factory=Input)
    quarantined: Quarantined = field(default_factory=Quarantined)
    last_verdict: LastVerdict | None = None


def status_of(deployment: Deployment, *, now_seconds: float, asks_source: bool = True) -> Status:
    """The pipeline's standing, from its ledgers and, unless it is not to be asked, what its source says. A
    pipeline file that doesn't fit the warehouse is told like anything else that blocks."""
    pipeline = deployment.unchecked
    control = pipeline.control
    fit = fit_of(pipeline)
    bound = control.bindings.head().upper - 1
    seals = control.seals.head()
    done = control.checkpoints.head().upper - 1
    shards: list[ShardStatus] = []
    blocked = [Blocked("the pipeline file does not fit", None, str(one)) for one in fit.refused]
    if lost := losses(control, (*deployment.shards, QUARANTINE)):
        blocked = [*(Blocked("commits are lost", None, one) for one in lost), *blocked]
    for shard in (*deployment.shards, *fit.left_out, QUARANTINE):
        log = control.log(shard).head()
        waits = next_append(
            shard, upper=log.upper, seals=control.seals.read(max(log.upper, done), seals.upper)
        ) if log.upper <= seals.upper and log.upper >= done else None  # fmt: skip
        paused = f"at {waits.txn}: {waits.reason}" if isinstance(waits, Paused) else ""
        if isinstance(waits, Paused):
            what = f"shard {shard} at transaction {waits.txn}"
            blocked.append(Blocked(what, written_at(control.seals, waits.txn), waits.reason))
        published = 0 if shard == QUARANTINE else published_txn(last_published(control, shard))
        if shard != QUARANTINE or log.upper > 1:
            left_out = shard in fit.left_out
            shards.append(ShardStatus(shard, log.upper, log.version, published, paused, left_out))
    unsealed = tuple(range(seals.upper, bound + 1))
    if unsealed and (stopped := refused_since(control, Txn(unsealed[0]))) is not None:
        blocked.insert(0, stopped)
    source = source_status(pipeline, bound=bound, done=done, unsealed=unsealed) if asks_source else None
    since = since_of(control.leases.head())
    return Status(
        pipeline=deployment.config.name,
        bound=bound,
        sealed=seals.upper - 1,
        checkpoint=done,
        generation=seals.generation,
        open=unsealed,
        stalled=stalls(pipeline, now_seconds=now_seconds),
        shards=tuple(shards),
        since=since,
        replayable=proofs_of(pipeline, since) if asks_source else (),
        source=source,
        at=datetime.fromtimestamp(now_seconds, UTC),
        last_run=last_run(control),
        last_bound=times_of(control, Txn(bound)),
        last_sealed=times_of(control, Txn(seals.upper - 1)),
        open_since=written_at(control.bindings, unsealed[0]) if unsealed else None,
        blocked=tuple(blocked),
        waiting=waiting_input(pipeline) if asks_source else Input(),
        quarantined=quarantined_since(pipeline, since),
        last_verdict=last_verdict(control),
    )


def waiting_input(pipeline: Pipeline) -> Input:
    """What waits in the source, where it is one that can say; asks the source."""
    if not isinstance(pipeline.source, TellsWaiting):
        return Input()
    found = pipeline.source.waiting(last_binding(pipeline, pipeline.control.bindings.head()))
    oldest = datetime.fromtimestamp(found.oldest_seconds, UTC) if found.oldest_seconds is not None else None
    return Input(not found.trouble, found.pieces, found.bytes, oldest, found.trouble, found.unit)


def quarantined_since(pipeline: Pipeline, since: Txn) -> Quarantined:
    """The quarantined records of the transactions from one on, by their seals."""
    seals = pipeline.control.seals
    bad = [seal for seal in seals.read(since, seals.head().upper) if seal.touches(QUARANTINE)]
    if not bad:
        return Quarantined()
    records = sum(seal.shards[QUARANTINE].digest.count for seal in bad)
    return Quarantined(records, written_at(seals, bad[-1].txn))


def proofs_of(pipeline: Pipeline, since: Txn) -> tuple[Proof, ...]:
    """The kept transactions, of many the oldest and the newest, by whether, and until when, their input can
    be read again. Maintenance asks for all."""

    def told(txn: int, one: Replayable) -> Proof:
        until = datetime.fromtimestamp(one.until_seconds, UTC) if one.until_seconds is not None else None
        return Proof(txn, txn, one.gone, moment(until), one.caveat)

    spans: list[Proof] = []
    for txn, found in replayable(pipeline, since=since, at_ends=ASKED_AT_ONCE_MAX).items():
        one = told(txn, found)
        if spans and spans[-1].last == txn - 1 and replace(spans[-1], first=txn, last=txn) == one:
            spans[-1] = replace(spans[-1], last=txn)
        else:
            spans.append(one)
    return tuple(spans)


def source_status(
    pipeline: Pipeline, *, bound: int, done: int, unsealed: tuple[int, ...]
) -> SourceStatus | None:
    """The source's standing, where it is one that has to be acknowledged; asks the source."""
    source = pipeline.source
    if not isinstance(source, TellsStanding):
        return None
    received, flushed = (
        source.shown(binding_at(pipeline, Txn(txn)).upper if txn else Frontier()) for txn in (bound, done)
    )
    holds = [f"shard {lag.shard}, which lacks transaction {lag.wanted.txn}" for lag in holding_back(pipeline)]
    if unsealed:
        holds.append(f"transaction {unsealed[0]}, which is not sealed")
    told = source.standing()
    return SourceStatus(received, flushed, told.acknowledged, tuple(holds), told.cost, told.trouble)
