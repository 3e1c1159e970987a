"""`tidemark status`: the progress of a pipeline and its blocks. It changes nothing and starts no Spark."""

from __future__ import annotations

import time
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tidemark.app.workspace import open_deployment
from tidemark.cli.shared import (
    EXIT_ALARM,
    EXIT_CODES,
    EnvironmentOption,
    JsonOption,
    PipelineArgument,
    print_json,
    print_table,
    say,
)
from tidemark.core.status import alarms_of, limits_in
from tidemark.core.text import moment, numbers, span

if TYPE_CHECKING:
    from tidemark.core.status import CandidateStatus, Input, ShardStatus, SourceStatus, Status


def _ago(at: datetime | None, now: float) -> str:
    return f"{moment(at)} UTC, {span(now - at.timestamp())} ago" if at is not None else "at an unknown time"


def _show_candidate(one: CandidateStatus | None) -> None:
    if one is not None:
        behind = "reads nothing again" if one.from_now else f"{one.behind:,} transactions behind"
        say(f"candidate: generation {one.generation}, {behind}: {one.reason}")


def show_status(found: Status, *, now_seconds: float) -> None:
    """Print the status; problems that need a person's attention are red."""
    now = now_seconds
    say(f"pipeline {found.pipeline}", style="bold")
    say(f"bound {found.bound}, sealed {found.sealed}, checkpoint {found.checkpoint}")
    if found.last_run is not None:
        say(f"last run: {found.last_run.run_id}, {_ago(found.last_run.at, now)}")
    if found.sealed:
        took = span(found.last_sealed.seconds)
        say(f"last sealed: {found.sealed}, {_ago(found.last_sealed.sealed, now)}; it took {took}")
    if found.open:
        say(f"open: {numbers(found.open)}; the next run finishes them first", style="yellow")
        say(f"open since {_ago(found.open_since, now)}", style="yellow")
    for stop in found.blocked:
        since = f", since {_ago(stop.since, now)}" if stop.since is not None else ""
        say(f"blocked: {stop.what}{since}: {stop.why}", style="red")
    if found.source is None or not found.source.trouble:
        _show_waiting(found.waiting, now)
    if found.quarantined.records:
        say(f"quarantined: {found.quarantined.records:,}, the last {_ago(found.quarantined.last, now)}")
    for stall in found.stalled:
        say(f"stalled: {stall.sentence(now)}", style="red")
    if found.source is not None:
        _show_source(found.source)
    print_table("", ("shard", "log has", "state has", "behind", "waits"), map(_cells, found.shards))
    _show_unlisted(found)
    if found.since > 1:
        say(f"single transactions are kept from {found.since} on")
    _show_candidate(found.candidate)
    if found.epoch:
        say(f"epoch {found.epoch}: the history was recovered")
    if found.sealed:
        say(
            f"outside witness: {found.witness}"
            if found.witness
            else "outside witness: none; a restore of all tables together can't be noticed"
        )
    for one in found.replayable:
        txns = f"{one.first} to {one.last}" if one.last > one.first else str(one.first)
        until = f"until {moment(one.until)}" if one.until else "while the input stays unchanged"
        until += f"; {one.caveat}" if one.caveat else ""
        say(
            f"replayable: {txns} no longer: {one.gone}" if one.gone else f"replayable: {txns}, {until}",
            style="yellow" if one.gone else "",
        )


def _show_unlisted(found: Status) -> None:
    if found.unlisted:
        say(f"{found.unlisted:,} other shards have no work; --shards looks at all")


def _show_waiting(waiting: Input, now: float) -> None:
    if waiting.trouble:
        say(f"waiting: {waiting.trouble}", style="red")
    elif waiting.pieces:
        size = f", {waiting.bytes:,} bytes" if waiting.bytes else ""
        say(f"waiting: {waiting.pieces:,} {waiting.unit}{size}, the oldest from {_ago(waiting.oldest, now)}")


def _cells(one: ShardStatus) -> tuple[object, ...]:
    """A shard's table row. The quarantine has a log but no state, so it is never behind."""
    from tidemark.core.ids import QUARANTINE

    has = one.log_upper - 1
    behind = "" if one.shard == QUARANTINE else has - one.published
    waits = "not in the pipeline file" if one.left_out else one.paused
    return one.shard, has or "-", one.published or "-", behind, waits


def _show_source(source: SourceStatus) -> None:
    say(f"source: received {source.received}, flushed {source.flushed}, acknowledged {source.acknowledged}")
    if source.trouble:
        say(f"source: {source.trouble}", style="red")
    else:
        say(f"source: {source.cost}")
    for what in source.held_back_by:
        say(f"source: held back by {what}", style="yellow")


EXIT_ALARM_TEXT: Final = "4 an alarm of --fail-if is on."


def register(app: typer.Typer) -> None:
    """Register the command."""
    app.command(name="status", epilog=f"{EXIT_CODES} {EXIT_ALARM_TEXT}")(status)


def status(
    pipeline: PipelineArgument,
    fail_if: Annotated[
        str,
        typer.Option(
            "--fail-if",
            metavar="ALARMS",
            help="Exit with 4 if one of these alarms is on: blocked, stalled, behind=10m, quarantine, "
            "quarantine=24h, quarantine=5%, wal=10GB, replayable=2d, candidate=2d; separate several with "
            "commas; all: with the limits of the pipeline file.",
        ),
    ] = "",
    environment: EnvironmentOption = None,
    shards: Annotated[
        bool,
        typer.Option("--shards", help="Look at every shard. Without it, of more than 50 at those with work."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show how far a pipeline is, what is open, what is blocked since when, and what waits for what.

    With --fail-if, also whether that is an alarm, and what to do about it. Behind is the age of the oldest
    input that is not sealed: files, records or source transactions that wait, or a transaction that is bound.
    Quarantine asks for quarantined records at all, for some that were sealed within a time, or for their
    share of the newest 100 transactions. An alarm without a limit takes the one of the pipeline file.
    """
    from tidemark.app import metrics
    from tidemark.app.status import status_of

    deployment = open_deployment(pipeline, environment)
    limits = limits_in(fail_if, deployment.config.alarms.limits)
    now = time.time()
    found = status_of(deployment, now_seconds=now, every_shard=shards or as_json or bool(fail_if))
    rung = alarms_of(found, limits)
    metrics.send(
        metrics.opentelemetry_sink(),
        lambda: metrics.of_status(found, alarms_of(found, deployment.config.alarms.limits), now_seconds=now),
    )
    if as_json:
        print_json({**{name: getattr(found, name) for name in found.__slots__}, "alarms": rung})
    else:
        show_status(found, now_seconds=now)
        for what in rung:
            say(f"alarm: {what}", style="red")
    if rung:
        raise typer.Exit(code=EXIT_ALARM)
