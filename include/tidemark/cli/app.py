"""The command's root: options that belong to no command, and the list of commands."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from tidemark import __version__
from tidemark.cli import check, consumers, doctor, init, inspect, maintain, overrule, rows, work
from tidemark.cli.shared import exit_code_of
from tidemark.core.errors import TidemarkError

app = typer.Typer(
    name="tidemark",
    help="Upsert change streams into Delta Lake on Spark, and prove what was written.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"tidemark {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Take the options that belong to no command."""


for module in (init, check, work, inspect, rows, consumers, overrule, maintain):
    module.register(app)
app.command(name="doctor")(doctor.doctor)


def main() -> None:
    """Run the command line. An error of ours is told in its own words, with the exit code of its family."""
    try:
        app()
    except TidemarkError as error:
        typer.secho(f"error: {error.fact}", err=True, fg="red")
        if error.hint:
            typer.echo(f"what to do: {error.hint}", err=True)
        sys.exit(exit_code_of(error))
