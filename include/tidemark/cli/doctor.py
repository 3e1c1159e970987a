"""`tidemark doctor`: does this machine have what Tidemark needs, and does the store keep its promise?"""

from __future__ import annotations

import dataclasses
import json
import os
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from tidemark.cli.checks import Check


def register(app: typer.Typer) -> None:
    """Add the command to the main one."""
    app.command(name="doctor")(doctor)


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print the checks as JSON.")] = False,
    warehouse: Annotated[
        str | None,
        typer.Option(
            help="The folder or the URI that tables go to. Where none is given: $TIDEMARK_WAREHOUSE, else "
            ".tidemark/warehouse.",
            metavar="PLACE",
        ),
    ] = None,
    spark: Annotated[
        bool,
        typer.Option("--spark/--no-spark", help="Start Spark and use a small Delta table, half a minute."),
    ] = True,
) -> None:
    """Check versions, Java, jars, Spark and the warehouse's put-if-absent; fail if one of them fails."""
    from tidemark.cli.checks import all_checks

    checks = list(all_checks(warehouse=warehouse_to_check(warehouse), with_spark=spark))
    failed = sum(not check.ok for check in checks)
    if as_json:
        report = {"ok": not failed, "checks": [dataclasses.asdict(check) for check in checks]}
        typer.echo(json.dumps(report, indent=2))
    else:
        _show(checks)
        typer.echo(
            f"{failed} of {len(checks)} checks failed" if failed else f"all {len(checks)} checks passed"
        )
    raise typer.Exit(code=1 if failed else 0)


def warehouse_to_check(given: str | None) -> str:
    """The absolute path or the URI of the warehouse, as a pipeline file would have it; `InvalidUsage` where
    none could."""
    from tidemark.config.paths import WAREHOUSE, default_root, resolved

    chosen = given if given is not None else os.environ.get("TIDEMARK_WAREHOUSE") or WAREHOUSE
    return resolved(chosen, root=default_root())


def _show(checks: list[Check]) -> None:
    """The checks as a table; the remedy stands below what was found."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("check", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("found", overflow="fold")
    for check in checks:
        mark = "[green]ok[/green]" if check.ok else "[red]not ok[/red]"
        # Values come from outside and may hold square brackets, which rich would take for markup.
        found = _plain(check.found) if check.ok else f"{_plain(check.found)}\n-> {_plain(check.remedy)}"
        table.add_row(_plain(check.name), mark, found)
    Console().print(table)


def _plain(text: str) -> str:
    from rich.markup import escape

    return escape(text)
