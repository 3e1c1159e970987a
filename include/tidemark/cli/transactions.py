"""The commands that show transactions: `txns`, `show`, `journal`, `cuts`.

None of them changes data or starts Spark.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tidemark.app.workspace import open_deployment
from tidemark.cli.shared import (
    EXIT_CODES,
    EnvironmentOption,
    JsonOption,
    PipelineArgument,
    print_json,
    print_table,
    rows_text,
    say,
)
from tidemark.core.text import moment, seconds_in, span

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tidemark.app.deployment import Deployment
    from tidemark.core.binding import Binding
    from tidemark.core.ids import Txn
    from tidemark.core.seal import Seal, SealOutcome


_FILES_SHOWN_MAX: Final = 20


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
        say(f"and {len(files) - _FILES_SHOWN_MAX:,} files more; --json has them all")


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


def passed_over(deployment: Deployment) -> dict[str, str]:
    """The input that the source has skipped, by name, each with the reason."""
    from tidemark.ports.source import ReportsSkipped

    source = deployment.pipeline.source
    return {one.name: one.reason for one in source.skipped} if isinstance(source, ReportsSkipped) else {}


def show_passed_over(deployment: Deployment) -> None:
    found = list(passed_over(deployment).items())
    for name, reason in found[:_FILES_SHOWN_MAX]:
        say(f"not taken: {name}, {reason}", style="yellow")
    if len(found) > _FILES_SHOWN_MAX:
        say(f"and {len(found) - _FILES_SHOWN_MAX:,} files more; --json has them all", style="yellow")


def warnings_of(deployment: Deployment, decided: tuple[SealOutcome, ...]) -> dict[Txn, tuple[str, ...]]:
    """The warnings of expectations with `action: warn`, for each transaction that this run sealed."""
    from tidemark.core.ledger import Event
    from tidemark.core.seal import Sealed
    from tidemark.pipeline.validate import judged_in

    if not any(shard.expectations for shard in deployment.config.shards):
        return {}
    journal = deployment.control.journal
    journal.head()
    found = {
        entry.txn: judged_in(entry).gated.opinion.warned
        for outcome in decided
        if isinstance(outcome, Sealed)
        for entry in journal.find(str(outcome.seal.txn))
        if entry.event is Event.JUDGED and entry.token == outcome.seal.token
    }
    return {txn: reasons for txn, reasons in found.items() if reasons}


def register(app: typer.Typer) -> None:
    """Register the commands."""
    app.command(name="txns", epilog=EXIT_CODES)(txns)
    app.command(name="show", epilog=EXIT_CODES)(show)
    app.command(name="journal", epilog=EXIT_CODES)(journal)
    app.command(name="cuts", epilog=EXIT_CODES)(cuts)


def txns(
    pipeline: PipelineArgument,
    last: Annotated[int, typer.Option("--last", "-n", min=1, help="The most to show, newest first.")] = 20,
    environment: EnvironmentOption = None,
    as_json: JsonOption = False,
) -> None:
    """List transactions: when they were bound and sealed, what was read and written, and by which run.

    The last verdict is that of the last replay; it is empty where nothing was replayed.
    """
    from tidemark.app.transactions import listed

    deployment = open_deployment(pipeline, environment)
    upper = deployment.control.bindings.head().upper
    rows, seals = listed(deployment, lower=max(1, upper - last), upper=upper)
    if as_json:
        print_json(rows)
        return
    columns = ("txn", "decision", "bound (UTC)", "took", "read", "rows per shard", "run", "last verdict")
    texts = {txn: rows_text(seal.shards) for txn, seal in seals.items()}
    print_table("", columns, [_cells(row, texts.get(row["txn"], "")) for row in rows])


def _cells(row: Mapping[str, Any], counts: str) -> tuple[object, ...]:
    """A transaction's table row."""
    times = moment(row["bound_at"]), span(row["seconds"])
    return row["txn"], row["decision"], *times, row["read"], counts, row["run"], row["verdict"]


def show(
    pipeline: PipelineArgument,
    txn: Annotated[int, typer.Argument(min=1, help="The number of the transaction.", metavar="TXN")],
    environment: EnvironmentOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one transaction whole: its input, its seal with parts and digests, its journal."""
    from tidemark.app.transactions import whole

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


def _detail(detail: Mapping[str, str]) -> str:
    return ", ".join(f"{name}: {text}" for name, text in detail.items())


def journal(
    pipeline: PipelineArgument,
    since: Annotated[
        str, typer.Option(metavar="TIME", help="How far back: a number with s, m, h or d, such as 24h.")
    ] = "24h",
    environment: EnvironmentOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what happened lately, in order of time: what was bound, what was sealed, what was refused, judged,
    replayed, lost to another run, or decided by people.

    Times are those of the clocks of the processes that wrote.
    """
    from tidemark.pipeline.timeline import happenings

    start = datetime.now(UTC) - timedelta(seconds=seconds_in(since))
    found = happenings(open_deployment(pipeline, environment).control, since=start)
    if as_json:
        print_json(found)
    elif not found:
        say(f"nothing has happened since {moment(start)} UTC")
    else:
        rows = [(moment(one.at), one.txn, one.event, one.by, _detail(one.detail)) for one in found]
        print_table("", ("at (UTC)", "txn", "event", "by", ""), rows)


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
    from tidemark.pipeline.cuts import cuts_of

    control = open_deployment(pipeline, environment).control
    found = cuts_of(control, as_of=as_of, last=1 if as_of is not None else last)
    if as_json:
        print_json([{"txn": txn, "versions": versions} for txn, versions in found])
    elif not found:
        say("no cut: the states have not been exact at one transaction yet")
    else:
        rows = [(txn, ", ".join(f"{s} {version}" for s, version in at.items())) for txn, at in found]
        print_table("", ("txn", "version of each state"), rows)
