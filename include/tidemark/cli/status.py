"""The commands that show a pipeline's progress: `status`, `txns`, `show`, `journal`, `cuts`.

None of them changes data or starts Spark.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final

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
    rows_text,
    say,
)
from tidemark.core.binding import Binding
from tidemark.core.ids import QUARANTINE
from tidemark.core.seal import Seal
from tidemark.core.status import (
    CandidateStatus,
    Input,
    ShardStatus,
    SourceStatus,
    Status,
    alarms_of,
    limits_in,
)
from tidemark.core.text import amount, moment, numbers, seconds_in, span
from tidemark.pipeline.checkpoint import cuts_of
from tidemark.pipeline.journal import happenings

EXIT_ALARM_TEXT: Final = "4 an alarm of --fail-if is on."


_FILES_SHOWN_MAX: Final = 20

commands: Final = typer.Typer()


@commands.command(name="status", epilog=f"{EXIT_CODES} {EXIT_ALARM_TEXT}")
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
    """Show a pipeline's progress: what is open, what is blocked and since when, and what waits.

    With --fail-if, also report which alarms are on, each with its remedy. `behind` is the age of the oldest
    input that is not sealed: waiting files, records or source transactions, or a bound transaction.
    `quarantine` is on for any quarantined record, for one that was sealed within a time, or for a share of
    the newest 100 transactions. An alarm without a limit uses that of the pipeline file.
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


@commands.command(name="txns", epilog=EXIT_CODES)
def txns(
    pipeline: PipelineArgument,
    last: Annotated[int, typer.Option("--last", "-n", min=1, help="The most to show, newest first.")] = 20,
    environment: EnvironmentOption = None,
    as_json: JsonOption = False,
) -> None:
    """List transactions: when they were bound and sealed, what was read and written, and by which run.

    The last verdict is that of the last replay; it is empty where nothing was replayed.
    """
    from tidemark.app.reports import listed

    deployment = open_deployment(pipeline, environment)
    upper = deployment.control.bindings.head().upper
    rows, seals = listed(deployment, lower=max(1, upper - last), upper=upper)
    if as_json:
        print_json(rows)
        return
    columns = ("txn", "decision", "bound (UTC)", "took", "read", "rows per shard", "run", "last verdict")
    texts = {txn: rows_text(seal.shards) for txn, seal in seals.items()}
    print_table("", columns, [_cells(row, texts.get(row["txn"], "")) for row in rows])


@commands.command(name="show", epilog=EXIT_CODES)
def show(
    pipeline: PipelineArgument,
    txn: Annotated[int, typer.Argument(min=1, help="The number of the transaction.", metavar="TXN")],
    environment: EnvironmentOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one transaction in full: its input, its seal with parts and digests, its journal."""
    from tidemark.app.reports import whole

    deployment = open_deployment(pipeline, environment)
    binding, seal, entries, times = whole(deployment, txn)
    settings = (seal.configuration if seal is not None else None) or binding.configuration
    if as_json:
        found = {"binding": binding, "seal": seal, "journal": entries}
        print_json({**times, **found, "configuration": json.loads(settings.text)})
        return
    say(f"transaction {txn}", style="bold")
    by = f"by run {binding.owner.run_id}, configuration {settings.fingerprint}"
    say(f"bound {moment(times['bound_at'])} UTC {by}")
    show_input(binding)
    if seal is None:
        say("open: not sealed yet", style="yellow")
    else:
        say(f"sealed {moment(times['sealed_at'])} UTC, {span(times['seconds'])} after it was bound")
        show_seal(seal)
    if entries:
        lines = [
            (moment(entry["at"]), entry["event"], entry["token"], _detail(entry["detail"]))
            for entry in entries
        ]
        print_table("", ("at (UTC)", "event", "by", ""), lines)


@commands.command(name="journal", epilog=EXIT_CODES)
def journal(
    pipeline: PipelineArgument,
    since: Annotated[
        str, typer.Option(metavar="TIME", help="How far back: a number with s, m, h or d, such as 24h.")
    ] = "24h",
    environment: EnvironmentOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show recent events in order of time: bindings, seals, rejections, verdicts, replays, lost races, and
    decisions of people.

    Times are by the clocks of the processes that wrote the records.
    """

    start = datetime.now(UTC) - timedelta(seconds=seconds_in(since))
    found = happenings(open_deployment(pipeline, environment).control, since=start)
    if as_json:
        print_json(found)
    elif not found:
        say(f"nothing has happened since {moment(start)} UTC")
    else:
        rows = [(moment(one.at), one.txn, one.event, one.by, _detail(one.detail)) for one in found]
        print_table("", ("at (UTC)", "txn", "event", "by", ""), rows)


@commands.command(name="cuts", epilog=EXIT_CODES)
def cuts(
    pipeline: PipelineArgument,
    as_of: Annotated[
        int | None,
        typer.Option(min=1, metavar="TXN", help="Only the newest cut at or below this transaction."),
    ] = None,
    last: Annotated[int, typer.Option("--last", "-n", min=1, help="The most to show, newest first.")] = 20,
    environment: EnvironmentOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the transactions at which the states of all shards are exact, each with the version of every
    state: any engine that reads these versions reads all tables at that transaction.

    A shard that is not named has no state there yet.
    """

    control = open_deployment(pipeline, environment).control
    found = cuts_of(control, as_of=as_of, last=1 if as_of is not None else last)
    if as_json:
        print_json([{"txn": txn, "versions": versions} for txn, versions in found])
    elif not found:
        say("no cut: the states have not been exact at one transaction yet")
    else:
        rows = [(txn, ", ".join(f"{s} {version}" for s, version in at.items())) for txn, at in found]
        print_table("", ("txn", "version of each state"), rows)


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
    print_table("", ("shard", "log has", "state has", "behind", "waits"), map(_shard_cells, found.shards))
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
        size = f", {amount(waiting.bytes, 'byte')}" if waiting.bytes else ""
        say(f"waiting: {waiting.pieces:,} {waiting.unit}{size}, the oldest from {_ago(waiting.oldest, now)}")


def _shard_cells(one: ShardStatus) -> tuple[object, ...]:
    """A shard's table row. The quarantine has a log but no state, so it is never behind."""

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


def show_input(binding: Binding) -> None:
    """Print the input of a binding: its files, or its offsets."""
    from tidemark.app.bad_records import manifest_of

    manifest = manifest_of(binding)
    if manifest is None:
        below = binding.lower.as_dict()
        rows = [(name, below.get(name, 0), upper) for name, upper in binding.upper.as_dict().items()]
        changed = [row for row in rows if row[1] != row[2]]
        if changed:
            print_table("", ("input", "from", "up to"), changed)
        return
    files = manifest.files
    if files:
        shown = [(file.name, file.seq, file.size) for file in files[:_FILES_SHOWN_MAX]]
        print_table("", ("input file", "number", "bytes"), shown)
    if len(files) > _FILES_SHOWN_MAX:
        say(f"and {amount(len(files) - _FILES_SHOWN_MAX, 'more file')}; --json has them all")


def show_seal(seal: Seal) -> None:
    """Print a seal: its decision and token, its digests and its parts."""
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


def _cells(row: Mapping[str, Any], counts: str) -> tuple[object, ...]:
    """A transaction's table row."""
    times = moment(row["bound_at"]), span(row["seconds"])
    return row["txn"], row["decision"], *times, row["read"], counts, row["run"], row["verdict"]


def _detail(detail: Mapping[str, str]) -> str:
    return ", ".join(f"{name}: {text}" for name, text in detail.items())
