"""`tidemark maintain`: remove what can never be needed again."""

from __future__ import annotations

import typer

from tidemark.cli.shared import (
    EXIT_CODES,
    EnvironmentOption,
    JsonOption,
    PipelineArgument,
    open_deployment,
    print_json,
    say,
)


def register(app: typer.Typer) -> None:
    """Add the command to the main one."""
    app.command(name="maintain", epilog=EXIT_CODES)(maintain)


def maintain(
    pipeline: PipelineArgument, environment: EnvironmentOption = None, as_json: JsonOption = False
) -> None:
    """Remove the parts of attempts that lost their transaction, and old files of the control tables.

    Attempts on open transactions are left alone, however old they are.
    """
    from tidemark.pipeline.maintain import sweep

    deployment = open_deployment(pipeline, environment)
    swept = sweep(deployment.pipeline)
    removed = sum(table.sweep() for table in deployment.control.tables)
    if as_json:
        print_json({"attempts": swept, "control_files": removed})
        return
    for txn, token in swept:
        say(f"removed what {token} had staged for transaction {txn}")
    say(f"removed {len(swept)} lost attempts and {removed} old files of the control tables")
