"""`tidemark status`: how far a pipeline is, and what holds it up. It changes nothing and starts no Spark."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import typer

from tidemark.cli.shared import (
    EXIT_CODES,
    EnvironmentOption,
    JsonOption,
    PipelineArgument,
    moment,
    open_deployment,
    print_json,
    print_table,
    say,
)

if TYPE_CHECKING:
    from tidemark.assemble import Deployment
    from tidemark.core.ids import ShardId, Txn
    from tidemark.core.replay import Replayable
    from tidemark.pipeline.context import Pipeline


def register(app: typer.Typer) -> None:
    """Add the command to the main one."""
    app.command(name="status", epilog=EXIT_CODES)(status)


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
    refused: str = ""
    """Why the first open transaction can't be staged, if it was tried and can't."""
    misfits: tuple[str, ...] = ()
    """In what the pipeline file doesn't fit the warehouse: the next run is refused for it."""


def status(
    pipeline: PipelineArgument, environment: EnvironmentOption = None, as_json: JsonOption = False
) -> None:
    """Show how far a pipeline is, what is open, and what waits for what."""
    deployment = open_deployment(pipeline, environment)
    found = status_of(deployment, now_seconds=time.time())
    if as_json:
        print_json(found)
        return
    say(f"pipeline {found.pipeline}", style="bold")
    say(f"bound {found.bound}, sealed {found.sealed}, checkpoint {found.checkpoint}")
    for what in found.misfits:
        say(f"the pipeline file does not fit: {what}", style="red")
    if found.open:
        say(f"open: {', '.join(map(str, found.open))}; the next run takes them up first", style="yellow")
    if found.refused:
        say(found.refused, style="red")
    for what in found.stalled:
        say(what, style="red")
    if found.source is not None:
        _show_source(found.source)
    print_table("", ("shard", "log has", "state has", "behind", "waits"), map(_cells, found.shards))
    if found.since > 1:
        say(f"single transactions are kept from {found.since} on")
    for one in found.replayable:
        span = f"{one.first} to {one.last}" if one.last > one.first else str(one.first)
        until = f"until {one.until}" if one.until else "as long as the input stays as it is"
        until += f"; {one.caveat}" if one.caveat else ""
        say(
            f"replayable: {span} no more: {one.gone}" if one.gone else f"replayable: {span}, {until}",
            style="yellow" if one.gone else "",
        )


def _cells(one: ShardStatus) -> tuple[object, ...]:
    """A shard's line. What is quarantined has a log only, and no state that could be behind."""
    from tidemark.core.ids import QUARANTINE

    has = one.log_upper - 1
    behind = "" if one.shard == QUARANTINE else has - one.published
    waits = "not in the pipeline file" if one.left_out else one.paused
    return one.shard, has or "-", one.published or "-", behind, waits


def status_of(deployment: Deployment, *, now_seconds: float) -> Status:
    """The pipeline's standing, from its ledgers and what its source says. A pipeline file that doesn't fit
    is told like anything else."""
    from tidemark.core.ids import QUARANTINE
    from tidemark.core.lease import since_of
    from tidemark.core.publish import published_txn
    from tidemark.core.shard import Paused, next_append
    from tidemark.pipeline.fit import fit_of
    from tidemark.pipeline.flushing import stalls
    from tidemark.pipeline.publish import last_published
    from tidemark.pipeline.refusal import refusal_of

    pipeline = deployment.unchecked
    control = pipeline.control
    fit = fit_of(pipeline)
    bound = control.bindings.head().upper - 1
    seals = control.seals.head()
    done = control.checkpoints.head().upper - 1
    shards: list[ShardStatus] = []
    for shard in (*deployment.shards, *fit.left_out, QUARANTINE):
        log = control.log(shard).head()
        waits = next_append(
            shard, upper=log.upper, seals=control.seals.read(max(log.upper, done), seals.upper)
        ) if log.upper <= seals.upper and log.upper >= done else None  # fmt: skip
        paused = f"at {waits.txn}: {waits.reason}" if isinstance(waits, Paused) else ""
        published = 0 if shard == QUARANTINE else published_txn(last_published(control, shard))
        if shard != QUARANTINE or log.upper > 1:
            left_out = shard in fit.left_out
            shards.append(ShardStatus(shard, log.upper, log.version, published, paused, left_out))
    unsealed = tuple(range(seals.upper, bound + 1))
    source = source_status(pipeline, bound=bound, done=done, unsealed=unsealed)
    return Status(
        pipeline=deployment.config.name,
        bound=bound,
        sealed=seals.upper - 1,
        checkpoint=done,
        generation=seals.generation,
        open=unsealed,
        stalled=stalls(pipeline, now_seconds=now_seconds),
        shards=tuple(shards),
        since=since_of(control.leases.head()),
        replayable=proofs_of(pipeline, since_of(control.leases.head())),
        source=source,
        refused=refusal_of(pipeline, seals.upper) if unsealed else "",
        misfits=tuple(map(str, fit.refused)),
    )


def proofs_of(pipeline: Pipeline, since: Txn) -> tuple[Proof, ...]:
    """The kept transactions, of many the oldest and the newest, by whether, and until when, their input can
    be read again. Maintenance asks for all."""
    from tidemark.pipeline.proof import ASKED_AT_ONCE_MAX, replayable

    def told(txn: int, one: Replayable) -> Proof:
        until = moment(int(one.until_seconds * 1e6)) if one.until_seconds is not None else ""
        return Proof(txn, txn, one.gone, until, one.caveat)

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
    from tidemark.core.frontier import Frontier
    from tidemark.core.ids import Txn
    from tidemark.pipeline.context import binding_at
    from tidemark.pipeline.flushing import holding_back
    from tidemark.ports.source import TellsStanding

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


def _show_source(source: SourceStatus) -> None:
    say(f"source: received {source.received}, flushed {source.flushed}, acknowledged {source.acknowledged}")
    if source.trouble:
        say(f"source: {source.trouble}", style="red")
    else:
        say(f"source: {source.cost}")
    for what in source.held_back_by:
        say(f"source: held back by {what}", style="yellow")
