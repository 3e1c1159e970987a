"""The commands that look and change nothing: `status`, `txns`, `show`. None of them starts Spark."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

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
    from tidemark.core.binding import Binding
    from tidemark.core.ids import ShardId, Txn
    from tidemark.core.replay import Replayable
    from tidemark.core.seal import Seal


def register(app: typer.Typer) -> None:
    """Add the commands to the main one."""
    app.command(name="status", epilog=EXIT_CODES)(status)
    app.command(name="txns", epilog=EXIT_CODES)(txns)
    app.command(name="show", epilog=EXIT_CODES)(show)


@dataclass(frozen=True, slots=True)
class ShardStatus:
    """Where a shard stands: its log's upper, what its state has, and why it waits, if it does."""

    shard: ShardId
    log_upper: int
    log_version: int
    published: int
    paused: str


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
    if found.open:
        say(f"open: {', '.join(map(str, found.open))}; the next run finishes them first", style="yellow")
    for what in found.stalled:
        say(what, style="red")
    if found.source is not None:
        _show_source(found.source)
    rows = [
        (s.shard, s.log_upper - 1 or "-", s.published or "-", s.log_upper - 1 - s.published, s.paused or "")
        for s in found.shards
    ]
    print_table("", ("shard", "log has", "state has", "behind", "waits"), rows)
    if found.since > 1:
        say(f"single transactions are kept from {found.since} on")
    for one in found.replayable:
        span = f"{one.first} to {one.last}" if one.last > one.first else str(one.first)
        until = f"until {one.until}" if one.until else "as long as its input stays as it is"
        until += f"; {one.caveat}" if one.caveat else ""
        say(
            f"replayable: {span} no more: {one.gone}" if one.gone else f"replayable: {span}, {until}",
            style="yellow" if one.gone else "",
        )


def status_of(deployment: Deployment, *, now_seconds: float) -> Status:
    """The pipeline's standing, from its ledgers and what its source says."""
    from tidemark.core.lease import since_of
    from tidemark.core.publish import published_txn
    from tidemark.core.shard import Paused, next_append
    from tidemark.pipeline.flushing import stalls
    from tidemark.pipeline.publish import last_published
    from tidemark.spark.parts import QUARANTINE

    control = deployment.control
    bound = control.bindings.head().upper - 1
    seals = control.seals.head()
    done = control.checkpoints.head().upper - 1
    shards: list[ShardStatus] = []
    for shard in (*deployment.shards, QUARANTINE):
        log = control.log(shard).head()
        waits = next_append(
            shard, upper=log.upper, seals=control.seals.read(max(log.upper, done), seals.upper)
        ) if log.upper <= seals.upper and log.upper >= done else None  # fmt: skip
        paused = f"at {waits.txn}: {waits.reason}" if isinstance(waits, Paused) else ""
        published = 0 if shard == QUARANTINE else published_txn(last_published(control, shard))
        if shard != QUARANTINE or log.upper > 1:
            shards.append(ShardStatus(shard, log.upper, log.version, published, paused))
    unsealed = tuple(range(seals.upper, bound + 1))
    source = source_status(deployment, bound=bound, done=done, unsealed=unsealed)
    return Status(
        pipeline=deployment.config.name,
        bound=bound,
        sealed=seals.upper - 1,
        checkpoint=done,
        generation=seals.generation,
        open=unsealed,
        stalled=stalls(deployment.pipeline, now_seconds=now_seconds),
        shards=tuple(shards),
        since=since_of(control.leases.head()),
        replayable=proofs_of(deployment, since_of(control.leases.head())),
        source=source,
    )


def proofs_of(deployment: Deployment, since: Txn) -> tuple[Proof, ...]:
    """The kept transactions, of many the oldest and the newest, by whether, and until when, their input can
    be read again. Maintenance asks for all."""
    from tidemark.pipeline.proof import ASKED_AT_ONCE_MAX, replayable

    def told(txn: int, one: Replayable) -> Proof:
        until = moment(int(one.until_seconds * 1e6)) if one.until_seconds is not None else ""
        return Proof(txn, txn, one.gone, until, one.caveat)

    spans: list[Proof] = []
    for txn, found in replayable(deployment.pipeline, since=since, at_ends=ASKED_AT_ONCE_MAX).items():
        one = told(txn, found)
        if spans and spans[-1].last == txn - 1 and replace(spans[-1], first=txn, last=txn) == one:
            spans[-1] = replace(spans[-1], last=txn)
        else:
            spans.append(one)
    return tuple(spans)


