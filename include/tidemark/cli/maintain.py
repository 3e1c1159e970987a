"""`tidemark maintain`: keep logs, states and control tables small, without removing what readers need."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tidemark.app.workspace import find_names, new_attempt, open_deployment
from tidemark.cli.shared import EXIT_CODES, EnvironmentOption, JsonOption, print_json, print_table, say

if TYPE_CHECKING:
    from tidemark.app.maintenance import MaintenanceReport
    from tidemark.app.reports import Report

COLUMNS = ("what", "shard", "files", "bytes", "held by", "until")


def register(app: typer.Typer) -> None:
    """Register the command."""
    app.command(name="maintain", epilog=EXIT_CODES)(maintain)


def maintain(
    pipeline: Annotated[
        str | None,
        typer.Argument(help="A pipeline's name, or its file's path; all by default.", metavar="PIPELINE"),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only list what would be done, and what holds files back.")
    ] = False,
    environment: EnvironmentOption = None,
    as_json: JsonOption = False,
) -> None:
    """Publish what is due, merge small files, drop transactions past their retention, delete unneeded files.

    Nothing is deleted that a lease, a consumer, a state or the pipeline file's `retention` still needs.
    """
    from tidemark.app import maintenance, tasks

    names = [pipeline] if pipeline is not None else find_names(environment)
    reports: list[Report | MaintenanceReport] = []
    for name in names:
        deployment = open_deployment(name, environment)
        if dry_run:
            found = maintenance.plan(deployment, maintenance.terms_of(deployment))
            reports.append(found)
            if not as_json:
                _print_plan(found)
            continue
        done = tasks.maintain(deployment, new_attempt())
        reports.append(done)
        if not as_json:
            _print_done(done)
    if as_json:
        print_json(reports[0] if pipeline is not None else reports)


def _print_plan(found: MaintenanceReport) -> None:
    say(f"pipeline {found.pipeline}: single transactions are kept from {found.since} on", style="bold")
    if found.chores:
        rows = [
            (
                one.what,
                one.shard,
                one.files,
                one.bytes,
                one.held_by or "nothing: deletable now",
                one.until,
            )
            for one in found.chores
        ]
        print_table("", COLUMNS, rows)
    else:
        say("there is nothing to do")
    for warning in found.warnings:
        say(warning, style="yellow")


def _print_done(done: Report) -> None:
    say(f"pipeline {done['pipeline']}: single transactions are kept from {done['since']} on", style="bold")
    for shard, published in done["published"].items():
        say(f"published {shard} up to transaction {published['txn']}")
    rows = [(one["what"], one["shard"], one["files"], one["bytes"]) for one in done["done"]]
    if rows:
        print_table("", COLUMNS[:4], rows)
    else:
        say("there was nothing to do")
    for warning in done["warnings"]:
        say(warning, style="yellow")
