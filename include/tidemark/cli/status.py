"""`tidemark status`: how far a pipeline is, and what holds it up. It changes nothing and starts no Spark."""

from __future__ import annotations

import time
from typing import Annotated, Final

import typer

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
from tidemark.core.alarms import alarms_of, limits_in

EXIT_ALARM_TEXT: Final = "4 what --fail-if names is so."


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
            "quarantine=24h, quarantine=5%, wal=10GB, replayable=2d; several with commas; or all, with the "
            "limits of the pipeline file.",
        ),
    ] = "",
    environment: EnvironmentOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show how far a pipeline is, what is open, what is blocked since when, and what waits for what.

    With --fail-if, also whether that is an alarm, and what to do about it. Behind is the age of the oldest
    input that is not sealed: files, records or source transactions that wait, or a transaction that is bound.
    Quarantine asks for quarantined records at all, for some that were sealed within a time, or for their
    share of the newest 100 transactions. An alarm without a limit takes the one of the pipeline file.
    """
    from tidemark.status import status_of

    deployment = open_deployment(pipeline, environment)
    limits = limits_in(fail_if, deployment.config.alarms.limits)
    now = time.time()
    found = status_of(deployment, now_seconds=now)
    rung = alarms_of(found, limits)
    if as_json:
        print_json({**{name: getattr(found, name) for name in found.__slots__}, "alarms": rung})
    else:
        show_status(found, now_seconds=now)
        for what in rung:
            say(f"alarm: {what}", style="red")
    if rung:
        raise typer.Exit(code=EXIT_ALARM)