def source_status(
    deployment: Deployment, *, bound: int, done: int, unsealed: tuple[int, ...]
) -> SourceStatus | None:
    """The source's standing, where it is one that has to be acknowledged; asks the source."""
    from tidemark.core.frontier import Frontier
    from tidemark.core.ids import Txn
    from tidemark.pipeline.context import binding_at
    from tidemark.pipeline.flushing import holding_back
    from tidemark.ports.source import TellsStanding

    pipeline = deployment.pipeline
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


def txns(
    pipeline: PipelineArgument,
    last: Annotated[int, typer.Option("--last", "-n", min=1, help="How many, the newest first.")] = 20,
    environment: EnvironmentOption = None,
    as_json: JsonOption = False,
) -> None:
    """List transactions: what was read, what was written, who decided, what replays said."""
    from tidemark.core.binding import Binding

    deployment = open_deployment(pipeline, environment)
    control = deployment.control
    upper = control.bindings.head().upper
    lower = max(1, upper - last)
    control.seals.head()
    control.journal.head()
    seals = {seal.txn: seal for seal in control.seals.read(lower, upper)}
    bound = [record for record in control.bindings.read(lower, upper) if isinstance(record, Binding)]
    listed = [_row(deployment, binding, seals.get(binding.txn)) for binding in reversed(bound)]
    if as_json:
        print_json(listed)
        return
    columns = ("txn", "decision", "read", "rows per shard", "run", "last verdict")
    print_table("", columns, [tuple(row.values()) for row in listed])


def _row(deployment: Deployment, binding: Binding, seal: Seal | None) -> dict[str, object]:
    verdicts = [
        entry.detail["verdict"]
        for entry in deployment.control.journal.find(str(binding.txn))
        if "verdict" in entry.detail
    ]
    shards = seal.shards.items() if seal is not None else ()
    return {
        "txn": binding.txn,
        "decision": str(seal.decision) if seal is not None else "open",
        "read": seal.source.count if seal is not None else None,
        "rows": ", ".join(f"{shard} {parts.digest.count}" for shard, parts in shards),
        "run": binding.owner.run_id,
        "verdict": verdicts[-1] if verdicts else "",
    }


def show(
    pipeline: PipelineArgument,
    txn: Annotated[int, typer.Argument(min=1, help="The transaction's number.", metavar="TXN")],
    environment: EnvironmentOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one transaction whole: its input, its seal with parts and digests, its journal."""
    from tidemark.core.ids import Txn
    from tidemark.pipeline.context import binding_at

    deployment = open_deployment(pipeline, environment)
    binding = binding_at(deployment.pipeline, Txn(txn))
    control = deployment.control
    control.seals.head()
    control.journal.head()
    seal = next(iter(control.seals.read(txn, txn + 1)), None)
    entries = control.journal.find(str(txn))
    settings = (seal.configuration if seal is not None else None) or binding.configuration
    if as_json:
        print_json({"binding": binding, "seal": seal, "journal": entries})
        return
    say(f"transaction {txn}", style="bold")
    say(f"input      {binding.lower.as_dict()} up to {binding.upper.as_dict()}, configuration "
        f"{settings.fingerprint}, run {binding.owner.run_id}")  # fmt: skip
    if seal is None:
        say("open: not sealed yet", style="yellow")
    else:
        why = f" ({seal.reason})" if seal.reason else ""
        say(f"{seal.decision}{why} by {seal.token}, generation {seal.generation}, {seal.engine}")
        rows = [(endpoint, digest.count, digest) for endpoint, digest in seal.digests.items()]
        print_table("", ("endpoint", "rows", "digest"), rows)
        parts = [
            (shard, part.path, part.rows, part.bytes, added.held)
            for shard, added in seal.shards.items()
            for part in added.parts
        ]
        print_table("", ("shard", "part", "rows", "bytes", "held"), parts)
    if entries:
        lines = [(e.event, e.token, ", ".join(f"{k}: {v}" for k, v in e.detail.items())) for e in entries]
        print_table("", ("event", "by", ""), lines)
