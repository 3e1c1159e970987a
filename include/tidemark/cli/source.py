"""`tidemark source …`: check a source, print its schema as shards, and reread a table."""

from __future__ import annotations

from typing import Annotated

import typer

from tidemark.app.workspace import open_deployment
from tidemark.cli.shared import (
    EXIT_CODES,
    EXIT_USAGE,
    EnvironmentOption,
    JsonOption,
    PipelineArgument,
    print_json,
    print_table,
    say,
)

source = typer.Typer(help="Look at a database that changes are captured from.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Register the commands."""
    app.add_typer(source, name="source")


@source.command(name="check", epilog=EXIT_CODES)
def check(
    pipeline: PipelineArgument, environment: EnvironmentOption = None, as_json: JsonOption = False
) -> None:
    """Check rights, log level, slot, publication, retained log and tables, with the SQL to correct each; and
    whether the tables that were read are as they were then, as every run does."""
    from tidemark.sources.postgres.check import requirements
    from tidemark.sources.postgres.source import SlotSource

    deployment = open_deployment(pipeline, environment)
    known = deployment.unchecked.source if deployment.config.source.type == "postgres" else None
    found = requirements(deployment.config, known if isinstance(known, SlotSource) else None)
    failed = [one for one in found if not one.ok]
    if as_json:
        print_json({"ok": not failed, "requirements": found})
    else:
        print_table("", ("", "what", "found"), [("ok" if r.ok else "no", r.what, r.found) for r in found])
        for one in failed:
            say(f"to correct {one.what}: {one.fix}", style="yellow")
    raise typer.Exit(code=EXIT_USAGE if failed else 0)


@source.command(name="schema", epilog=EXIT_CODES)
def schema(
    conn_id: Annotated[str, typer.Argument(help="The id of the connection.", metavar="CONN_ID")],
    publication: Annotated[str, typer.Argument(help="The publication.", metavar="PUBLICATION")],
) -> None:
    """Print the `shards` of a pipeline file that takes every table of a publication."""
    from tidemark.sources.postgres.check import shards_yaml

    typer.echo(shards_yaml(conn_id, publication))


@source.command(name="reread", epilog=EXIT_CODES)
def reread(
    pipeline: PipelineArgument,
    table: Annotated[str, typer.Argument(help="The table, as schema.table.", metavar="TABLE")],
    environment: EnvironmentOption = None,
) -> None:
    """Have the next run read one table again: the rows of its shard are replaced, in one transaction."""
    from tidemark.core.errors import InvalidUsage
    from tidemark.sources.postgres.source import SlotSource

    found = open_deployment(pipeline, environment).pipeline.source
    if not isinstance(found, SlotSource):
        raise InvalidUsage(
            f"pipeline {pipeline!r} does not read a database",
            hint="use `tidemark replay` to check its transactions",
        )
    found.ask_again(table)
    say(f"the next run reads {table} again; if transactions are open, it finishes those first")
