"""`tidemark spark start|stop|status`: a warm Spark for the commands of a project."""

from __future__ import annotations

from typing import Annotated

import typer

from tidemark.cli.shared import EXIT_CODES, JsonOption, print_json, say

spark = typer.Typer(
    help="Keep a Spark server running for this project, so that commands start in a second instead of ten.",
    no_args_is_help=True,
)


def register(app: typer.Typer) -> None:
    """Register the commands."""
    app.add_typer(spark, name="spark")


@spark.command(name="start", epilog=EXIT_CODES)
def start(
    memory: Annotated[str, typer.Option(help="Its memory, such as 2g.")] = "2g",
    as_json: JsonOption = False,
) -> None:
    """Start a Spark Connect server on this machine, and wait until it listens.

    Every command with the same TIDEMARK_HOME uses it from then on, unless TIDEMARK_SPARK_MASTER names another
    Spark. It listens on the loopback interface only, and asks for a token.
    """
    from tidemark.spark import connect_server

    server = connect_server.start(memory=memory)
    if as_json:
        print_json({"url": server.url, "pid": server.pid})
    else:
        say(
            f"a warm Spark listens at {server.url}, process {server.pid}; "
            f"its log is in {connect_server.folder()}"
        )


@spark.command(name="stop", epilog=EXIT_CODES)
def stop(as_json: JsonOption = False) -> None:
    """Stop the warm Spark; jobs that run on it fail, and a retry finishes them."""
    from tidemark.spark import connect_server

    found = connect_server.stop()
    if as_json:
        print_json({"stopped": found.pid if found is not None else None})
    else:
        say(f"stopped process {found.pid}" if found is not None else "there is no warm Spark")


@spark.command(name="status", epilog=EXIT_CODES)
def status(as_json: JsonOption = False) -> None:
    """Say whether a warm Spark runs. Exits with 1 if none does."""
    from tidemark.spark import connect_server

    found = connect_server.find()
    alive = found is not None and found.is_alive
    if as_json:
        print_json({"running": alive, "url": found.url if found is not None and alive else None})
    elif found is None:
        say("there is no warm Spark; `tidemark spark start` starts one")
    elif alive:
        say(f"a warm Spark listens at {found.url}, process {found.pid}")
    else:
        say(
            f"the warm Spark, process {found.pid}, has ended; its log is in {connect_server.folder()}",
            style="red",
        )
    if not alive:
        raise typer.Exit(code=1)
