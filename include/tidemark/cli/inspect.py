"""The commands that show transactions: `txns`, `show`, `journal`. None changes anything or starts Spark."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidemark.cli.shared import (
    EXIT_CODES,
    EnvironmentOption,
    JsonOption,
    PipelineArgument,
    moment,
    open_deployment,
    plain,
    print_json,
    print_table,
    say,
    seconds_in,
    span,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tidemark.assemble import Deployment
    from tidemark.core.binding import Binding
    from tidemark.core.seal import Seal


def register(app: typer.Typer) -> None:
    """Add the commands to the main one."""
    app.command(name="txns", epilog=EXIT_CODES)(txns)
    app.command(name="show", epilog=EXIT_CODES)(show)
    app.command(name="journal", epilog=EXIT_CODES)(journal)


def txns(
    pipeline: PipelineArgument,
    last: Annotated[int, typer.Option("--last", "-n", min=1, help="How many, the newest first.")] = 20,
    environment: EnvironmentOption = None,
    as_json: JsonOption = False,
) -> None:
    """List transactions: when they were bound and sealed, what was read and written, and by which run.

    The last verdict is that of the last replay; it is empty where nothing was replayed.
    """
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
    columns = ("txn", "decision", "bound (UTC)", "took", "read", "rows per shard", "run", "last verdict")
    print_table("", columns, [_cells(row) for row in listed])


def _row(deployment: Deployment, binding: Binding, seal: Seal | None) -> dict[str, Any]:
    from tidemark.core.journal import Event
    from tidemark.pipeline.timeline import times_of

    times = times_of(deployment.control, binding.txn)
    verdicts = [
        entry.detail["verdict"]
        for entry in deployment.control.journal.find(str(binding.txn))
        if entry.event is Event.VERIFIED
    ]
    shards = seal.shards if seal is not None else {}
    return {
        "txn": binding.txn,
        "decision": str(seal.decision) if seal is not None else "open",
        "bound_at": times.bound,
        "sealed_at": times.sealed,
        "seconds": times.seconds,
        "read": seal.source.count if seal is not None else None,
        "rows": {shard: parts.digest.count for shard, parts in shards.items()},
        "run": binding.owner.run_id,
        "verdict": verdicts[-1] if verdicts else "",
    }


def _cells(row: Mapping[str, Any]) -> tuple[object, ...]:
    """A transaction's line for people."""
    counts = ", ".join(f"{shard} {count:,}" for shard, count in row["rows"].items())
    times = moment(row["bound_at"]), span(row["seconds"])
    return row["txn"], row["decision"], *times, row["read"], counts, row["run"], row["verdict"]


def show(
    pipeline: PipelineArgument,
    txn: Annotated[int, typer.Argument(min=1, help="The transaction's number.", metavar="TXN")],
    environment: EnvironmentOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one transaction whole: its input, its seal with parts and digests, its journal."""
    from tidemark.cli.places import show_input, show_seal
    from tidemark.core.ids import Txn
    from tidemark.pipeline.context import binding_at
    from tidemark.pipeline.replay import bound_range
    from tidemark.pipeline.timeline import times_of, written_at

    deployment = open_deployment(pipeline, environment)
    bound_range(deployment.pipeline, txn_from=txn, txn_to=txn)
    binding = binding_at(deployment.pipeline, Txn(txn))
    control = deployment.control
    control.seals.head()
    control.journal.head()
    seal = next(iter(control.seals.read(txn, txn + 1)), None)
    entries = control.journal.find(str(txn))
    settings = (seal.configuration if seal is not None else None) or binding.configuration
    times = times_of(control, Txn(txn))
    noted = [written_at(control.journal, entry.number) for entry in entries]
    if as_json:
        listed = [{"at": at, **plain(entry)} for at, entry in zip(noted, entries, strict=True)]
        whole = {"bound_at": times.bound, "sealed_at": times.sealed, "seconds": times.seconds}
        print_json({**whole, "binding": binding, "seal": seal, "journal": listed})
        return
    say(f"transaction {txn}", style="bold")
    say(
        f"bound {moment(times.bound)} UTC by run {binding.owner.run_id}, configuration {settings.fingerprint}"
    )
    show_input(binding)
    if seal is None:
        say("open: not sealed yet", style="yellow")
    else:
        say(f"sealed {moment(times.sealed)} UTC, {span(times.seconds)} after it was bound")
        show_seal(seal)
    if entries:
        lines = [
            (moment(at), entry.event, entry.token, _detail(entry.detail))
            for at, entry in zip(noted, entries, strict=True)
        ]
        print_table("", ("at (UTC)", "event", "by", ""), lines)


def _detail(detail: Mapping[str, str]) -> str:
    return ", ".join(f"{name}: {text}" for name, text in detail.items())


def journal(
    pipeline: PipelineArgument,
    since: Annotated[
        str, typer.Option(metavar="TIME", help="How far back: a number and s, m, h or d, such as 24h.")
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
        say(f"nothing happened since {moment(start)} UTC")
    else:
        rows = [(moment(one.at), one.txn, one.event, one.by, _detail(one.detail)) for one in found]
        print_table("", ("at (UTC)", "txn", "event", "by", ""), rows)
