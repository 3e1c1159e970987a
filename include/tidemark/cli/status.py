"""`tidemark status`: how far a pipeline is, and what holds it up. It changes nothing and starts no Spark."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from tidemark.cli.alarms import EXIT_ALARM_TEXT, alarms_in, alarms_of
from tidemark.cli.shared import (
    EXIT_ALARM,
    EXIT_CODES,
    EnvironmentOption,
    JsonOption,
    PipelineArgument,
    open_deployment,
    print_json,
    say,
)
from tidemark.cli.status_view import show_status


def register(app: typer.Typer) -> None:
    """Add the command to the main one."""
    app.command(name="status", epilog=f"{EXIT_CODES} {EXIT_ALARM_TEXT}")(status)


def status(
    pipeline: PipelineArgument,
    fail_if: Annotated[
        str,
        typer.Option(
            "--fail-if",
            metavar="ALARMS",
            help="Exit with 4 if one of these is so: blocked, stalled, behind=10m, quarantine, "
            "quarantine=24h; several with commas.",
        ),
    ] = "",
    environment: EnvironmentOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show how far a pipeline is, what is open, what is blocked since when, and what waits for what.

    With --fail-if, also whether that is an alarm. Behind is the age of the oldest input that is not sealed:
    files, records or source transactions that wait, or a transaction that is bound. Quarantine asks for
    quarantined records in the kept transactions, or in those that were sealed within the time that is given.
    """
    from tidemark.status import status_of

    asked = alarms_in(fail_if)
    deployment = open_deployment(pipeline, environment)
    now = time.time()
    found = status_of(deployment, now_seconds=now)
    rung = alarms_of(found, asked, now_seconds=now)
    if as_json:
        print_json({**{name: getattr(found, name) for name in found.__slots__}, "alarms": rung})
    else:
        show_status(found, now_seconds=now)
        for what in rung:
            say(f"alarm: {what}", style="red")
    if rung:
        raise typer.Exit(code=EXIT_ALARM)
